"""One dimension of a search space: its legal values and its action coordinate.

`SearchSpace` is a tuple of `Dimension` objects, and environments decode actions through it. A
coordinate in [-1, 1] is uniform over the scale of the dimension: `decode` maps it to a value and
`encode` back. On a grid, each value has a cell of equal width. `decode_many` and `encode_many` work
on arrays and return the same bits, because single and vector environments must agree.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import INT_END, as_integer, as_number, coerce, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, OffGridError

Number = int | float
Value = Number | str
Kind = Literal["float", "int", "category"]
Scope = Literal["client", "server", "fidelity"]

KINDS: Final[tuple[Kind, ...]] = ("float", "int", "category")
SCOPES: Final[tuple[Scope, ...]] = ("client", "server", "fidelity")

MAX_INT_SPAN: Final = 2**20
"""Widest integer interval of which a float32 coordinate can represent every integer."""

MAX_BINS: Final = 100_000
"""Most points of a computed grid, since a file may contain any number."""

_REL_TOL: Final = 1e-9
ACTION_SLACK: Final = 1e-6
"""Distance outside [-1, 1] that counts as rounding: such coordinates are clipped."""


@dataclass(frozen=True)
class Dimension:
    """One hyperparameter or fidelity: a finite ordered grid, an interval, or categories.

    Attributes:
        kind: ``"float"``, ``"int"``, or ``"category"``: strings without an order.
        log: Whether the scale is logarithmic (needs ``low > 0``).
        bins: Number of grid points of an interval when it is discretized.
        values: The legal values in increasing order (categories in any order); None for an
            interval.
        scope: Where it applies: to every client, to the server, or to the evaluation itself.
        active: Another dimension, and its values for which this one is active; None for always.
    """

    name: str
    low: float
    high: float
    kind: Kind
    log: bool = False
    bins: int | None = None
    values: tuple[Value, ...] | None = None
    unit: str = ""
    scope: Scope = "client"
    active: tuple[str, tuple[Value, ...]] | None = None

    @classmethod
    def of_categories(
        cls,
        name: str,
        values: Sequence[str],
        *,
        scope: Scope = "client",
        active: tuple[str, tuple[Value, ...]] | None = None,
    ) -> "Dimension":
        """Return a dimension of strings; see the attributes of the class."""
        last = len(coerce("values", tuple(values), tuple[str, ...])) - 1
        return cls(name, 0, last, "category", values=tuple(values), scope=scope, active=active)

    def __post_init__(self) -> None:
        for field in ("name", "kind", "unit", "scope"):
            coerce(field, getattr(self, field), str)
        coerce("log", self.log, bool)
        if not self.name.strip() or not self.name.isprintable():
            raise self._bad("name", "a printable string", self.name)
        if self.kind not in KINDS:
            raise self._bad("kind", f"one of {KINDS}", self.kind)
        if self.scope not in SCOPES:
            raise self._bad("scope", f"one of {SCOPES}", self.scope)
        self._check_condition()
        if self.kind == "category":
            self._check_categories()
            return
        for field in ("low", "high"):
            object.__setattr__(self, field, self._cast(getattr(self, field), field))
        if self.log and not self.low > 0:
            raise self._bad("low", "positive on a logarithmic scale", self.low)
        if self.values is None:
            self._check_interval()
        else:
            self._check_values(self.values)

    @cached_property
    def grid(self) -> tuple[Value, ...]:
        """The grid points in increasing order: ``values``, or ``bins`` evenly spaced points."""
        if self.values is not None:
            return self.values
        if self.bins is None:
            raise InvalidArgumentError(
                f"Dimension {self.name!r} is an interval without a grid; give `bins` or `values`."
            )
        space = np.geomspace if self.log else np.linspace
        points: list[float] = space(self.low, self.high, self.bins).tolist()
        if self.kind == "int":
            return tuple(math.floor(point + 0.5) for point in points)
        # Twelve digits remove the last-bit noise, so that 0.001 is 0.001; the ends stay exact.
        inner = (float(f"{point:.12g}") for point in points[1:-1])
        return (self.low, *inner, self.high)

    def with_grid(self) -> "Dimension":
        """Return the same dimension with a grid of at most five points, unless it has one."""
        if self.values is not None or self.bins is not None:
            return self
        for bins in (5, 4, 3):
            with suppress(InvalidArgumentError):  # integers of a short interval would repeat
                return replace(self, bins=bins)
        return replace(self, bins=2)

    def discretized(self) -> "Dimension":
        """Return the same dimension with only its grid points legal."""
        return replace(self, values=self.grid)

    def contains(self, value: object) -> bool:
        """Return whether ``value`` is legal."""
        try:
            self.validate(value)
        except InvalidArgumentError:
            return False
        return True

    def validate(self, value: object, what: str = "configuration") -> Value:
        """Return ``value`` as the equal legal value of a built-in type."""
        if self.kind == "category":
            return self._category(value, what)
        legal = self._cast(value, f"{what}[{self.name!r}]")
        if self.values is not None and (index := self._position(legal)) is not None:
            return self.values[index]
        if not self.low <= legal <= self.high:
            raise InvalidArgumentError(
                f"`{what}[{self.name!r}]` must be in [{self.low}, {self.high}], got {legal!r}."
            )
        if self.values is not None:
            raise self._off_grid(legal, what)
        return legal

    def index(self, value: object) -> int:
        """Return the position of ``value`` in ``grid``."""
        legal = self.validate(value)
        if isinstance(legal, str):
            return self.grid.index(legal)
        index = self._position(legal)
        if index is None:
            raise self._off_grid(legal, "configuration")
        return index

    def decode(self, u: float) -> Value:
        """Return the value at coordinate ``u``."""
        if not abs(u) <= 1.0 + ACTION_SLACK:
            raise self._bad("u", "in [-1, 1]", u)
        share = min(max((float(u) + 1.0) / 2.0, 0.0), 1.0)
        if self.values is not None:
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        if share in (0.0, 1.0):  # exp(log(10)) is not exactly 10, but the ends must be exact
            return self.high if share else self.low
        start, stop = self._scale
        raw = start + share * (stop - start)
        raw = math.exp(raw) if self.log else raw
        rounded = math.floor(raw + 0.5) if self.kind == "int" else raw
        return min(max(rounded, self.low), self.high)

    def encode(self, value: object) -> float:
        """Return the coordinate of ``value``: the cell centre on a grid."""
        if self.values is not None:
            return (2 * self.index(value) + 1) / len(self.values) - 1.0
        legal = self._cast(self.validate(value), self.name)
        start, stop = self._scale
        raw = math.log(legal) if self.log else legal
        return min(max(2.0 * (raw - start) / (stop - start) - 1.0, -1.0), 1.0)

    def decode_many(self, u: NDArray[np.float64]) -> NDArray[Any]:
        """Return the values at (N,) coordinates in [-1, 1], with the same bits as `decode`."""
        share = np.minimum(np.maximum((u + 1.0) / 2.0, 0.0), 1.0)
        if self.values is not None:
            cells = np.minimum((share * len(self.values)).astype(np.int64), len(self.values) - 1)
            return np.array(self.values)[cells]
        start, stop = self._scale
        raw = start + share * (stop - start)
        if self.log:  # one by one: numpy's exponential rounds differently
            raw = np.array([*map(math.exp, raw.tolist())], dtype=np.float64)
        values = np.floor(raw + 0.5) if self.kind == "int" else raw
        values = np.minimum(np.maximum(values, self.low), self.high)
        values = np.where(share == 0.0, self.low, np.where(share == 1.0, self.high, values))
        return values.astype(np.int64) if self.kind == "int" else values

    def encode_many(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return the coordinates of (N,) legal values, with the same bits as `encode`."""
        if self.values is not None:
            distinct, inverse = np.unique(values, return_inverse=True)
            return np.array([self.encode(value) for value in distinct])[inverse]
        start, stop = self._scale
        raw = np.asarray(values, dtype=np.float64)
        if self.log:
            raw = np.array([*map(math.log, raw.tolist())], dtype=np.float64)
        coordinate = 2.0 * (raw - start) / (stop - start) - 1.0
        return np.asarray(np.minimum(np.maximum(coordinate, -1.0), 1.0))

    @cached_property
    def _scale(self) -> tuple[float, float]:
        """Ends of the interval on the scale on which a coordinate is uniform.

        Integers have half a step on either side; the two ends would be half as likely otherwise.
        """
        margin = 0.5 if self.kind == "int" else 0.0
        low, high = self.low - margin, self.high + margin
        return (math.log(low), math.log(high)) if self.log else (low, high)

    def is_active(self, configuration: Mapping[str, object]) -> bool:
        """Return whether it is active in a configuration, which may be incomplete."""
        if self.active is None:
            return True
        name, values = self.active
        return name in configuration and configuration[name] in values

    def number(self, value: Value) -> float:
        """Return a legal value as a number: itself, or the position of a category."""
        return float(self.grid.index(value) if self.kind == "category" else value)

    def from_number(self, number: float, what: str = "configuration") -> Value:
        """Return the value of a number, the inverse of `number`."""
        if self.kind != "category":
            return self.validate(number, what)
        if number not in range(len(self.grid)):
            raise self._bad("number", f"a position among {self.grid}", number)
        return self.grid[int(number)]

    @cached_property
    def _numbers(self) -> tuple[Number, ...]:
        """The grid of a numeric dimension."""
        return tuple(point for point in self.grid if not isinstance(point, str))

    def _position(self, value: Number) -> int | None:
        """Return the index of the grid point that equals ``value``, or None."""
        after = bisect_left(self._numbers, value)
        for index in (after, after - 1):
            if 0 <= index < len(self._numbers) and math.isclose(
                self._numbers[index], value, rel_tol=_REL_TOL
            ):
                return index
        return None

    def _category(self, value: object, what: str) -> Value:
        """Return the category that equals a value."""
        if not isinstance(value, str) or value not in self.grid:
            raise InvalidArgumentError(
                f"`{what}[{self.name!r}]` must be one of {self.grid}, got {short_repr(value)}."
            )
        return self.grid[self.grid.index(value)]

    def _off_grid(self, value: Number, what: str) -> OffGridError:
        nearest = sorted(sorted(self._numbers, key=lambda point: abs(point - value))[:2])
        return OffGridError(
            f"`{what}[{self.name!r}]` must be on the grid, got {value!r}; "
            f"the nearest legal values are {', '.join(map(repr, nearest))}."
        )

    def _cast(self, value: object, argument: str) -> Number:
        """Return ``value`` as the built-in number type of ``kind``; 3.0 is a valid int."""
        real = as_number(value)
        if real is None or not math.isfinite(real):
            raise self._bad(argument, "a finite number", value)
        if isinstance(real, int) and abs(real) >= INT_END:
            raise self._bad(argument, "a finite number", value)
        if self.kind == "float":
            return float(real)
        if real != int(real):
            raise self._bad(argument, "a whole number", value)
        if abs(real) >= INT_END:
            raise self._bad(argument, "a whole number that fits into 64 bits", value)
        return int(real)

    def _check_interval(self) -> None:
        if not self.low < self.high:
            raise self._bad("high", f"above low={self.low}, or give `values`", self.high)
        if self.kind == "int" and self.high - self.low > MAX_INT_SPAN:
            raise self._bad(
                "high", f"at most low + {MAX_INT_SPAN} for integers; use kind='float'", self.high
            )
        if self.bins is None:
            return
        bins = as_integer(self.bins)
        if bins is None or not 2 <= bins <= MAX_BINS:
            raise self._bad(
                "bins", f"an integer of at least 2 and at most {MAX_BINS}, or None", self.bins
            )
        object.__setattr__(self, "bins", bins)
        if any(a >= b for a, b in pairwise(self._numbers)):
            raise self._bad("bins", "small enough that no grid point repeats", self.bins)

    def _check_condition(self) -> None:
        if self.active is None:
            return
        condition: object = self.active
        if not isinstance(condition, list | tuple) or len(condition) != 2:
            raise self._bad("active", "a name and its values, or None", condition)
        name, values = condition
        if not isinstance(name, str) or not isinstance(values, list | tuple) or not values:
            raise self._bad("active", "a name and at least one of its values", condition)
        object.__setattr__(self, "active", (name, tuple(values)))

    def _check_categories(self) -> None:
        categories = coerce("values", self.values, tuple[str, ...])
        if (
            not categories
            or len(set(categories)) < len(categories)
            or self.log
            or self.bins is not None
        ):
            raise self._bad(
                "values", "at least one string, each once, without `log` and `bins`", categories
            )
        if (self.low, self.high) != (0, len(categories) - 1):
            raise self._bad("low", "0, and `high` the last position, of categories", self.low)

    def _check_values(self, entries: tuple[Value, ...]) -> None:
        if not isinstance(entries, list | tuple):
            raise self._bad("values", "a list or tuple of numbers, or None", entries)
        values: tuple[Number, ...] = tuple(self._cast(value, "values") for value in entries)
        if not values or any(a >= b for a, b in pairwise(values)):
            raise self._bad("values", "a non-empty, strictly increasing sequence", self.values)
        if (self.low, self.high) != (values[0], values[-1]):
            raise self._bad(
                "values",
                f"a sequence from low={self.low} to high={self.high}; set both to its ends",
                self.values,
            )
        object.__setattr__(self, "values", values)

    def _bad(self, argument: str, rule: str, value: object) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"Dimension {self.name!r}: `{argument}` must be {rule}, got {short_repr(value)}."
        )
