"""What an objective is: a number with a direction, bounds, and a unit."""

import math
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
"""The worst value where values have no worst bound: the largest that is finite as float32."""


@dataclass(frozen=True)
class Objective:
    """One named quantity of an evaluation.

    An evaluation that diverged, under any of its seeds and by the requested round, has the
    ``worst`` value of every objective that is read off the model. Its metrics are still there, at
    the best round before, but they are luck: who wants that model asks for fewer rounds, and gets
    it. A mean over the seeds that survived would call a configuration good that fails one time in
    three, and a model of which nothing is left is perfectly fair. Whether a trial failed decides
    alone, so that one bit in ``info`` explains its reward. What was spent, was spent.

    Whoever ranks configurations uses ``error`` or ``score``; nobody asks for the direction.

    ==========  ==============================  =================================
    ``value``   ``error`` (lower is better)     ``score`` (higher is better)
    ==========  ==============================  =================================
    minimized   value clipped to the bounds     its negative
    maximized   negative of the clipped value   value clipped to the bounds
    NaN         the error of the worst bound    the score of the worst bound
    ==========  ==============================  =================================

    That is the transform ``"clip"``, which cannot tell apart what lies beyond the worse bound.
    ``"squash"`` orders that, too: the error is `squash` of the distance from the better
    bound, in [0, 1], and NaN has the error 1.

    Attributes:
        name: Key in results, for example ``"val_loss"``.
        unit: Unit of the value; ``"1"`` for a pure number.
        minimize: Whether lower values are better.
        bounds: Finite lowest and highest value that counts.
        compute: Reads the (B,) values off evaluations and what was spent on them: privacy and
            costs. Each has the bits that it has alone.
        reads: Which metrics of clients `compute` reads; not relied on for a user's own objectives.
        open_ended: Whether values beyond the worse of the bounds occur.
        transform: One of ``TRANSFORMS``, how values become errors; use `with_transform`.
        sensitivity: Most that one of n clients can change the value, which is of equally weighted
            clients with clipped metrics, as an array function of n; 0 for what reads no metric of
            a client, such as a cost. None where it is not known, and no epsilon can be kept.

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
        """Make an objective of a function of your own, for `gymnasium.make(id, objectives=[...])`.

        Where training diverged, the value is the worse of the bounds, and the function is not
        asked. Where evaluations are noisy, it is asked of what the server hears: clients that are
        not heard have no samples, and NaN in place of metrics.

        Args:
            function: Reads a number off an evaluation; NaN is the worst of the bounds, infinity
                the nearer one. It must be pure: equal evaluations, equal numbers. The arrays that
                it gets are read-only.
            name, unit, minimize, bounds: attributes of the objective.
            sensitivity: another attribute; needed where evaluations are private.

        Raises:
            InvalidArgumentError: The function cannot be called, or an argument is out of its range.
        """
        for word, text in (("name", name), ("unit", unit)):
            if not isinstance(text, str) or (word == "name" and not text):
                raise InvalidArgumentError(f"`{word}` of an objective must be a word, got {text!r}")
        if not callable(function):
            raise InvalidArgumentError(
                f"Objective {name!r}: `function` must take an Evaluation, got {function!r:.80}."
            )
        coerce(f"minimize` of objective `{name}", minimize, bool)
        bounds = _checked_bounds(name, bounds)
        worst = bounds[1] if minimize else bounds[0]

        def value(evaluation: Evaluation) -> float:
            if evaluation.has_diverged:
                return float(worst)
            found = function(_read_only(evaluation))
            number = as_number(found.item() if isinstance(found, np.generic) else found)
            if number is None:
                raise InvalidArgumentError(
                    f"Objective {name!r}: `function` must return one real number, got "
                    f"{found!r:.80}."
                )
            if math.isfinite(number):
                return float(number)
            # A record holds finite numbers only; errors are cut off at the bounds anyway.
            return float(worst) if math.isnan(number) else bounds[int(number > 0)]

        def compute(evaluations: Evaluations, _spent: Spent) -> Floats:
            return np.array([value(one) for one in evaluations], dtype=np.float64)

        checked = None if sensitivity is None else _checked_sensitivity(name, sensitivity)
        return cls(name, unit, minimize, bounds, compute, sensitivity=checked)

    def __post_init__(self) -> None:
        _checked_bounds(self.name, self.bounds)

    @property
    def reads_clients(self) -> bool:
        """Whether it reads metrics of clients, and so hears of noise; costs and privacy do not."""
        return self.sensitivity is None or bool(self.sensitivity(np.full(1, 2.0))[0])

    @property
    def worst(self) -> float:
        """The value of an evaluation that diverged: no other is worse; always finite."""
        low, high = self.bounds
        if self.open_ended:
            return LARGEST if self.minimize else -LARGEST
        return high if self.minimize else low

    def with_transform(self, name: str) -> "Objective":
        """Return this objective with another of ``TRANSFORMS`` from values to errors and scores.

        An objective that is not ``open_ended`` is returned as it is: a clip hides nothing of it.
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
        """Return the error of a limit in the unit of the value; it may lie beyond the bounds."""
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
        # fmin and fmax take the bound where a value is NaN: the worse one goes first.
        if self.minimize:
            return np.asarray(np.fmax(np.fmin(values, high), low))
        return np.asarray(-np.fmin(np.fmax(values, low), high))

    def unclipped_errors(self, values: Floats) -> Floats:
        """Return the ``unclipped_error`` of each of (B,) values."""
        return np.where(np.isnan(values), np.inf, values if self.minimize else -values)

    def lacks(self, values: Floats) -> Floats:
        """Return what (B,) values lack to the best one, 0 or more; NaN lacks most."""
        if TRANSFORMS[self.transform]:
            return self.errors(values)
        return np.maximum(self.unclipped_errors(values) - self.error_bounds[0], 0.0)

    def score(self, value: float) -> float:
        """Return the negative of ``error``: higher is better."""
        return -self.error(value)


@validate_failed_call
def values_of(objectives: Sequence[Objective], evaluations: Evaluations, spent: Spent) -> Floats:
    """Return the (B, objectives) values of B evaluations."""
    values = np.empty((len(evaluations), len(objectives)))
    for column, objective in enumerate(objectives):
        values[:, column] = objective.compute(evaluations, spent)
    return values


def _checked_bounds(name: str, bounds: object) -> tuple[float, float]:
    given = list(bounds) if isinstance(bounds, Sequence) else []
    numbers = [as_number(one) for one in given]
    found = [float(one) for one in numbers if one is not None and math.isfinite(one)]
    if len(given) != 2 or len(found) != 2 or not found[0] < found[1]:
        raise InvalidArgumentError(
            f"Objective {name!r}: `bounds` must be two numbers, finite and increasing, "
            f"got {short_repr(bounds)}."
        )
    return found[0], found[1]


def _checked_sensitivity(name: str, sensitivity: object) -> Callable[[Floats], Floats]:
    """Return a sensitivity whose answers are checked whenever it is asked."""
    if not callable(sensitivity):
        raise InvalidArgumentError(
            f"Objective {name!r}: `sensitivity` must take numbers of clients, got "
            f"{short_repr(sensitivity)}."
        )

    def ask(clients: Floats) -> Floats:
        found = coerce_reals(f"sensitivity` of objective `{name}", sensitivity(clients))
        if found.shape != clients.shape or not ((found >= 0) & np.isfinite(found)).all():
            raise InvalidArgumentError(
                f"Objective {name!r}: `sensitivity` must return a finite number, 0 or more, for "
                f"each of {clients.shape} numbers of clients, got {short_repr(found)}."
            )
        return found.astype(np.float64)

    return ask


def _read_only(evaluation: Evaluation) -> Evaluation:
    """Return the evaluation with arrays that nobody can write into: others read them, too."""
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

    It rises strictly from 0 to 1, which only infinity reaches. The logarithm keeps apart what
    differs by a factor: two losses in nats up to the largest float32 that differ by one part in
    2^9, the precision of stored losses, are two float32 rewards.
    """
    # One memory layout, one way to compute: a batch has the bits of each value alone.
    logs = np.log1p(np.ascontiguousarray(distance))
    infinite = np.isinf(logs)
    logs[infinite] = 1.0
    return np.where(infinite, 1.0, logs / (1.0 + logs))


TRANSFORMS: Final[Mapping[str, Callable[[Floats], Floats] | None]] = {
    "clip": None,
    "squash": squash,
}
"""Transforms by name: None stops at the bounds."""
