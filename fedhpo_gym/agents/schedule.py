"""Hand-made schedules: one configuration whose learning rate decays, as practitioners use it."""

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

Done = NDArray[np.float64]
Factor = Callable[[Done], Done]


def _cosine(done: Done) -> Done:
    return 0.5 * (1.0 + np.cos(math.pi * done))


KINDS: Final[Mapping[str, Mapping[str, Factor]]] = {
    "static": {},
    "cosine": {"learning_rate": _cosine},
    "step": {
        "learning_rate": lambda done: np.where(done < 0.5, 1.0, np.where(done < 0.75, 0.1, 0.1**2))
    },
    "exponential": {"learning_rate": lambda done: 0.01**done},
    "warm-up": {"learning_rate": lambda done: np.minimum(1.0, 0.1 + 9.0 * done) * _cosine(done)},
    "decaying epochs": {"step_size": lambda done: 1.0 - done},
    "growing participation": {"client_sample_rate": lambda done: 0.2 + 0.8 * done},
}
"""Factors of initial values where a fraction of a course is done, by kind and dimension: fixed;
cosine (Loshchilov and Hutter, 2017, without restarts); a tenth after 1/2 and again after 3/4 (He et
al., 2016); a hundredth at the end; cosine after a tenth of the rounds that warm up (Goyal et al.,
2017); ever fewer local epochs; ever more clients."""


@dataclass(frozen=True)
class Schedule:
    """An action as a function of the done share of a course; used as a `Policy` is.

    Attributes:
        space: the environment's `search_space`.
        configuration: values of all its dimensions, at first.
        kind: key of `KINDS`.
        name: dimension that is multiplied instead of the learning rate.

    Values end at the edges of their ranges.
    """

    space: SearchSpace
    configuration: Mapping[str, Any]
    kind: str = "static"
    name: str = "learning_rate"

    def __post_init__(self) -> None:
        require_known("schedule", self.kind, KINDS)
        for name in self.factors:
            if name not in self.space.names:
                raise unknown_name("dimension", name, self.space.names)
        self.space.validate(self.configuration)

    @property
    def factors(self) -> Mapping[str, Factor]:
        """Factors of values by dimension, of the fraction of a course that is done."""
        factors = KINDS[self.kind].items()
        return {self.name if name == "learning_rate" else name: factor for name, factor in factors}

    def at(self, done: float) -> NDArray[np.float32]:
        """Return the (n,) action where a fraction of a course is done."""
        values = dict(self.configuration)
        for name, factor in self.factors.items():
            dimension = self.space[name]
            value = max(values[name] * float(factor(np.array(done))), dimension.low)
            values[name] = round(value) if dimension.kind == "int" else value
        return self.space.encode(values).astype(np.float32)

    @property
    def action_space(self) -> gym.spaces.Box:
        return gym.spaces.Box(-1.0, 1.0, (len(self.space),), np.float32)

    def act(self, observation: Observation) -> NDArray[np.float32]:
        """Return the action for an observation, or for many: (..., n).

        Done is the larger part of the rounds and of the budget, as an episode ends with either.
        """
        if "remaining_rounds" not in observation:
            raise InvalidArgumentError(
                f"`observation` must have 'remaining_rounds', got {sorted(observation)}; schedules "
                "are for round environments, `FedHPO-DAC-*`."
            )
        rounds = np.asarray(observation["remaining_rounds"], dtype=np.float64)
        done = 1.0 - np.minimum(rounds, observation.get("remaining_budget", 1.0))[..., 0]
        actions = np.array([self.at(share) for share in done.ravel().tolist()], dtype=np.float32)
        return actions.reshape(*done.shape, len(self.space))


class ScheduleAgent(Agent):
    """Follows a `Schedule`, and learns nothing.

    Args:
        configuration: at first; by default the middle of the space.
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
        values = space.decode(np.zeros(len(space))) if configuration is None else configuration
        self.schedule = Schedule(space, values, kind, name)

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        return self.schedule.act(observation)
