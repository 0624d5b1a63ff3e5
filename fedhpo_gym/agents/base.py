"""What an agent is: one optimizer that sees only the public interface of an environment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.problem import SCALAR, Process, SearchProblem
from fedhpo_gym.errors import InvalidArgumentError

Observation = Mapping[str, NDArray[Any]]

WHERE: Mapping[Process, str] = {
    "trial": "trial environments, `FedHPO-<Model>-<Dataset>`",
    "round": "round environments, `FedHPO-DAC-<Model>-<Dataset>`",
}


class Agent(ABC):
    """One optimizer. Sees only its problem, observations, rewards and infos.

    An agent lives for one episode: every HPO run gets a new one. What a class needs and can do are
    attributes of it; whoever chooses agents or makes environments for them decides by these alone.
    The constructor takes the problem, and settings of the agent by keyword.

    Attributes:
        acts_on: where a step may be a "trial", and where it may be some rounds ("round").
        per_client: whether it acts for every client, in environments made with
            `per_client=True`, whose actions have one row per client.
        report_moves: whether it reads how the model moves, in environments made with
            `report_moves=True`.
        fidelity: name of the one fidelity that it chooses, the last coordinate of its actions. All
            others must be fixed. None for agents that make no difference between coordinates.
        rewards: "scalar" where a reward must be one number, "vector" where it must be many, "any"
            for agents that do not look at it, or can use both.
        learned: name of the option that brings what must be learned before; None if nothing must.
        seeded: whether the seed changes what it does.
        problem: what it was made for.
        action_space: what `ask` must answer with: a bounded box of (n,) float32 coordinates, or of
            (clients, n) where `per_client`.
        seed: the only source of the agent's randomness.

    Raises:
        InvalidArgumentError: it cannot act on this problem; says which environment it can act in.
    """

    acts_on: ClassVar[tuple[Process, ...]] = ("trial", "round")
    per_client: ClassVar[bool] = False
    report_moves: ClassVar[bool] = False
    fidelity: ClassVar[str | None] = None
    rewards: ClassVar[Literal["any", "scalar", "vector"]] = "any"
    learned: ClassVar[str | None] = None
    seeded: ClassVar[bool] = True

    def __init__(self, problem: SearchProblem) -> None:
        self._check_process(problem)
        self.problem = problem
        self.action_space = self._checked_space(problem)
        self.seed = problem.seed
        self.check_rewards(problem)
        self._check_fidelity(problem)

    @abstractmethod
    def ask(self, observation: Observation) -> NDArray[np.float32]:
        """Return the next action, a point of `action_space`: (n,) float32.

        Args:
            observation: what `reset` or the last `step` returned.
        """

    def tell(  # noqa: B027 - an agent that learns nothing, such as random search, is a whole agent
        self,
        action: NDArray[np.float32],
        reward: float,
        observation: Observation,
        terminated: bool,
        info: Mapping[str, Any],
    ) -> None:
        """Take in the outcome of the action that `ask` returned; by default, forget it.

        Args:
            action: (n,) what was done.
            reward: what it brought; higher is better.
            observation: what the environment shows now.
            terminated: whether the budget is spent.
            info: what the environment reports about this step.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return all that the agent has learned and drawn, as JSON data, between two steps.

        A new agent of the same class, problem and options that loads it goes on as this one would.
        """
        return {"agent": type(self).__name__, "seed": self.seed, "state": self._state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take in what `state_dict` of another agent returned; only a new agent does.

        Raises:
            InvalidArgumentError: it is the state of another agent or seed, or this one is not new.
            DamagedDataError: what it says cannot have been.
        """
        made = {"agent": type(self).__name__, "seed": self.seed}
        given = {name: state.get(name) for name in made}
        if given != made:
            raise InvalidArgumentError(
                f"`state` must be of {made}, got one of {given}; make the agent it belongs to."
            )
        self._restore(state["state"])

    def _state(self) -> dict[str, Any]:
        """Return what `_restore` needs; nothing for an agent that remembers nothing."""
        return {}

    def _restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - see `_state`
        """Take in what `_state` returned."""

    @classmethod
    def check_rewards(cls, problem: SearchProblem) -> None:
        """Refuse rewards that agents of this class cannot use.

        Raises:
            InvalidArgumentError: they are vectors and must be numbers, or the other way round.
        """
        given = "scalar" if problem.objectives == SCALAR else "vector"
        if cls.rewards not in ("any", given):
            wanted, how = ("one", "without") if cls.rewards == "scalar" else ("many", "with")
            raise InvalidArgumentError(
                f"`objectives` must be {wanted} for {cls.__name__}, got "
                f"{list(problem.objectives)}; use the environment id {how} `MO-`."
            )

    def _check_process(self, problem: SearchProblem) -> None:
        if problem.process not in self.acts_on:
            with_rows = ", made with per_client=True" if self.per_client else ""
            raise InvalidArgumentError(
                f"{type(self).__name__} acts in {WHERE[self.acts_on[0]]}{with_rows}; got one in "
                f"which a step is a {problem.process}."
            )

    def _checked_space(self, problem: SearchProblem) -> gym.spaces.Box:
        space, number = problem.action_space, len(problem.search_space)
        axes = 2 if self.per_client else 1
        if (
            isinstance(space, gym.spaces.Box)
            and len(space.shape) == axes
            and space.shape[-1] == number
            and space.is_bounded()
        ):
            return space
        shape, how = (
            (f"(clients, {number})", "with per_client=True")
            if self.per_client
            else (f"({number},)", "without per_client")
        )
        raise InvalidArgumentError(
            f"`action_space` must be a bounded Box of shape {shape} for {type(self).__name__}, got "
            f"{space}; make the environment {how}, and without wrappers that replace its actions."
        )

    def _check_fidelity(self, problem: SearchProblem) -> None:
        free = problem.fidelities.names
        if self.fidelity is None or (
            free == (self.fidelity,) and problem.search_space.names[-1] == self.fidelity
        ):
            return
        others = {d.name: d.high for d in problem.fidelities.dimensions if d.name != self.fidelity}
        advice = (
            f"with fidelity={others}" if others else f"without {self.fidelity!r} in its `fidelity`"
        )
        raise InvalidArgumentError(
            f"{type(self).__name__} chooses the fidelity {self.fidelity!r}, which must be the only "
            f"free one, got {list(free)}; make the environment {advice}."
        )


def score_of(reward: float, info: Mapping[str, Any]) -> float:
    """Return the number that a single-objective optimizer is told; higher is better.

    A trial says its score in `info`, whatever its reward is, which may depend on the trials before
    it. Where a step has no score, as one of a round environment, it is the reward.

    Raises:
        InvalidArgumentError: there is no score, and the reward is a vector.
    """
    if "score" in info:
        return float(info["score"])
    if np.ndim(reward):
        raise InvalidArgumentError(
            f"`reward` must be one number, got shape {np.shape(reward)}; use the environment id "
            "without `MO-`, whose reward is a float."
        )
    return float(reward)
