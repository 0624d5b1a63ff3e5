"""The search space, and the only codec between actions and configurations.

An action is a vector in [-1, 1]^n. A uniform coordinate is a uniform draw over the grid points, or
over the interval on its scale, so uniform actions are random search with the right prior. Where a
dimension is not active, configurations do not name it, no coordinate of it changes anything, and
they are encoded with `INACTIVE` in its place.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.checks import coerce_reals
from fedhpo_gym.core.errors import InvalidArgumentError, require_known, suggest
from fedhpo_gym.space.dimension import ACTION_SLACK, Dimension, Value

INACTIVE = 0.0
"""Coordinate of a dimension that a configuration has no value of."""


@dataclass(frozen=True)
class SearchSpace:
    """An ordered set of dimensions; reads like a mapping from name to dimension."""

    dimensions: tuple[Dimension, ...]

    def __post_init__(self) -> None:
        dimensions: object = self.dimensions
        if not isinstance(dimensions, list | tuple) or not all(
            isinstance(d, Dimension) for d in dimensions
        ):
            raise InvalidArgumentError(
                f"`dimensions` must hold dimensions only, got {dimensions!r:.80}"
            )
        object.__setattr__(self, "dimensions", tuple(self.dimensions))
        if len(set(self.names)) != len(self.dimensions):
            raise InvalidArgumentError(
                f"`dimensions` must have distinct names, got {list(self.names)}."
            )
        for position, dimension in enumerate(self.dimensions):
            if dimension.active is not None:
                self._check_condition(position, *dimension.active)

    def _check_condition(self, position: int, name: str, values: Sequence[Value]) -> None:
        child, before = self.names[position], self.names[:position]
        if name not in before:
            raise InvalidArgumentError(
                f"Dimension {child!r}: `active` must name one of the dimensions before it, "
                f"{list(before)}, got {name!r}."
            )
        for value in values:
            self[name].validate(value, f"active of {child}")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the dimensions, in order."""
        return tuple(dimension.name for dimension in self.dimensions)

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of grid points of each dimension."""
        return tuple(len(dimension.grid) for dimension in self.dimensions)

    @property
    def grid_size(self) -> int:
        """Number of configurations on the grid."""
        return math.prod(self.grid_shape)

    def __len__(self) -> int:
        return len(self.dimensions)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> Dimension:
        require_known("dimension", name, self.names)
        return self.dimensions[self.names.index(name)]

    def with_grid(self) -> "SearchSpace":
        """Return the same space whose intervals have a grid, where its author gave none."""
        return SearchSpace(tuple(dimension.with_grid() for dimension in self.dimensions))

    def discretized(self) -> "SearchSpace":
        """Return the space in which only grid points are legal."""
        return SearchSpace(tuple(dimension.discretized() for dimension in self.dimensions))

    def within(self, other: "SearchSpace") -> "SearchSpace":
        """Return the grid without the points that are not legal in another space."""
        legal_points = {
            d.name: tuple(v for v in d.grid if other[d.name].contains(v))
            for d in self.discretized().dimensions
        }
        empty = [name for name, values in legal_points.items() if not values]
        if empty:
            raise InvalidArgumentError(f"No grid point of {empty} is legal in the other space.")
        return SearchSpace(tuple(_narrowed(d, legal_points[d.name]) for d in self.dimensions))

    def fix(self, mapping: Mapping[str, object]) -> "SearchSpace":
        """Return the space without the dimensions that are fixed, or no longer active."""
        for name, value in mapping.items():
            self[name].validate(value, "mapping")
        fixed, free = dict(mapping), list[Dimension]()
        for d in self.dimensions:
            if d.active is not None and d.active[0] not in {dimension.name for dimension in free}:
                if not d.is_active(fixed):
                    fixed.pop(d.name, None)
                    continue
                d = replace(d, active=None)
            if d.name not in fixed:
                free.append(d)
        return SearchSpace(tuple(free))

    def decode(self, action: ArrayLike) -> dict[str, Value]:
        """Return the configuration of an action of (n,) coordinates in [-1, 1]."""
        array = checked_action(action, (len(self),))
        config: dict[str, Value] = {}
        for d, u in zip(self.dimensions, array.tolist(), strict=True):
            if d.is_active(config):
                config[d.name] = d.decode(u)
        return config

    def encode(self, mapping: Mapping[str, object]) -> NDArray[np.float32]:
        """Return the (n,) action of a configuration, checked as by ``validate``.

        ``decode`` gives grid points back exactly.
        """
        config = self.validate(mapping)
        coordinates = [
            d.encode(config[d.name]) if d.name in config else INACTIVE for d in self.dimensions
        ]
        return np.array(coordinates, dtype=np.float32)

    def flat_grid_indices(self, actions: NDArray[np.floating]) -> NDArray[np.intp]:
        """Return (...) positions on the flattened grid of (..., n) legal actions, unchecked."""
        # The product of floats is exact (whole numbers below 2^53) and faster than one of ints.
        flat: NDArray[np.float64] = self._cells(actions).dot(self._strides)
        return flat.astype(np.intp)

    def _cells(self, actions: NDArray[np.floating]) -> NDArray[np.float64]:
        half_shape, last = self._half_shape
        cells: NDArray[np.float64] = np.add(actions, 1.0, dtype=np.float64)
        cells *= half_shape  # like (u + 1) / 2 * size: halving is exact
        # Truncation towards zero also clips what rounding left just below -1.
        np.trunc(cells, out=cells)
        np.minimum(cells, last, out=cells)
        if not self._is_flat:
            for axis, active in self._active(lambda parent: cells[..., parent], by_index=True):
                middle = len(self.dimensions[axis].grid) // 2
                cells[..., axis] = np.where(active, cells[..., axis], middle)
        return cells

    @cached_property
    def _is_flat(self) -> bool:
        """Whether no dimension has a condition."""
        return all(d.active is None for d in self.dimensions)

    def _active(
        self, column: Callable[[int], NDArray[Any]], by_index: bool = False
    ) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """Yield the conditional dimensions, and where each is active among many configurations."""
        active_by_axis: dict[int, NDArray[np.bool_]] = {}
        for axis, dimension in enumerate(self.dimensions):
            if dimension.active is None:
                continue
            name, values = dimension.active
            parent = self.names.index(name)
            of = self.dimensions[parent]
            activating = [of.index(v) if by_index else of.validate(v) for v in values]
            active = np.isin(column(parent), activating)
            active_by_axis[axis] = (
                active & active_by_axis[parent] if parent in active_by_axis else active
            )
            yield axis, active_by_axis[axis]

    @cached_property
    def _half_shape(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        shape = np.array(self.grid_shape, dtype=np.float64)
        return shape / 2.0, shape - 1.0

    @cached_property
    def _strides(self) -> NDArray[np.float64]:
        return np.cumprod([1, *reversed(self.grid_shape[1:])])[::-1].astype(np.float64)

    def decode_columns(self, actions: NDArray[np.floating]) -> dict[str, NDArray[Any]]:
        """Return the values of (N, n) legal actions by dimension, bit for bit those of `decode`.

        Where a dimension is not active, its middle stands for no value.
        """
        coordinates = np.asarray(actions, dtype=np.float64).T
        columns = [d.decode_many(u) for d, u in zip(self.dimensions, coordinates, strict=True)]
        for axis, active in self._active(columns.__getitem__):
            middle = self.dimensions[axis].decode_many(np.full(1, INACTIVE))
            columns[axis] = np.where(active, columns[axis], middle)
        return dict(zip(self.names, columns, strict=True))

    def encode_columns(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the (N, n) actions of legal values by dimension, bit for bit those of `encode`."""
        coordinates = [d.encode_many(columns[d.name]) for d in self.dimensions]
        for axis, active in self._active(lambda parent: columns[self.names[parent]]):
            coordinates[axis] = np.where(active, coordinates[axis], INACTIVE)
        return np.stack(coordinates, axis=1).astype(np.float32)

    def columns_of(self, configurations: Sequence[Mapping[str, Value]]) -> dict[str, NDArray[Any]]:
        """Return the values of legal configurations by dimension, as `decode_columns` does."""
        return {
            d.name: np.array(
                [configuration.get(d.name, d.decode(INACTIVE)) for configuration in configurations]
            )
            for d in self.dimensions
        }

    def configurations_of(self, columns: Mapping[str, NDArray[Any]]) -> list[dict[str, Value]]:
        """Return the configurations that `columns_of` gives (B,) columns; others are left out."""
        configurations = []
        for row in zip(*(columns[name].tolist() for name in self.names), strict=True):
            configuration: dict[str, Value] = {}
            for dimension, value in zip(self.dimensions, row, strict=True):
                if dimension.is_active(configuration):
                    configuration[dimension.name] = value
            configurations.append(configuration)
        return configurations

    def canonical(self, actions: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return (..., n) actions with `INACTIVE` where a dimension is not active."""
        if self._is_flat:
            return actions
        flat = actions.reshape(-1, len(self)).astype(np.float64)
        decoded = [d.decode_many(u) for d, u in zip(self.dimensions, flat.T, strict=True)]
        for axis, active in self._active(decoded.__getitem__):
            flat[~active, axis] = INACTIVE
        return flat.reshape(actions.shape).astype(actions.dtype)

    def features(self, actions: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return what models learn from: (N, F) numbers in [0, 1] for (N, n) legal actions.

        A number has its coordinate, a category one column of 0 and 1 for every value; numbers that
        are not active are in the middle, and of such a category all columns are 0.
        """
        flat = np.asarray(self.canonical(actions), dtype=np.float64)
        decoded = [d.decode_many(u) for d, u in zip(self.dimensions, flat.T, strict=True)]
        active = dict(self._active(decoded.__getitem__))
        parts = []
        for axis, dimension in enumerate(self.dimensions):
            if dimension.kind != "category":
                parts.append((flat[:, axis, None] + 1.0) / 2.0)
                continue
            columns = decoded[axis][:, None] == np.array(dimension.grid)
            parts.append(columns & active.get(axis, np.ones(len(flat), np.bool_))[:, None])
        return np.concatenate(parts, axis=1, dtype=np.float64)

    def rounded_features(self, actions: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the `features` of the configurations of (N, n) actions: one has one answer."""
        return self.features(self.encode_columns(self.decode_columns(actions)))

    def from_features(self, features: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return (N, n) actions of (N, F) numbers; of a category the largest column counts."""
        parts, start = [], 0
        for dimension in self.dimensions:
            width = len(dimension.grid) if dimension.kind == "category" else 1
            block = np.asarray(features, dtype=np.float64)[:, start : start + width]
            start += width
            if width > 1 or dimension.kind == "category":
                parts.append(dimension.encode_many(np.array(dimension.grid)[block.argmax(axis=1)]))
            else:
                parts.append(2.0 * np.clip(block[:, 0], 0.0, 1.0) - 1.0)
        return self.canonical(np.stack(parts, axis=1).astype(np.float32))

    def validate(
        self, mapping: Mapping[str, object], what: str = "configuration"
    ) -> dict[str, Value]:
        """Return the configuration with built-in numbers, in canonical order.

        Raises:
            InvalidArgumentError: a name is missing or unknown, or a value has the wrong type or is
                out of range.
            OffGridError: a value is in range but not on the grid.
        """
        if not isinstance(mapping, Mapping):
            raise InvalidArgumentError(f"`{what}` must be a mapping, got {mapping!r}.")
        if unknown := [str(name) for name in mapping if name not in self.names]:
            raise InvalidArgumentError(
                f"`{what}` has unknown keys {unknown}.{suggest(unknown[0], self.names)}"
            )
        config: dict[str, Value] = {}
        missing = [d.name for d in self.dimensions if not d.active and d.name not in mapping]
        for d in () if missing else self.dimensions:  # names come before values
            active = d.is_active(config)
            if d.name in mapping:
                value = d.validate(mapping[d.name], what)
                if active:
                    config[d.name] = value
            elif active:
                missing.append(d.name)
        if missing:
            raise InvalidArgumentError(
                f"`{what}` must have a value for each active dimension, but {missing} are missing."
            )
        return config

    def numbers(self, configuration: Mapping[str, Value]) -> dict[str, float]:
        """Return a configuration in which the position of a category stands for it."""
        return {
            name: self[name].number(value) if isinstance(value, str) else float(value)
            for name, value in configuration.items()
        }

    def from_numbers(self, numbers: Mapping[str, float]) -> dict[str, Value]:
        """Return the configuration that `numbers` gave numbers; what is NaN has no value."""
        configuration = {k: self[k].from_number(x) for k, x in numbers.items() if not math.isnan(x)}
        return self.validate(configuration)

    def index(self, mapping: Mapping[str, object]) -> tuple[int, ...]:
        """Return the grid index, one number per dimension, of a configuration."""
        config = self.validate(mapping)
        return tuple(
            d.index(config[d.name]) if d.name in config else len(d.grid) // 2
            for d in self.dimensions
        )

    def sample(self, rng: np.random.Generator) -> dict[str, Value]:
        """Return a random configuration, uniform in action coordinates."""
        return self.decode(rng.uniform(-1.0, 1.0, size=len(self)))

    def to_dict(self) -> dict[str, Any]:
        """Return the space as plain JSON data."""
        records = [asdict(dimension) for dimension in self.dimensions]
        for record in records:
            record["values"] = None if record["values"] is None else list(record["values"])
            name_and_values = record.pop("active")
            if name_and_values is not None:  # cards of other spaces stay as they are
                name, values = name_and_values
                record["active"] = [name, list(values)]
        return {"dimensions": records}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a space from what ``to_dict`` returned."""
        if not isinstance(data, Mapping) or set(data) != {"dimensions"}:
            raise InvalidArgumentError(
                f"`data` must have the one key 'dimensions', got {data!r:.80}."
            )
        records = data["dimensions"]
        if not isinstance(records, Sequence) or not all(isinstance(r, Mapping) for r in records):
            raise InvalidArgumentError(
                f"`dimensions` must be a list of objects, got {records!r:.80}."
            )
        return cls(tuple(_dimension(record) for record in records))


def checked_action(action: object, shape: tuple[int, ...] | None) -> NDArray[np.float64]:
    """Return an action of a box of [-1, 1]."""
    array = coerce_reals("action", action).astype(np.float64, copy=False)
    if array.shape != shape:
        raise InvalidArgumentError(f"`action` must have shape {shape}, got {array.shape}.")
    if not np.all(np.abs(array) <= 1.0 + ACTION_SLACK):  # not "above": NaN is refused, too
        raise InvalidArgumentError(f"`action` must be in [-1, 1], got {array.tolist()}.")
    return array


def _narrowed(dimension: Dimension, values: tuple[Value, ...]) -> Dimension:
    """Return a dimension of some of its grid points."""
    if dimension.kind == "category":
        return replace(dimension, high=len(values) - 1, values=values)
    return replace(dimension, low=float(values[0]), high=float(values[-1]), values=values)


def _dimension(record: Mapping[str, Any]) -> Dimension:
    field_names = [field.name for field in fields(Dimension)]
    unknown = sorted(set(record) - set(field_names))
    missing = sorted({"name", "low", "high", "kind"} - set(record))
    if unknown or missing:
        raise InvalidArgumentError(
            f"A dimension has unknown fields {unknown} and lacks {missing}; it has {field_names}."
        )
    values = record.get("values")
    return Dimension(**{**record, "values": None if values is None else tuple(values)})
