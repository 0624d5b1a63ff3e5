"""FedEx as an agent: every sampled client tries an arm, and one policy learns from all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.arms import Arms, random_arms
from fedhpo_gym.agents.base import Agent, Observation
from fedhpo_gym.agents.client_rounds import check_unit_rows, collect_feedback, sampled_clients
from fedhpo_gym.agents.fedex_policy import FedExPolicy, FedExSettings
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.seeding import stream

DEFAULT_ARMS: Final = 27
"""Number of arms in Khodak et al. (2021) and in FedHPO-Bench, Section 4.2."""


class FedEx(Agent):
    """Khodak et al. (2021) on the rounds of one course; see `FedExPolicy` for what differs.

    Rows of clients that are not sampled hold the likeliest arm; the environment ignores them.
    A course in which no client can report (see `collect_feedback`) teaches it nothing.

    Attributes:
        arms: what it chooses from; by default 27 draws from the prior.
        policy: what it has learned.

    Raises:
        InvalidArgumentError: the action space is no (clients, n) box in [-1, 1], or the arms have
            another width.
    """

    per_client = True

    def __init__(
        self,
        action_space: gym.Space[Any],
        seed: int,
        arms: Arms | None = None,
        settings: FedExSettings | None = None,
    ) -> None:
        super().__init__(action_space, seed)
        width = check_unit_rows(self.action_space)
        self._rng = stream(seed, "fedex")
        self.arms = arms or random_arms(width, DEFAULT_ARMS, stream(seed, "fedex_arms"))
        if self.arms.width != width:
            raise InvalidArgumentError(
                f"`arms` must have {width} coordinates, as the action space, got {self.arms.width}."
            )
        self.policy = FedExPolicy(self.arms.sizes, settings)
        self._clients = np.empty(0, dtype=np.int64)
        self._played = np.empty((0, len(self.arms.sizes)), dtype=np.int64)

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        self._clients = sampled_clients(observation)
        self._played = self.policy.sample(self._rng, len(self._clients))
        action = np.tile(self.best_action(), (self.action_space.shape[0], 1))
        action[self._clients] = self.arms.actions(self._played)
        return action

    def tell(
        self,
        action: NDArray[np.float32],
        reward: float,
        observation: Observation,
        terminated: bool,
        info: Mapping[str, Any],
    ) -> None:
        if feedbacks := collect_feedback(self._clients, self._played, info):
            self.policy.update(feedbacks)

    def best_action(self) -> NDArray[np.float32]:
        """Return the likeliest arm as an action of one client: (n,)."""
        return self.arms.actions(self.policy.mle())
