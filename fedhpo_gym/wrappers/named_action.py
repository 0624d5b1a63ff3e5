"""Actions as dictionaries in natural units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from fedhpo_gym.space import Dimension


class Choice(gym.spaces.Space[Any]):
    """A finite ordered set of numbers.

    Attributes:
        values: the members.
    """

    def __init__(self, values: tuple[float, ...], seed: int | None = None) -> None:
        """Create the set."""
        self.values = values
        super().__init__((), np.asarray(values).dtype, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Members are single numbers."""
        return True

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Draw a member uniformly."""
        del mask, probability
        return self.values[int(self.np_random.integers(len(self.values)))]

    def contains(self, x: Any) -> bool:
        """Return whether a number is a member."""
        return any(x == value for value in self.values)

    def __repr__(self) -> str:
        """Show the members."""
        return f"Choice{self.values}"

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same set."""
        return isinstance(other, Choice) and self.values == other.values

    __hash__ = None  # type: ignore[assignment]


class NamedAction(gym.ActionWrapper[Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Takes `{"learning_rate": 0.01, "batch_size": 64, ..., "round": 81}` as action.

    A value off a grid, out of range or missing is an error; nothing is rounded. Floats of an
    interval pass through the action codec and come out with its relative error of about 1e-7.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wrap an environment whose action is a vector of coordinates."""
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.ActionWrapper.__init__(self, env)
        self._follow_search_space()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset; a backend exchanged outside this wrapper may have brought another space."""
        if self.env.get_wrapper_attr("search_space") != self._space:
            self._follow_search_space()
        return self.env.reset(seed=seed, options=options)

    def action(self, action: Mapping[str, Any]) -> Any:
        """Encode a dictionary as coordinates.

        Raises:
            InvalidArgumentError: a name is missing or unknown, or a value is out of range.
            OffGridError: a value is not on the grid.
        """
        plain = {name: np.asarray(value).item() for name, value in action.items()}
        return self._space.encode(plain)

    def _follow_search_space(self) -> None:
        self._space = self.env.get_wrapper_attr("search_space")
        self.action_space = gym.spaces.Dict({d.name: _space(d) for d in self._space.dimensions})


def _space(dimension: Dimension) -> gym.spaces.Space[Any]:
    if dimension.values is not None:
        return Choice(dimension.values)
    if dimension.kind == "int":
        low, high = int(dimension.low), int(dimension.high)
        return gym.spaces.Discrete(high - low + 1, start=low)
    return gym.spaces.Box(dimension.low, dimension.high, (), np.float64)
