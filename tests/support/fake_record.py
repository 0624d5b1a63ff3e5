"""The record of a run of random search in the made-up environment."""

from __future__ import annotations

import json
from typing import Any

from fake_env import ID
from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.analysis import Header, RunRecord, StepRecord
from fedhpo_gym.studies.environments import make_environment


def make_record(env_id: str = ID, seed: int = 3, **kwargs: Any) -> RunRecord:
    env = make_environment(env_id, kwargs)
    assert env.spec is not None
    _, info = env.reset(seed=seed)
    spec = json.loads(env.spec.to_json())
    header = Header("1.2.3", env_id, spec, "random", seed, info["fingerprint"])
    steps = [
        StepRecord.from_step(step.action, step.reward, step.terminated, step.truncated, step.info)
        for step in run_episode(env, make_agent("random", env, seed), seed)
    ]
    return RunRecord(header, tuple(steps))
