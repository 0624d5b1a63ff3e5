"""Actions as dictionaries in natural units.

Users wrap trial environments in `NamedAction`, and harnesses do so, too. Its action space,
`NamedSpace`, has a `DimensionSpace` per hyperparameter, so that Gymnasium can sample, check and
flatten configurations. Values pass through the action codec of `fedhpo_gym.space`, which encodes
them as float32 coordinates.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import utils
from numpy.typing import NDArray

from fedhpo_gym.core.checks import coerce
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.space import INACTIVE, Dimension, SearchSpace, Value
from fedhpo_gym.wrappers.checks import check_env


class NamedSpace(gym.spaces.Dict):
    """The configurations of a search space, by name; inactive dimensions may be left out."""

    def __init__(
        self, space: SearchSpace, seed: int | dict[str, Any] | np.random.Generator | None = None
    ) -> None:
        self._search_space = space
        super().__init__({d.name: DimensionSpace(d) for d in space.dimensions}, seed)

    def sample(self, mask: Any = None, probability: Any = None) -> dict[str, Any]:
        """Draw a configuration (`DimensionSpace.sample`)."""
        draw = super().sample(mask, probability)
        active = self._search_space.validate(draw)
        return {name: active[name] for name in draw if name in active}

    def contains(self, x: Any) -> bool:
        """Return whether it is a legal configuration."""
        try:
            self._search_space.validate(x)
        except InvalidArgumentError:
            return False
        return isinstance(x, dict)

    def complete(self, x: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration with a legal value for each inactive dimension."""
        return {d.name: d.decode(INACTIVE) for d in self._search_space.dimensions} | dict(x)


@utils.flatten.register(NamedSpace)
def _flatten_configuration(space: NamedSpace, x: Mapping[str, Any]) -> Any:  # type: ignore[misc]
    return utils.flatten(gym.spaces.Dict(space.spaces), space.complete(x))


class NamedAction(gym.ActionWrapper[Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Takes `{"learning_rate": 0.01, "batch_size": 64, ..., "round": 81}` as action.

    A value off a grid, out of range or missing is an error; nothing is rounded. Floats of an
    interval pass through the action codec and come out with its relative error of about 1e-7.
    `action_space.sample()` draws with the priors of the search space: log scales, grids, integers.
    Where a dimension is active under some values of another one only, samples leave it out under
    the others, and actions may; a value for it must still be legal, and has no effect.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wrap an environment whose action is a vector of coordinates.

        Raises:
            InvalidArgumentError: it has no `search_space` that says what the coordinates mean, or
                an action is a row of them for every client.
        """
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.ActionWrapper.__init__(self, check_env(env))
        space = getattr(env.unwrapped, "search_space", None)
        if not isinstance(space, SearchSpace) or env.action_space.shape != (len(space),):
            raise InvalidArgumentError(
                "`env` must have a `search_space` with one dimension per entry of an action, as "
                f"FedHPO-* environments have without `per_client`, got {env}"
            )
        self._follow_search_space()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset; a backend exchanged outside this wrapper may have another space."""
        if self.env.get_wrapper_attr("search_space") != self._space:
            self._follow_search_space()
        return self.env.reset(seed=seed, options=options)

    def action(self, action: Mapping[str, Any]) -> Any:
        """Encode a dictionary as coordinates.

        Raises:
            InvalidArgumentError: a name is missing or unknown, or a value is out of range.
            OffGridError: a value is not on the grid.
        """
        return self._space.encode(coerce("action", action, Mapping[str, Any]))

    def _follow_search_space(self) -> None:
        self._space = self.env.get_wrapper_attr("search_space")
        self.action_space = NamedSpace(self._space)


class DimensionSpace(gym.spaces.Space[Any]):
    """The legal values of one dimension of a search space: built-in numbers, or categories.

    A sample is a uniform action coordinate, decoded: log-uniform on a logarithmic scale, and
    uniform over the points of a grid. Flattened, a value is one float64 in a `Box`, a category its
    index.
    """

    def __init__(self, dimension: Dimension, seed: int | np.random.Generator | None = None) -> None:
        self.dimension = dimension
        kinds = {"int": np.int64, "float": np.float64, "category": np.str_}
        super().__init__((), kinds[dimension.kind], seed)

    @property
    def is_np_flattenable(self) -> bool:
        return True

    def sample(self, mask: Any = None, probability: Any = None) -> Value:
        """Draw a value as `SearchSpace.sample` does."""
        if mask is not None or probability is not None:
            raise InvalidArgumentError(
                f"`mask` and `probability` must be None for {self.dimension.name!r}, got "
                f"{mask!r} and {probability!r}"
            )
        return self.dimension.decode(self.np_random.uniform(-1.0, 1.0))

    def contains(self, x: Any) -> bool:
        return self.dimension.contains(x)

    def __repr__(self) -> str:
        d = self.dimension
        legal = f"[{d.low}, {d.high}]" if d.values is None else str(list(d.values))
        return f"DimensionSpace({d.name!r}, {legal}{', log' if d.log else ''})"

    def __eq__(self, other: object) -> bool:
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
