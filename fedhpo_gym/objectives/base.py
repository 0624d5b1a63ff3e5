"""Objectives: scalar values of evaluations with a direction, bounds and a unit.

Environments compute their rewards from objectives, and analyses rank configurations by them. An
objective computes (B,) values from B evaluations and from their privacy and costs. Errors (lower is
better) and scores (higher is better) are derived from values, so callers never ask for the
direction. A transform decides how values beyond the worse bound are ordered.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import as_number, coerce, coerce_reals, short_repr, validate_failed_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.evaluation.records import ENTRIES, Entries, Evaluation, Evaluations
from fedhpo_gym.objectives.privacy import Spent

LARGEST: Final = float(np.finfo(np.float32).max)
"""The worst value of unbounded objectives: the largest number that is finite as float32."""


@dataclass(frozen=True)
class Objective:
    """One named quantity of an evaluation.

    An evaluation that diverged, under any of its seeds and by the requested round, has the
    ``worst`` value of every objective of the model. The metrics of its best round before are still
    stored, but do not count; request fewer rounds to get that model. A mean over the other seeds
    would rate a configuration as good that fails one time in three, and a model that predicts
    nothing is perfectly fair. Divergence alone decides, so that one bit in ``info`` explains a
    reward. Privacy and costs are not affected by divergence.

    Use ``error`` or ``score`` to rank configurations; both include the direction.

    ==========  ==============================  =================================
    ``value``   ``error`` (lower is better)     ``score`` (higher is better)
    ==========  ==============================  =================================
    minimized   value clipped to the bounds     its negative
    maximized   negative of the clipped value   value clipped to the bounds
    NaN         the error of the worst bound    the score of the worst bound
    ==========  ==============================  =================================

    That is the transform ``"clip"``, which maps all values beyond the worse bound to one error.
    ``"squash"`` keeps their order: the error is `squash` of the distance from the better bound, in
    [0, 1], and NaN has the error 1.

    Attributes:
        name: Key in results, for example ``"val_loss"``.
        unit: Unit of the value; ``"1"`` for a pure number.
        minimize: Whether lower values are better.
        bounds: Finite lowest and highest value.
        compute: Function of B evaluations and of their privacy and costs that returns (B,) values.
            The value of an evaluation has the same bits in each batch.
        reads: Metrics of clients that `compute` reads; ignored for objectives of users.
        open_ended: Whether values beyond the worse bound occur.
        transform: One of ``TRANSFORMS``, which maps values to errors; use `with_transform`.
        sensitivity: Largest change of the value by one of n clients with equal weights and clipped
            metrics, as a function of an array of n; 0 for objectives that read no metric, such as
            costs. None if it is unknown; then private evaluations are not possible.

    Raises:
        InvalidArgumentError: The bounds are not finite or not in order.
    """

    name: str
    unit: str
    minimize: bool
    bounds: tuple[float, float]
    compute: Callable[[Evaluations, Spent], Floats]
    open_ended: bool = False
    transform: str = "clip"
    sensitivity: Callable[[Floats], Floats] | None = None
    reads: Entries = ENTRIES

    @classmethod
    def of(
        cls,
        function: Callable[[Evaluation], float],
        *,
        name: str,
        unit: str,
        minimize: bool,
        bounds: tuple[float, float],
        sensitivity: Callable[[Floats], Floats] | None = None,
    ) -> "Objective":
        """Return an objective of your own function, for `gymnasium.make(id, objectives=[...])`.

        If training diverged, the value is the worse bound, and the function is not called. If
        evaluations are noisy, its argument is what the server receives: clients that are not
        sampled have no samples, and NaN as metrics.

        Args:
            function: Returns a number for an evaluation; NaN counts as the worse bound, infinity as
                the nearer bound. It must be pure: equal evaluations give equal numbers. Its arrays
                are read-only.
            name, unit, minimize, bounds: attributes of the objective.
            sensitivity: another attribute; required if evaluations are private.

        Raises:
            InvalidArgumentError: The function cannot be called, or an argument is out of its range.
        """
        for argument, text in (("name", name), ("unit", unit)):
            if not isinstance(text, str) or (argument == "name" and not text):
                raise InvalidArgumentError(
                    f"`{argument}` of an objective must be a word, got {text!r}"
                )
        if not callable(function):
            raise InvalidArgumentError(
                f"Objective {name!r}: `function` must take an Evaluation, got {function!r:.80}."
            )
        coerce(f"minimize` of objective `{name}", minimize, bool)
        bounds = _check_bounds(name, bounds)
        worst = bounds[1] if minimize else bounds[0]

        def value(evaluation: Evaluation) -> float:
            if evaluation.has_diverged:
                return float(worst)
            result = function(_make_read_only(evaluation))
            real = as_number(result.item() if isinstance(result, np.generic) else result)
            if real is None:
                raise InvalidArgumentError(
                    f"Objective {name!r}: `function` must return one real number, got "
                    f"{result!r:.80}."
                )
            if math.isfinite(real):
                return float(real)
            # Records hold finite numbers only, and errors are clipped to the bounds anyway.
            return float(worst) if math.isnan(real) else bounds[int(real > 0)]

        def compute(evaluations: Evaluations, _spent: Spent) -> Floats:
            return np.array([value(evaluation) for evaluation in evaluations], dtype=np.float64)

        checked_sensitivity = None if sensitivity is None else _check_sensitivity(name, sensitivity)
        return cls(name, unit, minimize, bounds, compute, sensitivity=checked_sensitivity)

    def __post_init__(self) -> None:
        _check_bounds(self.name, self.bounds)

    @property
    def reads_clients(self) -> bool:
        """Whether it reads metrics of clients, and so is noisy; costs and privacy are not."""
        return self.sensitivity is None or bool(self.sensitivity(np.full(1, 2.0))[0])

    @property
    def worst(self) -> float:
        """The value of an evaluation that diverged: the worst possible one, always finite."""
        low, high = self.bounds
        if self.open_ended:
            return LARGEST if self.minimize else -LARGEST
        return high if self.minimize else low

    def with_transform(self, name: str) -> "Objective":
        """Return this objective with another of ``TRANSFORMS`` from values to errors and scores.

        An objective that is not ``open_ended`` is returned unchanged, because no value is clipped.
        """
        require_known("transform", name, TRANSFORMS)
        return replace(self, transform=name) if self.open_ended else self

    @property
    def error_bounds(self) -> tuple[float, float]:
        """The lowest and the highest ``error``."""
        low, high = self.bounds
        if TRANSFORMS[self.transform]:
            return 0.0, 1.0
        return (low, high) if self.minimize else (-high, -low)

    @property
    def score_bounds(self) -> tuple[float, float]:
        """The lowest and the highest ``score``: bounds of a reward."""
        low, high = self.error_bounds
        return -high, -low

    def limit_error(self, limit: float) -> float:
        """Return the error of a limit, which has the unit of values and may exceed the bounds."""
        return self.error(limit) if TRANSFORMS[self.transform] else self.unclipped_error(limit)

    def error(self, value: float) -> float:
        """Return ``value`` transformed and signed so that lower is better."""
        return float(self.errors(np.array([value], dtype=np.float64))[0])

    def unclipped_error(self, value: float) -> float:
        """Return ``value`` signed so that lower is better, NaN as infinity: for ranking."""
        return float(self.unclipped_errors(np.array([value], dtype=np.float64))[0])

    def errors(self, values: Floats) -> Floats:
        """Return the ``error`` of each of (B,) values."""
        low, high = self.bounds
        transform = TRANSFORMS[self.transform]
        if transform:
            distance = values - low if self.minimize else high - values
            return transform(np.where(np.isnan(distance), np.inf, np.maximum(distance, 0.0)))
        # fmin and fmax replace NaN by the bound, so the worse bound is applied first.
        if self.minimize:
            return np.asarray(np.fmax(np.fmin(values, high), low))
        return np.asarray(-np.fmin(np.fmax(values, low), high))

    def unclipped_errors(self, values: Floats) -> Floats:
        """Return the ``unclipped_error`` of each of (B,) values."""
        return np.where(np.isnan(values), np.inf, values if self.minimize else -values)

    def distance_to_best(self, values: Floats) -> Floats:
        """Return the distances of (B,) values to the best value, 0 or more; NaN has the largest."""
        if TRANSFORMS[self.transform]:
            return self.errors(values)
        return np.maximum(self.unclipped_errors(values) - self.error_bounds[0], 0.0)

    def lacks(self, values: Floats) -> Floats:
        """Return `distance_to_best`, which is the new name of this method."""
        warnings.warn("`lacks` is now `distance_to_best`", DeprecationWarning, stacklevel=2)
        return self.distance_to_best(values)

    def score(self, value: float) -> float:
        """Return the negative of ``error``: higher is better."""
        return -self.error(value)


@validate_failed_call
def values_of(objectives: Sequence[Objective], evaluations: Evaluations, spent: Spent) -> Floats:
    """Return the values of B evaluations: (B, objectives)."""
    values = np.empty((len(evaluations), len(objectives)))
    for column, objective in enumerate(objectives):
        values[:, column] = objective.compute(evaluations, spent)
    return values


def _check_bounds(name: str, bounds: object) -> tuple[float, float]:
    entries = list(bounds) if isinstance(bounds, Sequence) else []
    values = [as_number(entry) for entry in entries]
    ends = [float(entry) for entry in values if entry is not None and math.isfinite(entry)]
    if len(entries) != 2 or len(ends) != 2 or not ends[0] < ends[1]:
        raise InvalidArgumentError(
            f"Objective {name!r}: `bounds` must be two numbers, finite and increasing, "
            f"got {short_repr(bounds)}."
        )
    return ends[0], ends[1]


def _check_sensitivity(name: str, sensitivity: object) -> Callable[[Floats], Floats]:
    """Return a sensitivity whose results are checked at each call."""
    if not callable(sensitivity):
        raise InvalidArgumentError(
            f"Objective {name!r}: `sensitivity` must take numbers of clients, got "
            f"{short_repr(sensitivity)}."
        )

    def checked(clients: Floats) -> Floats:
        sensitivities = coerce_reals(f"sensitivity` of objective `{name}", sensitivity(clients))
        if (
            sensitivities.shape != clients.shape
            or not ((sensitivities >= 0) & np.isfinite(sensitivities)).all()
        ):
            raise InvalidArgumentError(
                f"Objective {name!r}: `sensitivity` must return a finite number, 0 or more, for "
                f"each of {clients.shape} numbers of clients, got {short_repr(sensitivities)}."
            )
        return sensitivities.astype(np.float64)

    return checked


def _make_read_only(evaluation: Evaluation) -> Evaluation:
    """Return the evaluation with read-only arrays, because other code shares them."""
    views: dict[str, Any] = {
        name: value.view()
        for name, value in vars(evaluation).items()
        if isinstance(value, np.ndarray)
    }
    for view in views.values():
        view.flags.writeable = False
    return replace(evaluation, **views)


def squash(distance: Floats) -> Floats:
    """Return ``log(1 + d) / (1 + log(1 + d))`` for (B,) distances from the best value, 0 or more.

    It increases strictly from 0 to 1, which only infinity reaches. Because of the logarithm, all
    losses in nats up to the largest float32 that differ by one part in 2^9, the precision of stored
    losses, have different float32 rewards.
    """
    # `log1p` may round differently for strided arrays; contiguous ones make batches reproducible.
    logs = np.log1p(np.ascontiguousarray(distance))
    infinite = np.isinf(logs)
    logs[infinite] = 1.0
    return np.where(infinite, 1.0, logs / (1.0 + logs))


TRANSFORMS: Final[Mapping[str, Callable[[Floats], Floats] | None]] = {
    "clip": None,
    "squash": squash,
}
"""Transforms by name; None clips to the bounds."""
