"""A tiny environment with a simulated clock; records of it, and records changed on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.analysis import Header, RunRecord, StepRecord
from fedhpo_gym.records.record import seal_lines
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.studies.environments import make_environment
from fedhpo_gym.tasks import get_task

ID = "FedHPO-LR-CreditG-v1"
BEST = {"learning_rate": 0.25, "weight_decay": -0.5}


class FakeEnv(gym.Env[Any, Any]):
    """Loss = squared distance to `BEST` + 0.1; a trial costs its rounds, in seconds."""

    metadata = {"render_modes": []}  # noqa: RUF012 - gymnasium's own form
    bias = 0.0  # tests plant faults here
    fingerprint = "f" * 64

    def __init__(
        self,
        backend: str = "tabular",
        fidelity: Mapping[str, float] | None = None,
        budget_s: float = 4000.0,
        vector: bool = False,
    ) -> None:
        self.backend, self.budget_s, self.vector = backend, budget_s, vector
        space = get_task("LR-CreditG-v0").fidelity_space
        # An agent that chooses rounds gets them in the place of the weight decay.
        free = fidelity is not None and "round" not in fidelity
        second = space["round"] if free else Dimension("weight_decay", -1.0, 1.0, "float")
        self.search_space = SearchSpace((Dimension("learning_rate", -1.0, 1.0, "float"), second))
        self.fidelity_space = space
        self.vector_reward = vector
        self.fidelity = {"round": 500, "client_sample_rate": 1.0, **(fidelity or {})}
        self.action_space = gym.spaces.Box(-1.0, 1.0, (len(BEST),), np.float32)
        self.observation_space = gym.spaces.Dict(
            {"left": gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)}
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.elapsed_s, self.trial = 0.0, 0
        self.incumbent: dict[str, Any] = {"val_loss": np.inf}
        info = {"task": "LR-CreditG", "backend": self.backend, "fingerprint": self.fingerprint}
        return self._observation(), info

    def describe(self) -> dict[str, Any]:
        return {"objective_names": ["val_loss", "accuracy_std"]}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        configuration = dict(zip(BEST, map(float, action), strict=True))
        squares = [(configuration[name] - best) ** 2 for name, best in BEST.items()]
        loss = 0.1 + sum(squares) + self.bias
        noise = float(self.np_random.uniform(0.0, 0.01))
        rounds = int(self.fidelity["round"])
        self.trial += 1
        self.elapsed_s += rounds * 1.1
        if loss < self.incumbent["val_loss"]:
            self.incumbent = {
                "configuration": configuration,
                "fidelity": dict(self.fidelity),
                "val_loss": loss,
                "trial": self.trial,
            }
        info = {
            "configuration": configuration,
            "fidelity": dict(self.fidelity),
            "objectives": {"val_loss": loss, "accuracy_std": 0.1},
            "cost": {"time_s": rounds * 1.1, "rounds": rounds},
            "elapsed_s": self.elapsed_s,
            "trial": self.trial,
            "incumbent": dict(self.incumbent),
            "test": {"loss": loss + noise, "accuracy": 1.0 / (1.0 + loss), "f1": 0.5},
        }
        reward = np.array([-loss, -0.1], dtype=np.float32) if self.vector else -loss
        return self._observation(), reward, self.elapsed_s >= self.budget_s, False, info

    def _observation(self) -> dict[str, NDArray[np.float32]]:
        left = 1.0 - self.elapsed_s / self.budget_s
        return {"left": np.array([left], dtype=np.float32)}


@pytest.fixture(autouse=True)
def fake_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the fake in the place of one problem, for every test of a module that imports this."""
    register(monkeypatch, ID)
    register(monkeypatch, f"MO-{ID}", {"vector": True})


def register(
    monkeypatch: pytest.MonkeyPatch, env_id: str, kwargs: dict[str, Any] | None = None
) -> None:
    spec = EnvSpec(id=env_id, entry_point="fake_study:FakeEnv", kwargs=kwargs or {})
    monkeypatch.setitem(gym.registry, env_id, spec)


def make_record(env_id: str = ID, seed: int = 3, agent: str = "random", **kwargs: Any) -> RunRecord:
    """Return the record of a run."""
    env = make_environment(env_id, kwargs)
    assert env.spec is not None
    _, info = env.reset(seed=seed)
    spec = json.loads(env.spec.to_json())
    header = Header("1.2.3", env_id, spec, agent, seed, info["fingerprint"])
    steps = [
        StepRecord.from_step(step.action, step.reward, step.terminated, step.truncated, step.info)
        for step in run_episode(env, make_agent(agent, env, seed), seed)
    ]
    return RunRecord(header, tuple(steps))


def contents(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a record without their digests."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in line.items() if name != "digest"} for line in lines]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Write lines with digests that fit: what is wrong is what was changed."""
    plain = [json.dumps(line).encode("utf-8") for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in seal_lines(plain)))


def edit(path: Path, line: int, change: Callable[[dict[str, Any]], object]) -> None:
    """Change one line, counted from 1."""
    lines = contents(path)
    change(lines[line - 1])
    write_lines(path, lines)
