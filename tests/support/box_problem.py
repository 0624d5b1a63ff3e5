"""What an agent is to solve, from an action space alone, and a bowl to solve it on."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents import SearchProblem
from fedhpo_gym.agents.base import Process, Step
from fedhpo_gym.space import Dimension, SearchSpace

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
