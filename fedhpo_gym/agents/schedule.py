"""Hand-made schedules: one configuration, whose learning rate falls as practitioners let it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation, SearchProblem
from fedhpo_gym.core.errors import InvalidArgumentError, require_known, unknown_name
from fedhpo_gym.space import SearchSpace

KINDS: Final[Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]]] = {
    "static": np.ones_like,
    "cosine": lambda done: 0.5 * (1.0 + np.cos(math.pi * done)),
    "step": lambda done: np.where(done < 0.5, 1.0, np.where(done < 0.75, 0.1, 0.1**2)),
}
"""Factor of the initial learning rate where a fraction of the rounds is done: fixed; cosine
(Loshchilov and Hutter, 2017, without restarts); a tenth after 1/2 and again after 3/4 (He et al.,
2016)."""


@dataclass(frozen=True)
class Schedule:
    """What to do in a round environment when only the round counts; used as a `Policy` is.

    Attributes:
        space: the environment's `search_space`.
        configuration: values of all its dimensions, at the first round.
        kind: key of `KINDS`.
        name: the dimension that is multiplied; it ends at the edge of its range.
    """

    space: SearchSpace
    configuration: Mapping[str, Any]
    kind: str = "static"
    name: str = "learning_rate"

    def __post_init__(self) -> None:
        require_known("schedule", self.kind, KINDS)
        if self.kind != "static" and self.name not in self.space.names:
            raise unknown_name("dimension", self.name, self.space.names)
        self.space.validate(self.configuration)

    @property
    def action_space(self) -> gym.spaces.Box:
        return gym.spaces.Box(-1.0, 1.0, (len(self.space),), np.float32)

    def act(self, observation: Observation) -> NDArray[np.float32]:
        """Return the action for an observation, or for many: (..., n)."""
        if "remaining_rounds" not in observation:
            raise InvalidArgumentError(
                f"`observation` must have 'remaining_rounds', got {sorted(observation)}; schedules "
                "are for round environments, `FedHPO-DAC-*`."
            )
        done = 1.0 - np.asarray(observation["remaining_rounds"], dtype=np.float64)[..., 0]
        actions = np.empty((*done.shape, len(self.space)), dtype=np.float32)
        for index in np.ndindex(done.shape):
            configuration = dict(self.configuration)
            if self.kind != "static":
                value = configuration[self.name] * float(KINDS[self.kind](done[index]))
                configuration[self.name] = max(value, self.space[self.name].low)
            actions[index] = self.space.encode(configuration)
        return actions


class ScheduleAgent(Agent):
    """Follows a `Schedule`, and learns nothing.

    Args:
        configuration: at the first round; by default the middle of the space.
        kind: key of `KINDS`.
        name: the dimension that is multiplied.
    """

    acts_on = ("round",)
    seeded = False

    def __init__(
        self,
        problem: SearchProblem,
        *,
        configuration: Mapping[str, Any] | None = None,
        kind: str = "cosine",
        name: str = "learning_rate",
    ) -> None:
        super().__init__(problem)
        space = problem.search_space
        chosen = space.decode(np.zeros(len(space))) if configuration is None else configuration
        self.schedule = Schedule(space, chosen, kind, name)

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        return self.schedule.act(observation)
