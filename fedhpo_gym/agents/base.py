"""Agents, the problems they solve, and the loop between an agent and an environment.

Every agent of this package, and every custom one, is a subclass of `Agent`. Studies, `run_episode`
and `run_crew` make it from a `SearchProblem`, which `read_problem` reads from an environment, and
call `ask` and `tell` in turns. The class attributes of an agent declare what it needs and can do;
nothing else is asked about it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.checks import (
    as_integer,
    coerce,
    short_repr,
    validate_call,
    validate_failed_call,
)
from fedhpo_gym.core.errors import DamagedDataError, FedHPOError, InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import SourceTask
from fedhpo_gym.space import SearchSpace

Process: TypeAlias = Literal["trial", "round"]
SCALAR = ("reward",)
"""`objectives` of an environment whose reward is one number."""
MOST_STARTS = 10_000
"""Configurations that a study may share."""
NOTHING_FREE = SearchSpace(())
"""Fidelities where all are fixed."""


@dataclass(frozen=True)
class SearchProblem:
    """The problem of an agent and its seed. Every agent is made from one.

    Attributes:
        action_space: space of actions; for environments of this package a Box in [-1, 1] of
            (n,), or of (clients, n) where every client has its own row.
        search_space: dimensions of the n coordinates of an action, or of a row of it.
        fidelities: the dimensions of `search_space` that are free fidelities.
        seed: non-negative integer; the only source of an agent's randomness.
        objectives: names of the entries of the reward; `SCALAR` where it is one number.
        constrained: whether `info["violation"]` holds the total violation of constraints.
        start: coordinates of the configurations that are tried first, without those of free
            fidelities; the same for all agents of a study that shares its start.
        process: kind of a step: a complete trial, or some rounds of one course.
        source_tasks: trials of other problems of the same space, for agents that transfer.
        candidates: returns the (c, n) actions that are allowed now, or None where all are.
        pool: (K, n) actions of the configurations of a pool, at the highest fidelities; None where
            the environment evaluates other actions, too.
    """

    action_space: gym.Space[Any]
    search_space: SearchSpace
    fidelities: SearchSpace = NOTHING_FREE
    seed: int = 0
    objectives: tuple[str, ...] = SCALAR
    process: Process = "trial"
    constrained: bool = False
    start: tuple[tuple[float, ...], ...] = ()
    source_tasks: tuple[SourceTask, ...] = field(default=(), repr=False, compare=False)
    candidates: Callable[[], NDArray[np.float32] | None] | None = field(default=None, compare=False)
    pool: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        seed = as_integer(self.seed)
        if seed is None or seed < 0:
            raise InvalidArgumentError(
                f"`seed` must be a non-negative integer, got {short_repr(self.seed)}."
            )
        object.__setattr__(self, "seed", seed)


@validate_failed_call
def read_problem(
    env: gym.Env[Any, Any], seed: int, shared_start: int = 0, *, transfers: bool = False
) -> SearchProblem:
    """Return the problem of an environment, which is not reset.

    The first `shared_start` configurations to try are drawn uniformly from the seed alone. For
    agents that transfer, the source tasks of the environment are included.

    Raises:
        InvalidArgumentError: `env` is no environment, has no search space, or a number is negative.
    """
    if not isinstance(env, gym.Env):
        raise InvalidArgumentError(
            f"`env` must be an environment, as `gymnasium.make` returns it, got {short_repr(env)}."
        )
    coerce("transfers", transfers, bool)
    space = _attribute(env, "search_space", None)
    if not isinstance(space, SearchSpace):
        raise InvalidArgumentError(
            f"`env` must have a `search_space` that says what its actions mean, got {env}; use an "
            "environment of this package, or make the agent's class with a SearchProblem."
        )
    if not 0 <= shared_start <= MOST_STARTS:
        raise InvalidArgumentError(
            f"`shared_start` must not be negative, nor above {MOST_STARTS:,}, got {shared_start}."
        )
    free_names = _attribute(env, "fidelity_space", ())
    fidelities = SearchSpace(tuple(d for d in space.dimensions if d.name in free_names))
    problem = SearchProblem(
        action_space=env.action_space,
        search_space=space,
        fidelities=fidelities,
        seed=seed,
        objectives=_objectives(env),
        process=_attribute(env, "step_kind", "trial"),
        constrained=bool(_attribute(env, "constraints", None)),
        source_tasks=tuple(_attribute(env, "source_tasks", ())) if transfers else (),
        candidates=_attribute(env, "candidates", None),
        pool=_attribute(env, "pool", None),
    )
    size = (shared_start, len(space) - len(fidelities))
    starts = stream(problem.seed, "shared_start").uniform(-1.0, 1.0, size).astype(np.float32)
    return replace(problem, start=tuple(map(tuple, starts.tolist())))


def _objectives(env: gym.Env[Any, Any]) -> tuple[str, ...]:
    # A bare environment with bounds for a vector returns one, unless a wrapper says otherwise.
    bounds = _attribute(env, "reward_space", None)
    if not _attribute(env, "vector_reward", bounds is not None):
        return SCALAR
    return tuple(_attribute(env, "describe", dict)()["objective_names"])


def _attribute(env: gym.Env[Any, Any], name: str, default: Any) -> Any:
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else default


Observation = Mapping[str, NDArray[Any]]

WHERE: Mapping[Process, str] = {
    "trial": "trial environments, `FedHPO-<Model>-<Dataset>`",
    "round": "round environments, `FedHPO-DAC-<Model>-<Dataset>`",
}


@dataclass(frozen=True, eq=False)
class Step:
    """One step of an episode, as the environment returned it and as `tell` receives it.

    Attributes:
        action: (n,) action of the agent; read-only in the steps of `run_episode` and `run_crew`.
        reward: a number, or a vector in `MO-` environments; higher is better.
        terminated: whether the budget is spent.
        truncated: whether the episode was cut off from outside.
        info: `info` of the step.
        observation: observation after the step.
        worker: index of the simulated worker of the trial; None where there are none.
    """

    action: NDArray[np.float32]
    reward: Any
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    worker: int | None = None
    observation: Observation = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the episode ended here."""
        return self.terminated or self.truncated


class Agent(ABC):
    """One optimizer. It sees only its problem, observations, rewards and infos.

    An agent lives for one episode: every HPO run gets a new one. Class attributes declare what it
    needs and can do; studies choose agents and make environments for them by these alone. The
    constructor takes the problem, and settings of the agent by keyword.

    Attributes:
        acts_on: kinds of steps that it supports: "trial", some rounds of a course ("round").
        per_client: whether it acts for every client, in environments made with
            `per_client=True`, whose actions have one row per client.
        report_moves: whether it reads how the model moves, in environments made with
            `report_moves=True`.
        fidelity: name of the one fidelity that it chooses, the last coordinate of its actions. All
            others must be fixed. None for agents that treat all coordinates alike.
        rewards: "scalar" where a reward must be one number, "vector" where it must be many, "any"
            for agents that ignore it, or can use both.
        learned: name of the option with what must be learned before the episode; None if nothing
            must.
        stored: whether the package contains it, for some search spaces.
        seeded: whether the seed changes what it does.
        starts: whether it can begin with the configurations of `problem.start`.
        transfers: whether it learns from the source tasks of its problem.
        action_space: space of the return value of `ask`: a bounded box of (n,) float32 coordinates,
            or of (clients, n) where `per_client`.

    Raises:
        InvalidArgumentError: it cannot act on this problem.
    """

    acts_on: ClassVar[tuple[Process, ...]] = ("trial", "round")
    per_client: ClassVar[bool] = False
    report_moves: ClassVar[bool] = False
    fidelity: ClassVar[str | None] = None
    rewards: ClassVar[Literal["any", "scalar", "vector"]] = "any"
    learned: ClassVar[str | None] = None
    stored: ClassVar[bool] = False
    seeded: ClassVar[bool] = True
    starts: ClassVar[bool] = False
    transfers: ClassVar[bool] = False

    def __init__(self, problem: SearchProblem) -> None:
        if problem.process not in self.acts_on:
            with_rows = ", made with per_client=True" if self.per_client else ""
            raise InvalidArgumentError(
                f"{type(self).__name__} acts in {WHERE[self.acts_on[0]]}{with_rows}; got one in "
                f"which a step is a {problem.process}."
            )
        if problem.start and not self.starts:
            raise InvalidArgumentError(
                f"`shared_start` must be 0 for {type(self).__name__}, which begins with nothing "
                f"that it is given, got {len(problem.start)}; leave the agent out."
            )
        self.problem = problem
        self.action_space = self._checked_space(problem)
        self.seed = problem.seed
        self.check_rewards(problem)
        self._check_fidelity(problem)

    @abstractmethod
    def ask(self, observation: Observation) -> NDArray[np.float32]:
        """Return the next action for what `reset` or `step` returned: (n,) of `action_space`."""

    def tell(self, step: Step) -> None:  # noqa: B027 - an agent that learns nothing, such as random search, is a whole agent
        """Learn from the result of an action that `ask` returned; by default, ignore it."""

    def first_actions(self) -> NDArray[np.float32]:
        """Return (N, n) the actions of `problem.start`, at the highest of free fidelities."""
        names = self.problem.search_space.names
        columns = [i for i, name in enumerate(names) if name not in self.problem.fidelities.names]
        actions = np.ones((len(self.problem.start), len(names)), dtype=np.float32)
        if self.problem.start:
            actions[:, columns] = self.problem.start
        return actions

    def state_dict(self) -> dict[str, Any]:
        """Return its state as JSON data, from which a new agent can continue."""
        return {"agent": type(self).__name__, "seed": self.seed, "state": self._state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` of an agent of the same class and problem returned.

        Raises:
            InvalidArgumentError: it is the state of another agent or seed, or this one is not new.
            DamagedDataError: its entries are of another form, or contradict each other.
        """
        expected = {"agent": type(self).__name__, "seed": self.seed}
        record = coerce("state", state, Mapping[str, Any])
        header = {name: record.get(name) for name in expected}
        if header != expected:
            raise InvalidArgumentError(
                f"`state` must be of {expected}, got one of {header}; make the agent it belongs to."
            )
        try:
            self._restore(record["state"])
        except FedHPOError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            raise DamagedDataError(
                f"`state` must hold what `state_dict` of {expected['agent']} returned, got "
                f"{short_repr(record.get('state'))} ({type(error).__name__}: {error}); make a new "
                "agent."
            ) from error

    def _state(self) -> dict[str, Any]:
        """Return the data that `_restore` needs; empty for an agent without state."""
        return {}

    def _restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - see `_state`
        """Restore the data that `_state` returned."""

    @classmethod
    def check_rewards(cls, problem: SearchProblem) -> None:
        """Refuse rewards that agents of this class cannot use."""
        kind = "scalar" if problem.objectives == SCALAR else "vector"
        if cls.rewards not in ("any", kind):
            count, preposition = ("one", "without") if cls.rewards == "scalar" else ("many", "with")
            raise InvalidArgumentError(
                f"`objectives` must be {count} for {cls.__name__}, got "
                f"{list(problem.objectives)}; use the environment id {preposition} `MO-`."
            )

    def _checked_space(self, problem: SearchProblem) -> gym.spaces.Box:
        space, width = problem.action_space, len(problem.search_space)
        axes = 2 if self.per_client else 1
        if (
            isinstance(space, gym.spaces.Box)
            and len(space.shape) == axes
            and space.shape[-1] == width
            and space.is_bounded()
        ):
            return space
        shape, advice = (
            (f"(clients, {width})", "with per_client=True")
            if self.per_client
            else (f"({width},)", "without per_client")
        )
        if isinstance(space, gym.spaces.Discrete):
            advice = "with actions='coordinates'"
        raise InvalidArgumentError(
            f"`action_space` must be a bounded Box of shape {shape} for {type(self).__name__}, got "
            f"{space}; make the environment {advice}, and without wrappers that replace its "
            "actions."
        )

    def _check_fidelity(self, problem: SearchProblem) -> None:
        if self.fidelity is not None:
            self._check_free(problem, (self.fidelity,))

    def _check_free(self, problem: SearchProblem, choosable: tuple[str, ...]) -> None:
        free, last = problem.fidelities.names, problem.search_space.names
        if {*choosable} == {*free} and last[-len(free) :] == free:
            return
        others = {d.name: d.high for d in problem.fidelities.dimensions if d.name not in choosable}
        listing = " and ".join(map(repr, choosable))
        advice = f"with fidelity={others}" if others else f"without {listing} in its `fidelity`"
        raise InvalidArgumentError(
            f"{type(self).__name__} chooses the fidelity {listing}, which must be the only free "
            f"one, got {list(free)}; make the environment {advice}."
        )


def scalar_score(reward: float, info: Mapping[str, Any]) -> float:
    """Return the value that optimizers of one number maximise: `info["score"]`, else the reward."""
    if "score" in info:
        return float(info["score"])
    if np.ndim(reward):
        raise InvalidArgumentError(
            f"`reward` must be one number, got shape {np.shape(reward)}; use the environment id "
            "without `MO-`, whose reward is a float."
        )
    return float(reward)


def _freeze_action(action: ArrayLike) -> NDArray[np.float32]:
    """Return a read-only float32 copy of an agent's action, as records store and replay it."""
    try:
        frozen = np.array(action, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"`ask` must return numbers, got {short_repr(action)}"
        ) from error
    frozen.flags.writeable = False
    return frozen


@validate_call
def run_episode(env: gym.Env[Any, Any], agent: Agent, seed: int) -> Iterator[Step]:
    """Reset an environment with a seed, and yield the steps of one episode of a new agent.

    The last step is terminated or truncated.
    """
    observation, over = env.reset(seed=seed)[0], False
    while not over:
        action = _freeze_action(agent.ask(observation))
        observation, reward, terminated, truncated, info = env.step(action)
        step = Step(action, reward, terminated, truncated, info, observation=observation)
        agent.tell(step)
        over = step.over
        yield step


@validate_call
def run_crew(crew: Any, agent: Agent, seed: int) -> Iterator[Step]:
    """Run one episode with workers that `fedhpo_gym.parallel` made; yield trials as they end.

    Whenever a worker is free, `ask` is called, before the results of running trials are reported.
    """
    observation, over = crew.reset(seed=seed)[0], False
    while not over:
        while crew.free:
            crew.start(_freeze_action(agent.ask(observation)))
        trial = crew.finish()
        observation = trial.observation
        step = Step(
            _freeze_action(trial.action), trial.reward, trial.terminated, trial.truncated,
            trial.info, trial.worker, observation,
        )  # fmt: skip
        agent.tell(step)
        over = step.over
        yield step
