"""A clone does what was done before it, and what was done is told as it was seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.agents.policy import load_policy, save_policy
from fedhpo_gym.core.errors import InvalidArgumentError

pytest.importorskip("sklearn")
from fedhpo_gym.agents.cloning import clone, demonstrate

ID = "FedHPO-DAC-Quadratic-v1"


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
def test_a_linear_rule_is_recovered(size: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    seen = {"a": rng.uniform(-1, 1, (400, 2)), "b": rng.uniform(-1, 1, (400, 1))}
    rule = rng.uniform(-0.25, 0.25, (3, size))
    actions = np.concatenate([seen["a"], seen["b"]], axis=1) @ rule + 0.1
    settings = {"solver": "lbfgs", "alpha": 0.0, "tol": 1e-10}
    policy = clone(seen, actions, seed=0, layers=(), settings=settings)
    np.testing.assert_allclose(policy.act(seen), actions, atol=1e-4)
    small = [clone(seen, actions, seed=seed, layers=(4,)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(small[0].weights[0], small[1].weights[0])
    assert not np.array_equal(small[0].weights[0], small[2].weights[0])
    save_policy(small[0], tmp_path)
    np.testing.assert_array_equal(load_policy(tmp_path).act(seen), small[0].act(seen))


def test_demonstrations_are_the_episodes_themselves() -> None:
    rng = np.random.default_rng(0)
    sequences = rng.uniform(-0.3, 0.3, (3, 40, 2)).astype(np.float32)
    instances = [5, 40, 90]
    seen, said = demonstrate(ID, instances, sequences)
    pairs = {
        tuple(np.concatenate([*(seen[name][row] for name in sorted(seen)), said[row]]).tolist())
        for row in range(len(said))
    }
    expected = set()
    env: Any = gym.make(ID)
    for index, sequence in zip(instances, sequences, strict=True):
        shown, _ = env.reset(options={"instance": index})
        ended, step = False, 0
        while not ended:
            action = sequence[step]
            row = np.concatenate([*(shown[name] for name in sorted(shown)), action])
            expected.add(tuple(row.tolist()))
            shown, _, ended, _, _ = env.step(action)
            step += 1
    assert pairs == expected
    assert len(said) == len(pairs) > 60
    # With noise, what is done differs from what is said.
    seen, said = demonstrate(ID, instances, sequences, noise=0.1)
    np.testing.assert_array_equal(said[:3], sequences[:, 0])
    apart = seen["last_action"][3:6] - said[:3]
    assert 0.01 < np.abs(apart).min() < np.abs(apart).max() < 0.4
    with pytest.raises(InvalidArgumentError, match="until episodes end, got 2 actions"):
        demonstrate(ID, instances, sequences[:, :2])
