"""What agents share whose clients choose from arms; what to choose is left to a policy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.arms.arms import Arms, random_arms
from fedhpo_gym.agents.arms.feedback import ArmFeedback
from fedhpo_gym.agents.arms.reports import check_unit_rows, collect_feedback, sampled_clients
from fedhpo_gym.agents.base import Agent, Observation
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.seeding import stream

DEFAULT_ARMS: Final = 27
"""Number of arms in Khodak et al. (2021) and in FedHPO-Bench, Section 4.2."""


class ArmAgent(Agent):
    """Plays an arm on every sampled client, and learns from those that report.

    Rows of clients that are not sampled hold their likeliest arm; the environment ignores them.
    A step in which no client reports (see `collect_feedback`) teaches nothing.

    Args:
        problem: its actions are (clients, n) in [-1, 1].
        arms: what it chooses from; by default 27 draws from the prior.

    Raises:
        InvalidArgumentError: the action space is another, or the arms have another width.
    """

    acts_on = ("round",)
    per_client = True

    def __init__(self, problem: SearchProblem, *, arms: Arms | None = None) -> None:
        super().__init__(problem)
        width = check_unit_rows(self.action_space)
        self.arms = arms or random_arms(width, DEFAULT_ARMS, stream(self.seed, "arms"))
        if self.arms.width != width:
            raise InvalidArgumentError(
                f"`arms` must have {width} coordinates, as the action space, got {self.arms.width}."
            )
        self._rng = stream(self.seed, "arm_choice")
        self._clients = np.empty(0, dtype=np.int64)
        self._played = np.empty((0, len(self.arms.sizes)), dtype=np.int64)

    @abstractmethod
    def choose(self, rng: np.random.Generator, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw arms for some clients: (k,) indices -> (k, factors)."""

    @abstractmethod
    def likeliest(self) -> NDArray[np.int64]:
        """Return the likeliest arm of every client: (clients, factors)."""

    @abstractmethod
    def learn(self, feedbacks: Sequence[ArmFeedback]) -> None:
        """Learn from what at least one client reported."""

    def best_actions(self) -> NDArray[np.float32]:
        """Return the likeliest arm of every client as an action: (clients, n)."""
        return self.arms.actions(self.likeliest())

    @abstractmethod
    def policy_state(self) -> dict[str, Any]:
        """Return what the policy has learned, as JSON data."""

    @abstractmethod
    def restore_policy(self, state: Mapping[str, Any]) -> None:
        """Take in what `policy_state` returned."""

    def _state(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state, "policy": self.policy_state()}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self.restore_policy(state["policy"])

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        self._clients = sampled_clients(observation)
        self._played = self.choose(self._rng, self._clients)
        action = self.best_actions()
        action[self._clients] = self.arms.actions(self._played)
        return action

    def tell(
        self,
        action: NDArray[np.float32],
        reward: float,
        observation: Observation,
        terminated: bool,
        info: Mapping[str, Any],
    ) -> None:
        if feedbacks := collect_feedback(self._clients, self._played, info):
            self.learn(feedbacks)
