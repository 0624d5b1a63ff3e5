"""A Gymnasium space of one hyperparameter in natural units, which samples with its prior."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import utils
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.space import Dimension, Value


class DimensionSpace(gym.spaces.Space[Any]):
    """The legal values of one dimension of a search space: built-in numbers, or words.

    A sample is a uniform action coordinate, decoded: log-uniform on a logarithmic scale, and
    uniform over the points of a grid. Flattened, a value is one float64 in a `Box`, a word its
    position.

    Attributes:
        dimension: what is legal, and on which scale it is drawn.
    """

    def __init__(self, dimension: Dimension, seed: int | np.random.Generator | None = None) -> None:
        """Create the space of a dimension."""
        self.dimension = dimension
        kinds = {"int": np.int64, "float": np.float64, "category": np.str_}
        super().__init__((), kinds[dimension.kind], seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Values are single numbers."""
        return True

    def sample(self, mask: Any = None, probability: Any = None) -> Value:
        """Draw a value as `SearchSpace.sample` does.

        Raises:
            InvalidArgumentError: a mask or a probability is given: the scale decides alone.
        """
        if mask is not None or probability is not None:
            raise InvalidArgumentError(
                f"`mask` and `probability` must be None for {self.dimension.name!r}, got "
                f"{mask!r} and {probability!r}"
            )
        return self.dimension.decode(self.np_random.uniform(-1.0, 1.0))

    def contains(self, x: Any) -> bool:
        """Return whether a number is legal."""
        return self.dimension.contains(x)

    def __repr__(self) -> str:
        """Show the legal values and the scale."""
        d = self.dimension
        legal = f"[{d.low}, {d.high}]" if d.values is None else str(list(d.values))
        return f"DimensionSpace({d.name!r}, {legal}{', log' if d.log else ''})"

    def __eq__(self, other: object) -> bool:
        """Return whether both are of equal dimensions."""
        return isinstance(other, DimensionSpace) and self.dimension == other.dimension

    __hash__ = None  # type: ignore[assignment]


@utils.flatdim.register(DimensionSpace)
def _flatdim(space: DimensionSpace) -> int:
    del space
    return 1


@utils.flatten_space.register(DimensionSpace)
def _flatten_space(space: DimensionSpace) -> gym.spaces.Box:
    return gym.spaces.Box(space.dimension.low, space.dimension.high, (1,), np.float64)


@utils.flatten.register(DimensionSpace)
def _flatten(space: DimensionSpace, x: Value) -> NDArray[np.float64]:
    value = space.dimension.validate(x, "action")
    return np.array([space.dimension.number(value)], dtype=np.float64)


@utils.unflatten.register(DimensionSpace)
def _unflatten(space: DimensionSpace, x: NDArray[np.float64]) -> Value:
    return space.dimension.from_number(x.item(), "action")
