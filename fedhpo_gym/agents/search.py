"""What agents that search by trials share: who was asked what, what came of it, and their state."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation, Process, SearchProblem, Step, score_of
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.space import Dimension

Row = NDArray[np.float32]


class TrialSearch(Agent):
    """An optimizer of trials. `ask` may be called several times before a `tell`.

    Trials are told in any order; a told action belongs to the oldest open trial with it. A score
    that is no finite number counts as minus infinity: worse than any other.

    On a pool, every suggestion is moved to the nearest configuration that was not asked at its
    fidelity yet (`_in_pool`), because a second look at the same one would teach nothing. Requests
    of different fidelities can still get one answer, where a pool does not have all of them.

    The state is what was asked and told, in order. Restoring it tells all of it to a new agent.
    With `replays`, that agent is asked again, too, so that whatever it draws, it has drawn.

    Attributes:
        takes_constraints: whether it hears violations as such, and scores without penalties.
        replays: whether what it suggests changes more than what is noted here.
        actions: (n,) what was asked, oldest first.
        results: number of a trial -> its (k,) scores, in the order in which they were told.
        violations: number of a trial -> its total violation of constraints, where it has any.
    """

    acts_on: ClassVar[tuple[Process, ...]] = ("trial",)
    rewards: ClassVar[Literal["any", "scalar", "vector"]] = "scalar"
    replays: ClassVar[bool] = True
    starts: ClassVar[bool] = True
    takes_constraints: ClassVar[bool] = False

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        self.actions: list[Row] = []
        self.results: dict[int, Floats] = {}
        self.violations: dict[int, float] = {}
        self._open: dict[bytes, list[int]] = {}
        self._asked_by_then: list[int] = []
        self._places: dict[bytes, int] = {}  # suggested configuration -> its place in the pool
        self._asked: set[bytes] = set()
        self._first = self.first_actions()

    @abstractmethod
    def _suggest(self, number: int) -> NDArray[Any]:
        """Return the action of trial `number`, counted from 0."""

    def _begin_with(self, number: int, action: Row) -> NDArray[Any]:
        """Return the action of a trial whose configuration `problem.start` gives."""
        del number
        return action

    def _learn(self, number: int, scores: Floats) -> None:
        """Take in the (k,) scores of a trial; by default, nothing more is made of them."""

    def ask(self, observation: Observation) -> Row:
        box, number = self.action_space, len(self.actions)
        if number < len(self._first):
            wanted = self._begin_with(number, self._first[number])
        else:
            wanted = self._suggest(number)
        action = self._in_pool(np.clip(np.asarray(wanted, dtype=np.float32), box.low, box.high))
        self._note(action)
        return action.copy()

    def tell(self, step: Step) -> None:
        is_vector = self.rewards != "scalar" and np.ndim(step.reward) > 0
        given = step.reward if is_vector else score_of(step.reward, step.info)
        scores = np.atleast_1d(np.asarray(given, dtype=np.float64))
        key = np.asarray(step.action, dtype=np.float32).tobytes()
        if not self._open.get(key):
            raise InvalidArgumentError(
                f"`tell` must follow `ask`, but nothing was asked with the action {step.action}."
            )
        if self.takes_constraints and self.problem.constrained:
            self.violations[self._open[key][0]] = float(step.info["violation"])
            scores = scores + step.info.get("penalty", 0.0)
        self._take_in(self._open[key][0], np.where(np.isfinite(scores), scores, -np.inf))

    def _in_pool(self, action: Row) -> Row:
        """Return the action of the pool that stands for an (n,) one; itself where there is no pool.

        A configuration that is suggested again at another fidelity, as promotions are, stays the
        one that it was moved to.
        """
        pool, space = self.problem.pool, self.problem.search_space
        if pool is None:
            return action
        is_fidelity = np.array([name in self.problem.fidelities for name in space.names])
        rounded = space.encode_columns(space.decode_columns(action[None]))[0]
        choices = np.where(is_fidelity, rounded, pool)
        suggested = action[~is_fidelity].tobytes()
        place = self._places.get(suggested)
        if place is None or choices[place].tobytes() in self._asked:
            distance = ((space.features(choices) - space.features(action[None])) ** 2).sum(axis=1)
            order = np.argsort(distance, kind="stable").tolist()
            untried = (one for one in order if choices[one].tobytes() not in self._asked)
            self._places[suggested] = place = next(untried, order[0])
        return np.asarray(choices[place], dtype=np.float32)

    def told(self) -> tuple[Floats, Floats]:
        """Return (m, n) actions and (m, k) finite scores of told trials, the worst for infinite."""
        actions = self._of(list(self.results))
        scores = np.array(list(self.results.values()), dtype=np.float64)
        if not len(scores):
            return actions, scores.reshape(0, 1)
        finite = np.isfinite(scores)
        worst = np.where(finite, scores, np.inf).min(axis=0)
        return actions, np.where(finite, scores, np.where(np.isfinite(worst), worst, 0.0))

    def in_flight(self) -> Floats:
        """Return (m, n) the actions of trials that were asked and not told yet, oldest first."""
        numbers = sorted(number for numbers in self._open.values() for number in numbers)
        return self._of(numbers)

    def _of(self, numbers: Sequence[int]) -> Floats:
        """Return the (m, n) actions of some trials; those that mean the same are the same."""
        width = self.action_space.shape[0]
        given = np.array([self.actions[i] for i in numbers], dtype=np.float64).reshape(-1, width)
        return np.asarray(self.problem.search_space.canonical(given))

    def from_unit(self, points: NDArray[Any]) -> NDArray[np.float32]:
        """Return the actions of (..., n) points of the unit cube."""
        box = self.action_space
        return np.asarray(box.low + points * (box.high - box.low), dtype=np.float32)

    def to_unit(self, actions: NDArray[Any]) -> Floats:
        """Return the points of the unit cube of (..., n) actions."""
        box = self.action_space
        low, width = box.low.astype(np.float64), (box.high - box.low).astype(np.float64)
        return np.asarray((actions - low) / width)

    def on_grid(self, points: Floats) -> Floats:
        """Return (m, n) points of the unit cube, moved to the middle of their cells."""
        moved = points.copy()
        for i, dimension in enumerate(self.problem.search_space.dimensions):
            if has_cells(dimension):
                values = dimension.decode_many(2.0 * points[:, i] - 1.0)
                moved[:, i] = (dimension.encode_many(values) + 1.0) / 2.0
        return moved

    def first_untried(self, points: Floats) -> Floats:
        """Return the first of (m, n) points whose cell was not asked yet, or the first."""
        asked = self.on_grid(self.to_unit(self._of(range(len(self.actions)))))
        known = {cell.tobytes() for cell in asked.astype(np.float32)}
        for point, cell in zip(points, self.on_grid(points).astype(np.float32), strict=True):
            if cell.tobytes() not in known:
                return np.asarray(point)
        return np.asarray(points[0])

    def _state(self) -> dict[str, Any]:
        return {
            "actions": [action.tolist() for action in self.actions],
            "told": [
                [then, number, [float(s) if np.isfinite(s) else None for s in scores]]
                for then, (number, scores) in zip(
                    self._asked_by_then, self.results.items(), strict=True
                )
            ],
            "violations": [*map(list, self.violations.items())],
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        if self.actions:
            raise InvalidArgumentError(
                f"`state` must be given to a new agent, this one was asked {len(self.actions)} "
                "times; make another one."
            )
        actions = [np.array(action, dtype=np.float32) for action in state["actions"]]
        self.violations = {int(number): v for number, v in state.get("violations", [])}
        for then, number, scores in state["told"]:
            self._ask_again(actions[: int(then)])
            self._take_in(int(number), np.array([-np.inf if s is None else s for s in scores]))
        self._ask_again(actions)

    def _ask_again(self, actions: list[Row]) -> None:
        for action in actions[len(self.actions) :]:
            if self.replays and not np.array_equal(self.ask({}), action):
                raise DamagedDataError(
                    f"`state` does not belong to this agent: it asked {action.tolist()} at trial "
                    f"{len(self.actions)}, and now asks {self.actions[-1].tolist()}; make the "
                    "agent for the same problem, with the same seed and options."
                )
            if not self.replays:
                self._note(action)

    def _note(self, action: Row) -> None:
        self._open.setdefault(action.tobytes(), []).append(len(self.actions))
        self._asked.add(action.tobytes())
        self.actions.append(action)

    def _take_in(self, number: int, scores: Floats) -> None:
        numbers = self._open.get(self.actions[number].tobytes(), [])
        if number not in numbers:
            raise DamagedDataError(f"`state` tells trial {number} twice, or before it was asked.")
        numbers.remove(number)
        self._asked_by_then.append(len(self.actions))
        self.results[number] = scores
        self._learn(number, scores)


def has_cells(dimension: Dimension) -> bool:
    """Return whether a coordinate stands for finitely many values, a cell each."""
    return dimension.values is not None or dimension.kind == "int"
