"""Steps without end on every backend and vector form: what a process holds must not grow."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np

from attacks.verdicts import Tally, judged

GROWTH_MB = 32.0
WIDE = 256
_ROUNDS: Mapping[str, Any] = MappingProxyType({"horizon": 20, "rounds_per_step": 1})
_ENVIRONMENTS: Mapping[str, tuple[str, int, Mapping[str, Any], float]] = MappingProxyType(
    {
        "tabular": ("FedHPO-LR-CreditG-v0", 0, {"backend": "tabular"}, 0.08),
        "surrogate": ("FedHPO-LR-CreditG-v1", 0, {"backend": "surrogate"}, 0.04),
        "raw": ("FedHPO-LR-BreastCancer-v0", 0, {"backend": "raw", "fidelity": {"round": 1}}, 5e-4),
        "vector reward": ("MO-FedHPO-LR-CreditG-v0", 0, {}, 0.02),
        "tabular, vector": ("FedHPO-LR-CreditG-v0", WIDE, {"backend": "tabular"}, 0.70),
        "surrogate, vector": ("FedHPO-LR-CreditG-v1", WIDE, {"backend": "surrogate"}, 0.15),
        "raw, vector": ("FedHPO-LR-BreastCancer-v0", 4,
                        {"backend": "raw", "fidelity": {"round": 1}}, 5e-4),
        "rounds": ("FedHPO-DAC-LR-BreastCancer-v0", 0, _ROUNDS, 4e-3),
        "rounds, vector": ("FedHPO-DAC-LR-BreastCancer-v0", 16, _ROUNDS, 5e-3),
    }
)  # fmt: skip
"""Id, number of environments (0: one alone), arguments, share of the steps."""


def soaked() -> tuple[str, ...]:
    """Return the names of what is soaked."""
    return tuple(_ENVIRONMENTS)


def held() -> tuple[float, int, int]:
    """Return resident MB, open files and threads of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as short as it gets
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, files, threading.active_count()


def soak(name: str, steps: int) -> tuple[Tally, list[str]]:
    """Take a share of the steps; return the verdict and what was held before and after."""
    env_id, wide, arguments, share = _ENVIRONMENTS[name]
    count = max(2 * max(1, wide), int(steps * share))
    tally, told = Tally(f"soak: {name}"), list[str]()

    def attempt() -> str:
        made: Any = (
            gym.make_vec(env_id, num_envs=wide, **arguments)
            if wide
            else gym.make(env_id, disable_env_checker=True, **arguments)
        )
        step = _vector_steps(made) if wide else _single_steps(made)
        step(count // 4 + 1)
        before = held()
        step(count)
        after = held()
        made.close()
        told[:] = [f"{b:.0f} → {a:.0f}" for b, a in zip(before, after, strict=True)]
        if after[0] - before[0] > GROWTH_MB:
            return "memory"
        return "lost" if after[1:] > before[1:] else "fine"

    kind, said = judged(attempt)
    tally.add(kind, name, f"{said} {told}")
    return tally, [name, f"{count:,}", *(told or ["-"] * 3)]


def _single_steps(env: Any) -> Callable[[int], None]:
    env.reset(seed=0)
    env.action_space.seed(0)

    def step(count: int) -> None:
        for _ in range(count):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()

    return step


def _vector_steps(envs: Any) -> Callable[[int], None]:
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [np.array(envs.action_space.sample()) for _ in range(32)]

    def step(count: int) -> None:
        for number in range(-(-count // envs.num_envs)):
            envs.step(actions[number % len(actions)])

    return step
