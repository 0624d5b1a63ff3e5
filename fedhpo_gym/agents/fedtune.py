"""FedTune: two hyperparameters move while a course runs, by preferences over four costs.

Zhang et al., "FedTune: Automatic tuning of federated learning hyper-parameters from system
perspective" (arXiv 2110.03061), Section 4.
"""

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Annotated, Any, Final

import numpy as np

from fedhpo_gym.agents.base import Agent, Observation, SearchProblem, Step
from fedhpo_gym.core.arrays import Bools, Floats, Singles
from fedhpo_gym.core.checks import Range, coerce, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.space import Dimension, Value

START_SLOPE: Final = 1e9
"""All slopes start here: only their ratios decide, so any equal number would do."""
PARTICIPANT_SIGNS: Final = np.array([1.0, 1.0, -1.0, -1.0])
"""More participants cost less time, of computation and transmission, but more load."""
PASS_SIGNS: Final = np.array([-1.0, 1.0, -1.0, 1.0])
"""More local passes cost less transmission, time and load, but more computation."""


@dataclass(frozen=True)
class Preferences:
    """How much each cost matters; only ratios do.

    Attributes:
        computation_time: α.
        transmission_time: β.
        computation_load: γ.
        transmission_load: δ.
    """

    computation_time: float = 0.25
    transmission_time: float = 0.25
    computation_load: float = 0.25
    transmission_load: float = 0.25

    def __post_init__(self) -> None:
        weights = self.vector
        if not np.all(np.isfinite(weights) & (weights >= 0)) or not weights.any():
            raise InvalidArgumentError(
                f"`preferences` must be finite, at least 0 and not all 0, got {weights.tolist()}."
            )

    @property
    def vector(self) -> Floats:
        return np.array(astuple(self))


def round_costs(samples: Floats, passes: float) -> Floats:
    """Return a round's (4,) costs: samples of the slowest, one transmission, samples, clients."""
    return np.array([passes * samples.max(), 1.0, passes * samples.sum(), float(len(samples))])


@dataclass(frozen=True, eq=False)
class Stage:
    """The rounds between two decisions; `costs` (4,) are their sum, in the end per accuracy."""

    participants: int
    passes: int
    costs: Floats = field(default_factory=lambda: np.zeros(4))
    accuracy: float = 0.0


class FedTuneController:
    """Moves participants and passes by one whenever accuracy has risen enough.

    Differs from the original: the term of the transmission load in the comparison of two
    stages is written as the paper has it (the original subtracts another cost there); a slope whose
    denominator is 0 keeps its value.
    """

    @validate_call
    def __init__(
        self,
        preferences: Preferences,
        participants: int,
        passes: int,
        *,
        participant_limits: tuple[int, int],
        pass_limits: tuple[int, int],
        penalty: Annotated[float, Range(1, math.inf, "[)")] = 10.0,
        threshold: Annotated[float, Range(0, 1, "[)")] = 0.01,
    ) -> None:
        coerce("participants", participants, Annotated[int, Range(*participant_limits)])
        coerce("passes", passes, Annotated[int, Range(*pass_limits)])
        self._weights = preferences.vector
        self._limits = (participant_limits, pass_limits)
        self._penalty = penalty
        self._threshold = threshold
        self._slopes = np.full((2, 4), START_SLOPE)
        self.stage = Stage(participants, passes)
        self._previous = self._before = Stage(0, 0)
        self.decisions = 0

    def update(self, accuracy: float, costs: Floats) -> None:
        """Add one round; decide, except at first, if accuracy has risen by the threshold."""
        costs = np.asarray(costs, dtype=np.float64)
        if costs.shape != (4,) or not np.all((costs > 0) & np.isfinite(costs)):
            raise InvalidArgumentError(f"`costs` must be four positive numbers, got {costs}.")
        if not math.isfinite(accuracy):
            raise InvalidArgumentError(f"`accuracy` must be finite, got {accuracy}.")
        self.stage = replace(self.stage, costs=self.stage.costs + costs)
        gain = accuracy - self._previous.accuracy
        if gain <= self._threshold:
            return
        finished = replace(self.stage, costs=self.stage.costs / gain, accuracy=accuracy)
        settings = (finished.participants, finished.passes)
        if self.decisions:
            settings = self._decide(finished)
        self._before, self._previous = self._previous, finished
        self.stage = Stage(*settings)
        self.decisions += 1

    def to_dict(self) -> dict[str, Any]:
        stages = (self.stage, self._previous, self._before)
        return {
            "stages": [{**vars(stage), "costs": stage.costs.tolist()} for stage in stages],
            "slopes": self._slopes.tolist(),
            "decisions": self.decisions,
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on where the one was that returned `data`, with the same settings."""
        self.stage, self._previous, self._before = (
            Stage(**{**stage, "costs": np.array(stage["costs"])}) for stage in data["stages"]
        )
        self._slopes = np.array(data["slopes"])
        self.decisions = int(data["decisions"])

    def _decide(self, finished: Stage) -> tuple[int, int]:
        change = np.abs(finished.costs - self._previous.costs)
        worse = self._weights @ ((finished.costs - self._previous.costs) / finished.costs) > 0
        current = (finished.participants, finished.passes)
        former = (self._previous.participants, self._previous.passes)
        settings = []
        for knob, signs in enumerate((PARTICIPANT_SIGNS, PASS_SIGNS)):
            self._learn(knob, (signs > 0) == (current[knob] > former[knob]), change, bool(worse))
            pull = (signs * self._weights * self._slopes[knob] * change / finished.costs).sum()
            low, high = self._limits[knob]
            settings.append(min(max(current[knob] + (1 if pull > 0 else -1), low), high))
        return settings[0], settings[1]

    def _learn(self, knob: int, favoured: Bools, change: Floats, worse: bool) -> None:
        """Renew the slopes of the costs that the last move favoured; penalise the others."""
        earlier = np.abs(self._previous.costs - self._before.costs)
        is_measurable = favoured & (earlier > 0)
        self._slopes[knob, is_measurable] = change[is_measurable] / earlier[is_measurable]
        if worse:
            self._slopes[knob, ~favoured] *= self._penalty


class FedTune(Agent):
    """Zhang et al. (2021) on the rounds of one course.

    Where participants are no dimension of the space, only the passes move. A step of a grid is to
    its next point. `info` must have `val_accuracy` and `num_train_samples`, the (clients,) training
    samples of the clients that took part and 0 for the others.

    Args:
        problem: of a round environment; its seed is unused, the rule is deterministic.
        start: configuration of the first round; by default the middle of the space.
        preferences: weights of the four costs.
        passes: name of the dimension of local passes.
        participants: name of the dimension of clients per round, or None.
    """

    acts_on = ("round",)
    seeded = False

    def __init__(
        self,
        problem: SearchProblem,
        *,
        start: Mapping[str, object] | None = None,
        preferences: Preferences | None = None,
        passes: str = "step_size",
        participants: str | None = None,
    ) -> None:
        super().__init__(problem)
        self._space = space = problem.search_space
        self._passes = passes
        self._participants = participants
        names = [passes] if participants is None else [passes, participants]
        self._steps = {name: _step_values(space[name]) for name in names}
        if start is None:
            middle = {name: points[len(points) // 2] for name, points in self._steps.items()}
            start = {**space.decode(np.zeros(len(space))), **middle}
        self._configuration = space.validate(start, "start")
        pass_index, last_pass = self._position(passes)
        participant_index, last_participant = (
            (0, 0) if participants is None else self._position(participants)
        )
        self.controller = FedTuneController(
            preferences or Preferences(),
            participant_index,
            pass_index,
            participant_limits=(0, last_participant),
            pass_limits=(0, last_pass),
        )

    def ask(self, observation: Observation) -> Singles:
        self._configuration[self._passes] = self._steps[self._passes][self.controller.stage.passes]
        if self._participants:
            points = self._steps[self._participants]
            self._configuration[self._participants] = points[self.controller.stage.participants]
        return self._space.encode(self._configuration)

    def tell(self, step: Step) -> None:
        if missing := [
            key for key in ("val_accuracy", "num_train_samples") if key not in step.info
        ]:
            raise InvalidArgumentError(
                f"`info` must have {missing}, got {sorted(step.info)}; use a round environment."
            )
        samples = np.asarray(step.info["num_train_samples"], dtype=np.float64)
        accuracy = float(step.info["val_accuracy"])
        if (samples > 0).any() and np.isfinite(accuracy):
            passes = float(self._configuration[self._passes])
            self.controller.update(accuracy, round_costs(samples[samples > 0], passes))

    def _state(self) -> dict[str, Any]:
        return self.controller.to_dict()

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.controller.restore(state)

    def _position(self, name: str) -> tuple[int, int]:
        """Return the step that a dimension starts at, and the last step."""
        points, value = self._steps[name], self._configuration[name]
        if value not in points:
            raise InvalidArgumentError(
                f"`start[{name!r}]` must be one of {list(points)}, got {value}."
            )
        return points.index(value), len(points) - 1


def _step_values(dimension: Dimension) -> tuple[Value, ...]:
    """Return the values of a dimension in steps."""
    if dimension.kind == "int" and dimension.values is None:
        return tuple(range(int(dimension.low), int(dimension.high) + 1))
    return dimension.discretized().grid
