"""Problems for agents: of an action space alone, and round environments that are a formula."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents import SearchProblem
from fedhpo_gym.agents.base import Process, Step
from fedhpo_gym.space import Dimension, SearchSpace

Observation = dict[str, NDArray[Any]]
TARGET = np.array([0.3, -0.6, 0.1])
BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
ROUNDS = Dimension("round", 1, 27, "int")
LADDER_BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)


def box_problem(
    box: gym.Space[Any], seed: int = 0, *fidelities: Dimension, process: Process = "trial"
) -> SearchProblem:
    """Return a problem whose last coordinates are the fidelities; rows are rounds of clients."""
    shape = box.shape or (1,)
    others = (Dimension(f"x{i}", -1.0, 1.0, "float") for i in range(shape[-1] - len(fidelities)))
    return SearchProblem(
        action_space=box,
        search_space=SearchSpace((*others, *fidelities)),
        fidelities=SearchSpace(fidelities),
        seed=seed,
        process="round" if len(shape) == 2 else process,
    )


def play(agent: Any, number: int, score: Any) -> list[tuple[NDArray[np.float32], Any]]:
    """Return actions and scores of trials."""
    found = []
    for _ in range(number):
        action = agent.ask({})
        found.append((action, score(action)))
        agent.tell(Step(action, found[-1][1]))
    return found


def bowl(action: NDArray[Any]) -> float:
    return -float(((action[:3] - TARGET) ** 2).sum())


class BowlClients(gym.Env[Observation, NDArray[np.float32]]):
    """Client c's loss falls, in one step, to |action_c - optimum_c|^2 + 0.1.

    Args:
        optima: (clients, n) the best action of each client.
        sampled: how many clients train per step.
        steps: length of an episode.
    """

    step_kind = "round"

    def __init__(self, optima: NDArray[np.float64], sampled: int, steps: int) -> None:
        self.optima = optima
        self.steps = steps
        self.count = sampled
        self.action_space = gym.spaces.Box(-1, 1, optima.shape, np.float32)
        shape = (len(optima),)
        self.observation_space = gym.spaces.Dict(
            {"sampled": gym.spaces.Box(0, 1, shape), "remaining_rounds": gym.spaces.Box(0, 1, (1,))}
        )
        self.search_space = SearchSpace(
            tuple(Dimension(f"x{i}", -1.0, 1.0, "float") for i in range(optima.shape[1]))
        )
        self.played: list[NDArray[np.float64]] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.played = []
        return self._observe(), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space
        losses = ((action - self.optima) ** 2).sum(axis=1) + 0.1
        self.played.append(losses[self.mask])
        info = {
            "val_loss_before": np.where(self.mask, 3.0, 0.0),
            "val_loss_after": np.where(self.mask, losses, 0.0),
            "num_val_samples": np.arange(1, len(losses) + 1),
        }
        mean = float(losses[self.mask].mean())
        over = len(self.played) >= self.steps
        return self._observe(), -mean, over, False, info

    def _observe(self) -> Observation:
        self.mask = np.zeros(len(self.optima), dtype=bool)
        self.mask[self.np_random.permutation(len(self.optima))[: self.count]] = True
        left = 1.0 - len(self.played) / self.steps
        return {
            "sampled": self.mask.astype(np.float32),
            "remaining_rounds": np.array([left], np.float32),
        }
