"""Agents that give every sampled client a point of its own, and learn from what clients report."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.arms.feedback import ArmFeedback
from fedhpo_gym.agents.arms.reports import check_unit_rows, collect_feedback, sampled_clients
from fedhpo_gym.agents.base import Agent, Observation
from fedhpo_gym.agents.problem import SearchProblem

Point = NDArray[np.float64]


class PointAgent(Agent):
    """Chooses a point in [-1, 1]^n for each client that trains; others get the middle.

    Args:
        problem: its actions are (clients, n) in [-1, 1].

    Raises:
        InvalidArgumentError: the action space is another.
    """

    acts_on = ("round",)
    per_client = True

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        self.width = check_unit_rows(self.action_space)
        self._clients = np.empty(0, dtype=np.int64)

    @abstractmethod
    def choose(self, clients: NDArray[np.int64]) -> Point:
        """Return (k, n) points of k clients."""

    @abstractmethod
    def learn(self, points: Point, feedbacks: Sequence[ArmFeedback]) -> None:
        """Learn from the reports of at least one client; `points` are (clients, n)."""

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        self._clients = sampled_clients(observation)
        action = np.zeros(self.action_space.shape, dtype=np.float32)
        if len(self._clients):
            action[self._clients] = self.choose(self._clients)
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
        if feedbacks := collect_feedback(self._clients, no_arms, info):
            self.learn(np.asarray(action, dtype=np.float64), feedbacks)
