"""What an agent is to solve, from an action space alone."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from fedhpo_gym.agents import SearchProblem
from fedhpo_gym.agents.base import Process
from fedhpo_gym.space import Dimension, SearchSpace


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
