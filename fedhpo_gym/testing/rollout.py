"""Rollouts in a form that can be compared, printed, and hashed."""
# ruff: noqa: S101 - asserting is what a law does

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from fedhpo_gym.core.checks import validate_call


@validate_call
def rollout(env: gym.Env[Any, Any], seed: int = 0, steps: int = 4) -> list[Any]:
    """Return all that `reset` and seeded random steps of an environment return, as plain data.

    The environment is reset again when an episode ends.
    """
    trace = [plain(env.reset(seed=seed))]
    env.action_space.seed(seed)
    return trace + go_on(env, steps)


def go_on(env: gym.Env[Any, Any], steps: int) -> list[Any]:
    """Return the results of further random actions, as plain data."""
    trace = []
    for _ in range(steps):
        outcome = env.step(env.action_space.sample())
        trace.append(plain(outcome))
        if outcome[2] or outcome[3]:
            trace.append(plain(env.reset()))
    return trace


@validate_call
def plain(value: Any) -> Any:
    """Return nested built-in data, equal only where types, shapes and orders are, too."""
    if isinstance(value, Mapping):
        return [[str(key), plain(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), list(value.shape), value.tolist()]
    return value


def in_another_process(script: str, argument: object) -> Any:
    """Run a script on an argument under another hash seed, and return its output; both are JSON."""
    process = subprocess.run(  # noqa: S603 - this interpreter, our own code
        [sys.executable, "-c", script, json.dumps(argument)],
        env={**os.environ, "PYTHONHASHSEED": "271828", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)
