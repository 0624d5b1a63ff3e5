"""A vector of environments of many tasks is, bit for bit, its environments side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np


def check_vector(env_id: str, arguments: Mapping[str, Any]) -> None:
    """Compare three episodes and more, autoresets included."""
    vector: Any = gym.make_vec(env_id, num_envs=3, autoreset_mode="SameStep", **arguments)
    alone = [gym.make(env_id, disable_env_checker=True, **arguments) for _ in range(3)]
    seen, infos = vector.reset(seed=4)
    firsts = [env.reset(seed=4 + i) for i, env in enumerate(alone)]
    assert infos["task"].tolist() == [info["task"] for _, info in firsts]
    vector.action_space.seed(0)
    for step in range(17):
        for i, (own, _) in enumerate(firsts):
            for name, value in own.items():
                np.testing.assert_array_equal(seen[name][i], value, err_msg=f"{name} {step}")
        given = vector.action_space.sample()
        seen, rewards, over, _, told = vector.step(given)
        outcomes = [env.step(action) for env, action in zip(alone, given, strict=True)]
        np.testing.assert_array_equal(rewards, [one[1] for one in outcomes])
        assert over.tolist() == [one[2] for one in outcomes]
        if over.any():  # all together
            last, told = told["final_obs"], told["final_info"]
            for i, (own, *_) in enumerate(outcomes):
                for name, value in own.items():
                    np.testing.assert_array_equal(last[i][name], value, err_msg=f"{name} {step}")
        for name in ("score", "elapsed_s"):
            assert told[name].tolist() == [one[4][name] for one in outcomes]
        firsts = [
            env.reset() if one[2] else (one[0], {})
            for env, one in zip(alone, outcomes, strict=True)
        ]
