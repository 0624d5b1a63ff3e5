"""Seeded trajectories of environments, and digests of everything they return.

An id is a promise: what it returns changes only with its version. `tests/data/digests.json` holds
the digests of the promise, made by `python tests/support/record_digests.py`.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

VECTOR_ENVS = 8
CHECKPOINTS = (1, 4, 20, 60, 200)
"""Steps after which the digest of all steps so far is kept."""


@dataclass(frozen=True)
class Trajectory:
    """Which environment is stepped, and how far.

    Attributes:
        id: environment id.
        form: "single", or "vector": `VECTOR_ENVS` environments as one.
        steps: number of steps, a checkpoint.
        kwargs: arguments of `gymnasium.make`.
        trained: whether numbers come from training, which differs between kinds of machines.
    """

    id: str
    form: str
    steps: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    trained: bool = False

    @property
    def name(self) -> str:
        """What names it in test reports."""
        words = [f"{key}={value}" for key, value in self.kwargs.items()]
        return "-".join([self.id, self.form, *words])


@dataclass(frozen=True)
class Digest:
    """What a trajectory returned until a checkpoint.

    Attributes:
        steps: the checkpoint.
        exact: digest of every bit.
        sums: sums of observations and rewards, and the last simulated time, for machines whose
            arithmetic rounds differently.
    """

    steps: int
    exact: str
    sums: tuple[float, ...]


def machine() -> str:
    """Return what decides how this machine rounds: its processor's features and the libraries."""
    import torch

    features = getattr(np._core._multiarray_umath, "__cpu_features__", {})
    present = sorted(name for name, there in features.items() if there)
    words = json.dumps([platform.machine(), present, np.__version__, torch.__version__])
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def digests(trajectory: Trajectory, limit: int | None = None) -> list[Digest]:
    """Step an environment; return the digest of every checkpoint up to a limit."""
    last = min(trajectory.steps, limit or trajectory.steps)
    content, seen, rewarded = hashlib.sha256(), 0.0, 0.0
    found = []
    for number, (observation, reward, flags, info) in enumerate(_steps(trajectory, last), start=1):
        for name in sorted(observation):
            content.update(name.encode())
            content.update(np.ascontiguousarray(observation[name], dtype=np.float32).tobytes())
            seen += float(np.nansum(observation[name], dtype=np.float64))
        content.update(np.ascontiguousarray(reward, dtype=np.float64).tobytes())
        content.update(np.ascontiguousarray(flags, dtype=np.bool_).tobytes())
        numbers = np.array(list(_numbers(info)), dtype=np.float64)
        content.update(numbers.tobytes())
        rewarded += float(np.sum(reward, dtype=np.float64))
        if number in CHECKPOINTS:
            elapsed = float(np.sum(info.get("elapsed_s", 0.0)))
            found.append(Digest(number, content.hexdigest()[:32], (seen, rewarded, elapsed)))
    return found


def _steps(trajectory: Trajectory, number: int) -> Iterator[tuple[Any, Any, Any, Any]]:
    kwargs = dict(trajectory.kwargs)
    if trajectory.form == "vector":
        env: Any = gym.make_vec(trajectory.id, num_envs=VECTOR_ENVS, **kwargs)
    else:
        env = gym.make(trajectory.id, disable_env_checker=True, **kwargs)
    try:
        env.reset(seed=7)
        rng = np.random.default_rng(11)
        space = env.action_space
        over = False
        for _ in range(number):
            if over and trajectory.form == "single":
                env.reset()
            action = rng.uniform(space.low, space.high).astype(np.float32)
            observation, reward, terminated, truncated, info = env.step(action)
            over = bool(np.any(terminated | truncated))
            yield observation, reward, [terminated, truncated], info
    finally:
        env.close()


def _numbers(info: Mapping[str, Any]) -> Iterator[float]:
    """Yield the numbers of an info that say what came out, whatever else it holds."""
    cost, incumbent = info.get("cost", {}), info.get("incumbent", {})
    parts: Sequence[Any] = (
        info.get("elapsed_s", 0.0),
        cost.get("time_s", 0.0),
        cost.get("rounds", 0),
        incumbent.get("val_loss", 0.0),
        [value for name, value in sorted(info.get("objectives", {}).items()) if name[0] != "_"],
        [value for _, value in sorted(info.get("test", {}).items())],
        info.get("penalty", 0.0),
    )
    for part in parts:
        yield from np.asarray(part, dtype=np.float64).ravel().tolist()


def to_json(trajectory: Trajectory, found: Sequence[Digest]) -> dict[str, Any]:
    """Return a trajectory and its digests as plain data."""
    return {**asdict(trajectory), "digests": [asdict(digest) for digest in found]}


def from_json(content: Mapping[str, Any]) -> tuple[Trajectory, list[Digest]]:
    """Return a trajectory and its digests from plain data."""
    known = {key: value for key, value in content.items() if key != "digests"}
    found = [Digest(d["steps"], d["exact"], tuple(d["sums"])) for d in content["digests"]]
    return Trajectory(**known), found
