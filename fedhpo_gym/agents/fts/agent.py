"""Federated Thompson sampling as an agent: one search per client, all inside one course."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.arms.reports import (
    check_unit_rows,
    collect_feedback,
    sampled_clients,
)
from fedhpo_gym.agents.base import Agent, Observation
from fedhpo_gym.agents.fts.policy import FederatedThompson, FTSSettings
from fedhpo_gym.agents.problem import SearchProblem


class FTS(Agent):
    """Dai et al. (2020) on the rounds of one course; see `FederatedThompson` for what differs.

    A client's objective is by how much its local training lowered its own validation loss: losses
    themselves fall as the course goes on, whatever is tried.

    Attributes:
        policy: the clients' optimizers.

    Raises:
        InvalidArgumentError: the action space is no (clients, n) box in [-1, 1].
    """

    acts_on = ("round",)
    per_client = True

    def __init__(self, problem: SearchProblem, *, settings: FTSSettings | None = None) -> None:
        super().__init__(problem)
        width = check_unit_rows(self.action_space)
        self.policy = FederatedThompson(self.action_space.shape[0], width, self.seed, settings)
        self._clients = np.empty(0, dtype=np.int64)

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        self._clients = sampled_clients(observation)
        action = np.zeros(self.action_space.shape, dtype=np.float32)
        for client in self._clients:
            action[client] = 2.0 * self.policy.suggest(int(client)) - 1.0
        return action

    def tell(
        self,
        action: NDArray[np.float32],
        reward: float,
        observation: Observation,
        terminated: bool,
        info: Mapping[str, Any],
    ) -> None:
        no_arms = np.empty((len(self._clients), 0), dtype=np.int64)
        for feedback in collect_feedback(self._clients, no_arms, info):
            point = (action[feedback.client].astype(np.float64) + 1.0) / 2.0
            self.policy.observe(feedback.client, point, feedback.before - feedback.after)

    def _state(self) -> dict[str, Any]:
        return self.policy.to_dict()

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.policy = type(self.policy).from_dict(state)
