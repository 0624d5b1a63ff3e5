"""Whether anybody beats the truth of an id: random queries, and an evolution strategy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.seeding import stream

TOLERANCE = 1e-4
"""Share of the scale, from the optimum to the reference, by which a truth may be beaten."""
STARTS, OFFSPRING, ROUNDS = 20, 25, 100


def lowest_regret(env_id: str, queries: int = 100_000, **arguments: Any) -> float:
    """Return the lowest regret at full fidelity that queries find, over the truth's scale.

    Half of the queries are random, the others those of evolution strategies from the best of them,
    whose steps grow where offspring are better and shrink where they are not (Rechenberg, 1973).

    Args:
        env_id: of trials that stored numbers answer.
        queries: how many are asked.
        arguments: further arguments of `gymnasium.make`.

    Returns:
        A number below `-TOLERANCE` where the truth is wrong; 0 is the truth's optimum.

    Raises:
        InvalidArgumentError: nobody knows the truth.
    """
    env = gym.make(env_id, disable_env_checker=True, **arguments)
    env.reset(seed=0)
    truth, rng = env.get_wrapper_attr("full_truth"), stream(1, "lowest_regret")
    size = len(truth.search_space)

    def regret(actions: NDArray[np.float64]) -> NDArray[np.float64]:
        parts = np.array_split(actions, -(-len(actions) // 4096))
        return np.concatenate([truth.regret_of(part) for part in parts])

    drawn = rng.uniform(-1.0, 1.0, (queries // 2, size))
    found = regret(drawn)
    lowest, best = float(found.min()), np.argsort(found, kind="stable")[:STARTS]
    places, values, steps = drawn[best], found[best], np.full((len(best), 1), 0.2)
    for _ in range(max(queries // 2 // (STARTS * OFFSPRING), 1)):
        moved = places[:, None] + rng.normal(size=(len(best), OFFSPRING, size)) * steps[:, None]
        moved = np.clip(moved, -1.0, 1.0)
        answers = regret(moved.reshape(-1, size)).reshape(len(best), OFFSPRING)
        chosen, each = answers.argmin(axis=1), np.arange(len(best))
        better = answers[each, chosen] < values
        places = np.where(better[:, None], moved[each, chosen], places)
        values = np.where(better, answers[each, chosen], values)
        success = (answers < values[:, None] + 1e-15).mean(axis=1, keepdims=True)
        steps = np.clip(steps * np.where(success > 0.2, 1.5, 0.85), 1e-5, 1.0)
        lowest = min(lowest, float(values.min()))
    return lowest / float(truth.scale)
