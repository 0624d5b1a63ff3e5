"""Noisy evaluations between rounds: without noise nothing changes, N courses are N single ones."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.testing.rollout import plain

pytestmark = pytest.mark.raw

ID = "FedHPO-DAC-LR-BreastCancer-v0"
SHORT: dict[str, Any] = {"instances": [[0.7, 100]], "rounds_per_step": 1, "horizon": 3}
N = 2


def single(seed: int, **arguments: Any) -> list[Any]:
    env = gym.make(ID, disable_env_checker=True, **{**SHORT, **arguments})
    seen, _ = env.reset(seed=seed)
    found = [plain(dict(sorted(seen.items())))]
    env.action_space.seed(0)
    for _ in range(3):
        seen, reward, over, _, info = env.step(env.action_space.sample())
        found.append([plain(dict(sorted(seen.items()))), plain(reward), over, info])
    return found


def test_no_noise_is_the_environment_without_it() -> None:
    plainly, quietly = single(0), single(0, noise={"bias": 2.0, "epsilon": math.inf})
    assert quietly[0] == plainly[0]
    for one, other in zip(plainly[1:], quietly[1:], strict=True):
        truth = other[3].pop("truth")
        assert plain(other) == plain(one)
        assert truth["objectives"] == one[3]["objectives"]


@pytest.mark.parametrize(
    "kind",
    [
        {"noise": {"clients": 0.4, "bias": 1.0}},
        {"noise": {"clients": 0.6, "epsilon": 30.0}},
        {"noise": {"iid": 0.5, "clients": 0.4}, "potential": "accuracy"},
    ],
    ids=str,
)
def test_courses_together_hear_what_they_hear_alone(kind: dict[str, Any]) -> None:
    alone = [single(seed, **kind) for seed in (4, 5)]
    assert alone[0][1][:2] != alone[1][1][:2], "two seeds of one instance differ in noise alone"
    envs = gym.make_vec(ID, N, vectorization_mode="vector_entry_point", **{**SHORT, **kind})
    seen, _ = envs.reset(seed=4)
    actions = gym.make(ID, **SHORT).action_space
    actions.seed(0)
    for step in range(4):
        if step:
            seen, rewards, over, _, info = envs.step(np.stack([actions.sample()] * N))
        for index in range(N):
            own = {name: rows[index] for name, rows in sorted(seen.items())}
            expected = alone[index][step]
            assert plain(own) == (expected[0] if step else expected)
            if step:
                assert [plain(float(rewards[index])), bool(over[index])] == expected[1:3]
                for name, value in expected[3]["truth"]["objectives"].items():
                    assert info["truth"]["objectives"][name][index] == value


def test_a_private_loss_is_that_of_the_formula() -> None:
    """All five clients, one number for each of four evaluations of an epsilon of 60."""
    _, *steps = single(9, noise={"epsilon": 60.0})
    truth = gym.make(ID, disable_env_checker=True, **SHORT)
    truth.reset(seed=9)
    key = int(stream(9, "evaluation_noise").integers(2**32))
    truth.action_space.seed(0)
    for number, (_, _, _, info) in enumerate(steps, start=1):
        truth.step(truth.action_space.sample())
        courses = truth.unwrapped.process.courses  # type: ignore[attr-defined]
        losses = courses._batch.evaluate()[0][:, 1, 0].astype(np.float64)
        added = stream(key, "evaluation_noise", number).laplace(size=(1, 1))[0, 0]
        heard = np.clip(losses, 0.0, 10.0).mean() + added * (10.0 / 5) * 4 / 60.0
        assert info["val_loss"] == pytest.approx(min(max(heard, 0.0), 10.0), abs=1e-6)
        assert info["val_accuracy"] == 0.0


def test_what_clients_do_not_report_is_refused() -> None:
    for arguments, why in (
        ({"noise": {"iid": 0.5}}, "potential='accuracy'"),
        ({"noise": {"epsilon": 1.0}, "per_client": True}, "single clients"),
        ({"noise": {"epsilon": 1.0, "evaluations": 3}}, "horizon"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            gym.make(ID, **{**SHORT, **arguments})
