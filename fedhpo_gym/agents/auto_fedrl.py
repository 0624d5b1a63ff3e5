"""Auto-FedRL: a distribution of hyperparameters, moved by policy gradients while a course runs.

Guo, Yang, Hatamizadeh, Xu, Xu, Li, Zhao, Xu, Harmon, Turkbey, Turkbey, Wood, Patella, Stellato,
Carrafiello, Patel, Roth, "Auto-FedRL: federated hyperparameter optimization for multi-institutional
medical image segmentation", ECCV 2022, Section 3.2 (continuous search).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation, SearchProblem, Step
from fedhpo_gym.agents.clients import Positive
from fedhpo_gym.core.checks import Range, check_fields
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream


@dataclass(frozen=True)
class AutoFedRLSettings:
    """How the distribution learns.

    Attributes:
        width: standard deviation at the start, in [-1, 1].
        narrowest: smallest standard deviation.
        window: steps whose rewards are compared, Z.
        rate: step of the policy gradient.
    """

    width: Positive = 0.5
    narrowest: Positive = 0.05
    window: Annotated[int, Range(2)] = 5
    rate: Positive = 0.1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.narrowest > self.width:
            raise InvalidArgumentError(f"`narrowest` must be at most `width`, got {self}.")


class AutoFedRL(Agent):
    """Draws the hyperparameters of a step from a normal distribution, and reinforces good ones.

    Differs from the paper: the reward is the environment's, by default the fall of the validation
    loss in decades minus a price of time; rewards are divided by their standard deviation in the
    window; the covariance is diagonal. Draws are clipped to the box.

    Args:
        settings: how it learns.
        configuration: the mean that it begins with; the middle of the space where it says nothing.
    """

    acts_on = ("round",)
    rewards = "scalar"

    def __init__(
        self,
        problem: SearchProblem,
        *,
        settings: AutoFedRLSettings | None = None,
        configuration: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(problem)
        self._settings = settings or AutoFedRLSettings()
        self._rng = stream(self.seed, "auto_fedrl")
        self.mean = np.zeros(self.action_space.shape)
        if configuration is not None:
            space = problem.search_space
            middle = space.decode(self.mean)
            self.mean = space.encode({**middle, **configuration}).astype(np.float64)
        self.deviation = np.full(self.action_space.shape, self._settings.width)
        self._past: list[tuple[list[float], float]] = []

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        draw = self.mean + self.deviation * self._rng.standard_normal(len(self.mean))
        box = self.action_space
        return np.clip(draw, box.low, box.high).astype(np.float32)

    def tell(self, step: Step) -> None:
        if not np.isfinite(step.reward):
            return
        self._past = [*self._past, (step.action.tolist(), float(step.reward))][
            -self._settings.window :
        ]
        if len(self._past) < 2:
            return
        # One step along the gradient of the mean reward in the window (Eq. 5).
        points = np.array([point for point, _ in self._past])
        rewards = np.array([reward for _, reward in self._past])
        advantage = (rewards - rewards.mean()) / (rewards.std() or 1.0)
        z = (points - self.mean) / self.deviation
        # Natural gradients of a normal distribution: the step does not blow up where it is narrow.
        mean_gradient = (advantage[:, None] * z).mean(axis=0) * self.deviation
        log_gradient = (advantage[:, None] * (z**2 - 1.0)).mean(axis=0) / 2.0
        rate, box = self._settings.rate, self.action_space
        self.mean = np.clip(self.mean + rate * mean_gradient, box.low, box.high)
        widest = self._settings.width
        deviation = self.deviation * np.exp(np.clip(rate * log_gradient, -1.0, 1.0))
        self.deviation = np.clip(deviation, self._settings.narrowest, widest)

    def _state(self) -> dict[str, Any]:
        return {
            "rng": self._rng.bit_generator.state,
            "mean": self.mean.tolist(),
            "deviation": self.deviation.tolist(),
            "past": [[point, reward] for point, reward in self._past],
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self.mean = np.array(state["mean"], dtype=np.float64)
        self.deviation = np.array(state["deviation"], dtype=np.float64)
        self._past = [(list(point), float(reward)) for point, reward in state["past"]]
