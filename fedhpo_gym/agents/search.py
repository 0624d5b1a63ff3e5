"""The base of agents that search by trials: bookkeeping of trials, and their state.

Nearly all agents of trials derive from `TrialSearch`. A subclass implements `_suggest`, which
returns the action of a trial, and may implement `_learn`. Trials are numbered from 0 in the order
of `ask`, and may be reported in any order, because simulated workers run them side by side.
Coordinates are those of the action box, or of the unit cube (`to_unit`, `from_unit`).
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation, Process, SearchProblem, Step, scalar_score
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.space import Dimension

Row = NDArray[np.float32]


class TrialSearch(Agent):
    """An optimizer of trials. `ask` may be called several times before a `tell`.

    Trials are reported in any order; a reported action belongs to the oldest open trial with it. A
    score that is not finite counts as minus infinity, worse than any other.

    On a pool, every suggestion is moved to the nearest configuration that was not tried at its
    fidelity yet (`_to_pool`), because its evaluation would be the same again. Trials of different
    fidelities can still have the same result, where a pool does not have all fidelities.

    The state is the sequence of `ask` and `tell`. Restoring it reports all results to a new agent.
    With `replays`, `ask` is called again, too, so that random streams advance as before.

    Attributes:
        takes_constraints: whether it uses violations, with scores without penalties.
        replays: whether `ask` changes state that is not recorded here, such as a random stream.
        actions: (n,) action of each trial, oldest first.
        results: index of a trial -> its (k,) scores, in the order in which they were reported.
        violations: index of a trial -> its total violation of constraints, where it has any.
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
        self._num_asked: list[int] = []
        self._pool_rows: dict[bytes, int] = {}  # suggested configuration -> its place in the pool
        self._asked: set[bytes] = set()
        self._first = self.first_actions()

    @abstractmethod
    def _suggest(self, trial_index: int) -> NDArray[Any]:
        """Return the action of trial `number`, counted from 0."""

    def _begin_with(self, trial_index: int, action: Row) -> NDArray[Any]:
        """Return the action of a trial whose configuration is one of `problem.start`."""
        del trial_index
        return action

    def _learn(self, trial_index: int, scores: Floats) -> None:
        """Learn from the (k,) scores of a trial; by default, they are only recorded."""

    def ask(self, observation: Observation) -> Row:
        box, trial_index = self.action_space, len(self.actions)
        if trial_index < len(self._first):
            suggestion = self._begin_with(trial_index, self._first[trial_index])
        else:
            suggestion = self._suggest(trial_index)
        action = self._to_pool(np.clip(np.asarray(suggestion, dtype=np.float32), box.low, box.high))
        self._record_asked(action)
        return action.copy()

    def tell(self, step: Step) -> None:
        is_vector = self.rewards != "scalar" and np.ndim(step.reward) > 0
        value = step.reward if is_vector else scalar_score(step.reward, step.info)
        scores = np.atleast_1d(np.asarray(value, dtype=np.float64))
        key = np.asarray(step.action, dtype=np.float32).tobytes()
        if not self._open.get(key):
            raise InvalidArgumentError(
                f"`tell` must follow `ask`, but nothing was asked with the action {step.action}."
            )
        if self.takes_constraints and self.problem.constrained:
            self.violations[self._open[key][0]] = float(step.info["violation"])
            scores = scores + step.info.get("penalty", 0.0)
        self._record_result(self._open[key][0], np.where(np.isfinite(scores), scores, -np.inf))

    def _to_pool(self, action: Row) -> Row:
        """Return the nearest untried action of the pool to an (n,) one; itself without a pool.

        A configuration that is suggested again at another fidelity, as promotions are, is moved to
        the same one again.
        """
        pool, space = self.problem.pool, self.problem.search_space
        if pool is None:
            return action
        is_fidelity = np.array([name in self.problem.fidelities for name in space.names])
        rounded = space.encode_columns(space.decode_columns(action[None]))[0]
        choices = np.where(is_fidelity, rounded, pool)
        suggested = action[~is_fidelity].tobytes()
        row = self._pool_rows.get(suggested)
        if row is None or choices[row].tobytes() in self._asked:
            distance = ((space.features(choices) - space.features(action[None])) ** 2).sum(axis=1)
            order = np.argsort(distance, kind="stable").tolist()
            untried = (
                candidate for candidate in order if choices[candidate].tobytes() not in self._asked
            )
            self._pool_rows[suggested] = row = next(untried, order[0])
        return np.asarray(choices[row], dtype=np.float32)

    def reported(self) -> tuple[Floats, Floats]:
        """Return (m, n) actions and (m, k) scores of reported trials; infinite ones are clipped."""
        actions = self._actions_of(list(self.results))
        scores = np.array(list(self.results.values()), dtype=np.float64)
        if not len(scores):
            return actions, scores.reshape(0, 1)
        finite = np.isfinite(scores)
        worst = np.where(finite, scores, np.inf).min(axis=0)
        return actions, np.where(finite, scores, np.where(np.isfinite(worst), worst, 0.0))

    def in_flight(self) -> Floats:
        """Return (m, n) the actions of trials that are not reported yet, oldest first."""
        trial_indices = sorted(
            trial_index for trial_indices in self._open.values() for trial_index in trial_indices
        )
        return self._actions_of(trial_indices)

    def _actions_of(self, trial_indices: Sequence[int]) -> Floats:
        """Return the (m, n) actions of some trials, canonical where coordinates are inactive."""
        width = self.action_space.shape[0]
        actions = np.array([self.actions[i] for i in trial_indices], dtype=np.float64).reshape(
            -1, width
        )
        return np.asarray(self.problem.search_space.canonical(actions))

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
        centres = points.copy()
        for i, dimension in enumerate(self.problem.search_space.dimensions):
            if has_cells(dimension):
                values = dimension.decode_many(2.0 * points[:, i] - 1.0)
                centres[:, i] = (dimension.encode_many(values) + 1.0) / 2.0
        return centres

    def first_untried(self, points: Floats) -> Floats:
        """Return the first of (m, n) points whose cell was not tried yet, or the first."""
        cells_tried = self.on_grid(self.to_unit(self._actions_of(range(len(self.actions)))))
        tried = {cell.tobytes() for cell in cells_tried.astype(np.float32)}
        for point, cell in zip(points, self.on_grid(points).astype(np.float32), strict=True):
            if cell.tobytes() not in tried:
                return np.asarray(point)
        return np.asarray(points[0])

    def _state(self) -> dict[str, Any]:
        return {
            "actions": [action.tolist() for action in self.actions],
            "told": [
                [num_asked, trial_index, [float(s) if np.isfinite(s) else None for s in scores]]
                for num_asked, (trial_index, scores) in zip(
                    self._num_asked, self.results.items(), strict=True
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
        self.violations = {int(trial_index): v for trial_index, v in state.get("violations", [])}
        for num_asked, trial_index, scores in state["told"]:
            self._ask_again(actions[: int(num_asked)])
            self._record_result(
                int(trial_index), np.array([-np.inf if s is None else s for s in scores])
            )
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
                self._record_asked(action)

    def _record_asked(self, action: Row) -> None:
        self._open.setdefault(action.tobytes(), []).append(len(self.actions))
        self._asked.add(action.tobytes())
        self.actions.append(action)

    def _record_result(self, trial_index: int, scores: Floats) -> None:
        open_trials = self._open.get(self.actions[trial_index].tobytes(), [])
        if trial_index not in open_trials:
            raise DamagedDataError(
                f"`state` tells trial {trial_index} twice, or before it was asked."
            )
        open_trials.remove(trial_index)
        self._num_asked.append(len(self.actions))
        self.results[trial_index] = scores
        self._learn(trial_index, scores)


def has_cells(dimension: Dimension) -> bool:
    """Return whether a coordinate is divided into cells, one for each of finitely many values."""
    return dimension.values is not None or dimension.kind == "int"
