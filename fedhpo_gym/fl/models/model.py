"""The interface of models, and the layout of their parameters for compiled code."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.federation import Federation


class Model(ABC):
    """A model that courses train."""

    compiled: ClassVar[bool] = False  # whether compiled code trains it; else torch does
    # settings of a configuration that decide the shape of the model.
    architecture: ClassVar[tuple[str, ...]] = ()
    # further settings that a step reads, with defaults.
    hyperparameters: ClassVar[Mapping[str, float]] = {}
    # names of the parameters that are averaged but not trained, as running statistics.
    buffers: frozenset[str] = frozenset()
    norms: frozenset[str] = frozenset()  # names of the parameters of normalisation layers
    personal: frozenset[str] = frozenset()  # parameters that stay with each client
    revision: ClassVar[int] = 0  # raised when numbers change of its courses alone
    # the types of numbers that it can compute in.
    precisions: ClassVar[tuple[str, ...]] = ("float32",)
    num_parameters: int  # numbers that are trained

    @classmethod
    def refuse_precision(cls, precision: str) -> None:
        """Refuse a precision that the model cannot compute in."""
        if precision not in cls.precisions:
            raise InvalidArgumentError(
                f"`precision` must be one that {cls.__name__} computes in, "
                f"{' or '.join(map(repr, cls.precisions))}, got {precision!r}."
            )

    @abstractmethod
    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Draw the initial parameters of one course, (model's own, ...) each."""


LANES = 8
"""Rows of numbers are padded with zeros to multiples of it."""
Values = Mapping[str, NDArray[np.float32]]
"""(model's own, items, ...) parameters by name, as algorithms see them."""


@dataclass(frozen=True)
class Part:
    """Where a parameter stands among the numbers of a course."""

    name: str  # of the parameter
    shape: tuple[int, ...]  # (model's own, ...), two or three axes; the first of three is 1
    offset: int  # where it begins

    @property
    def room(self) -> tuple[int, int]:
        """Rows and columns that there is room for; (1, rows, columns) has padded rows, too."""
        rows = math.prod(self.shape[:-1])
        return padded(rows) if len(self.shape) > 2 else rows, padded(self.shape[-1])

    @property
    def span(self) -> slice:
        """Where it stands."""
        return slice(self.offset, self.offset + math.prod(self.room))

    def of(self, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the parameter of (items, numbers) as a view (model's own, items, ...)."""
        view = numbers[:, self.span].reshape(len(numbers), *self.room)
        view = view[:, : math.prod(self.shape[:-1]), : self.shape[-1]]
        return view[None] if len(self.shape) > 2 else view.transpose(1, 0, 2)


@dataclass(frozen=True)
class ParameterLayout:
    """The numbers of a course, one parameter after the other; those that are trained come first."""

    parts: tuple[Part, ...]  # the parameters
    trained: int  # numbers that are trained, padding included

    @cached_property
    def size(self) -> int:
        """How many numbers there are."""
        return max(int(part.span.stop) for part in self.parts)

    def views(self, numbers: NDArray[np.float32], without: Collection[str] = ()) -> Values:
        """Return views of (items, numbers), by name."""
        return {part.name: part.of(numbers) for part in self.parts if part.name not in without}

    def write(self, numbers: NDArray[np.float32], values: Values) -> None:
        """Write parameters into (items, numbers)."""
        for part in self.parts:
            if part.name in values:
                part.of(numbers)[...] = values[part.name]


def padded(count: int) -> int:
    """Return the next multiple of `LANES`."""
    return -(-count // LANES) * LANES


class CompiledModel(Model):
    """A model that compiled code trains, one course after the other."""

    compiled: ClassVar[bool] = True
    min_rows: ClassVar[int] = 1  # of a minibatch; smaller ones are left out

    @classmethod
    @abstractmethod
    def for_federation(cls, federation: Federation, **shape: Any) -> CompiledModel:
        """Create the model that fits a federation's data; `shape` holds the architecture."""

    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the parameters, as of `init`."""

    @abstractmethod
    def data(self, federation: Federation) -> tuple[Any, ...]:
        """Return a named tuple whose type chooses the code: `classes`, `trained`, `min_rows`."""

    @abstractmethod
    def memory(self, rows: int) -> int:
        """Return how many numbers of memory that code needs for minibatches of some rows."""

    @cached_property
    def layout(self) -> ParameterLayout:
        """Where the parameters stand: end to end, buffers last."""
        parts: list[Part] = []
        shapes, offset, trained = self.shapes(), 0, 0
        for name in sorted(shapes, key=lambda name: name in self.buffers):
            parts.append(Part(name, shapes[name], offset))
            offset = parts[-1].span.stop
            trained = trained if name in self.buffers else offset
        return ParameterLayout(tuple(parts), trained)


def flat_rows(groups: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return rows of groups one after the other, and where each begins and the last ends."""
    first = np.cumsum([0, *map(len, groups)])
    index = np.concatenate([np.empty(0, np.int64), *groups], dtype=np.int32, casting="same_kind")
    return index, first.astype(np.int64)
