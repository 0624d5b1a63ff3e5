"""FedEx as an agent: every sampled client tries an arm, and one policy learns from all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.arms.agent import ArmAgent
from fedhpo_gym.agents.arms.arms import Arms
from fedhpo_gym.agents.arms.feedback import ArmFeedback
from fedhpo_gym.agents.fedex.policy import FedExPolicy, FedExSettings
from fedhpo_gym.agents.problem import SearchProblem


class FedEx(ArmAgent):
    """Khodak et al. (2021) on the rounds of one course; see `FedExPolicy` for what differs.

    Attributes:
        arms: what it chooses from.
        policy: what it has learned.

    Raises:
        InvalidArgumentError: the action space is no (clients, n) box in [-1, 1], or the arms have
            another width.
    """

    def __init__(
        self,
        problem: SearchProblem,
        *,
        arms: Arms | None = None,
        settings: FedExSettings | None = None,
    ) -> None:
        super().__init__(problem, arms=arms)
        self.policy = FedExPolicy(self.arms.sizes, settings)

    def choose(self, rng: np.random.Generator, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.policy.sample(rng, len(clients))

    def likeliest(self) -> NDArray[np.int64]:
        return np.tile(self.policy.mle(), (self.action_space.shape[0], 1))

    def learn(self, feedbacks: Sequence[ArmFeedback]) -> None:
        self.policy.update(feedbacks)

    def policy_state(self) -> dict[str, Any]:
        return self.policy.to_dict()

    def restore_policy(self, state: Mapping[str, Any]) -> None:
        self.policy = FedExPolicy.from_dict(state)
