"""Arms: the finite sets of configurations that a bandit over clients chooses from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.space import SearchSpace


@dataclass(frozen=True, eq=False)
class Arms:
    """A product of factors; an action is the concatenation of one row of each.

    A list of configurations is one factor as wide as the action; a grid of independent
    hyperparameters is one factor of width 1 per coordinate.

    Attributes:
        factors: (arms, width) coordinates in [-1, 1] of each factor, in the action's order.

    Raises:
        InvalidArgumentError: a factor is empty, has another shape, or leaves [-1, 1].
    """

    factors: tuple[NDArray[np.float64], ...]

    def __post_init__(self) -> None:
        if not self.factors:
            raise InvalidArgumentError("`factors` must hold at least one factor, got none.")
        for factor in self.factors:
            if factor.ndim != 2 or not factor.size or not np.all(np.abs(factor) <= 1.0):
                raise InvalidArgumentError(
                    "`factors` must be non-empty arrays of shape (arms, width) in [-1, 1], got "
                    f"{factor.tolist()}."
                )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of arms of each factor."""
        return tuple(len(factor) for factor in self.factors)

    @property
    def width(self) -> int:
        """Number of coordinates of an action."""
        return sum(factor.shape[1] for factor in self.factors)

    def actions(self, indices: ArrayLike) -> NDArray[np.float32]:
        """Return the (..., width) actions of (..., factors) indices."""
        index = np.asarray(indices, dtype=np.int64)
        parts = [factor[index[..., i]] for i, factor in enumerate(self.factors)]
        return np.concatenate(parts, axis=-1).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Return the arms as plain JSON data."""
        return {"factors": [factor.tolist() for factor in self.factors]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild arms from what `to_dict` returned.

        Raises:
            InvalidArgumentError: they are no arms.
        """
        return cls(tuple(np.array(factor, dtype=np.float64) for factor in data["factors"]))


def listed_arms(actions: ArrayLike) -> Arms:
    """Return the arms that are the rows of `actions`: (arms, n)."""
    return Arms((np.array(actions, dtype=np.float64),))


def grid_arms(coordinates: Sequence[ArrayLike]) -> Arms:
    """Return the grid in which each coordinate has its own arms, chosen independently."""
    return Arms(tuple(np.array(points, dtype=np.float64)[:, None] for points in coordinates))


def space_arms(space: SearchSpace) -> Arms:
    """Return the grid of a search space, one factor per dimension.

    Raises:
        InvalidArgumentError: a dimension is an interval without `bins`.
    """
    dimensions = space.discretized().dimensions
    return grid_arms([[d.encode(value) for value in d.grid] for d in dimensions])


def random_arms(width: int, number: int, rng: np.random.Generator) -> Arms:
    """Return `number` configurations drawn from the prior of the search space."""
    return listed_arms(rng.uniform(-1.0, 1.0, (number, width)))


def perturbed_arms(
    centre: ArrayLike,
    number: int,
    epsilon: float,
    rng: np.random.Generator,
    space: SearchSpace | None = None,
) -> Arms:
    """Return a configuration and `number - 1` others near it, as FedEx is given them.

    Khodak et al. (2021), Appendix: intervals move by up to `epsilon` of their range either way,
    on the scale of the search space; grids by up to `ceil(epsilon * (points - 1))` points. All
    moves are uniform and end at the edge of the space.

    Args:
        centre: (n,) the configuration as an action in [-1, 1]; it is arm 0, unchanged.
        number: how many arms, at least 1.
        epsilon: size of the neighbourhood, in [0, 1] of the range; FedHPO-Bench uses 0.1.
        rng: where the moves come from.
        space: says which coordinates are grids; without it, all are intervals.

    Raises:
        InvalidArgumentError: an argument is out of its range or the shapes differ.
    """
    point = np.asarray(centre, dtype=np.float64)
    if point.ndim != 1 or (space is not None and len(space) != len(point)):
        rule = "one coordinate per dimension" if space is None else f"shape ({len(space)},)"
        raise InvalidArgumentError(f"`centre` must have {rule}, got shape {point.shape}.")
    if number < 1 or not 0 <= epsilon <= 1:
        raise InvalidArgumentError(
            "`number` must be at least 1 and `epsilon` in [0, 1], got "
            f"number={number}, epsilon={epsilon}."
        )
    moves = rng.uniform(-1.0, 1.0, (number - 1, len(point)))
    moved = np.clip(point + 2.0 * epsilon * moves, -1.0, 1.0)
    for i, values in enumerate(d.values for d in (space.dimensions if space else ())):
        if values is not None:
            moved[:, i] = _grid_moves(point[i], moves[:, i], len(values), epsilon)
    return listed_arms(np.concatenate([point[None], moved]))


def _grid_moves(
    centre: float, moves: NDArray[np.float64], points: int, epsilon: float
) -> NDArray[np.float64]:
    """Return cell centres; a move in [-1, 1) is spread evenly over -reach .. reach points."""
    reach = math.ceil(epsilon * (points - 1))
    start = min(int((centre + 1.0) / 2.0 * points), points - 1)
    steps = np.floor((moves + 1.0) / 2.0 * (2 * reach + 1)).astype(np.int64) - reach
    cells = np.clip(start + steps, 0, points - 1)
    return np.asarray((2.0 * cells + 1.0) / points - 1.0)
