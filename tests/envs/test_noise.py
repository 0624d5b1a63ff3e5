"""Noisy evaluations in trial and round environments: single, vector, another process, the truth."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.testing.rollout import plain

TABLE, SURROGATE = "FedHPO-LR-CreditG-v0", "FedHPO-LR-Synthetic-v1"


def single(name: str, steps: int = 12, **arguments: Any) -> list[Any]:
    env = gym.make(name, disable_env_checker=True, **arguments)
    rng = np.random.default_rng(1)
    found, (seen, _) = [], env.reset(seed=5)
    for _ in range(steps):
        action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        seen, reward, terminated, _, info = env.step(action)
        found.append(plain([dict(seen), reward, terminated, info]))
        if terminated:
            env.reset()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [TABLE, SURROGATE])
@pytest.mark.parametrize("nothing", [{}, {"clients": 1.0, "bias": 0.0, "epsilon": math.inf}])
def test_no_noise_is_the_environment_without_it_bit_for_bit(name: str, nothing: Any) -> None:
    for one, other in zip(single(name), single(name, noise=nothing), strict=True):
        truth = [value for key, value in other[3] if key == "truth"]
        assert other[:3] == one[:3]
        assert [pair for pair in other[3] if pair[0] != "truth"] == one[3]
        assert truth[0][0][1] == next(value for key, value in one[3] if key == "objectives")


@pytest.mark.slow
def test_raw_training_is_heard_as_its_table_is() -> None:
    """Stored losses are rounded to 2^-9 of themselves; accuracies are exact, so is who is heard."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    shared = {"noise": {"clients": 0.5, "bias": 1.0}, "seed": 1, "grid": True}
    shared["fidelity"] = {"round": 2, "client_sample_rate": 1.0}
    shared["objectives"] = ["val_loss", "val_error", "fairness_std"]
    name = "FedHPO-LR-BreastCancer-v0"
    trained, stored = (
        single(name, steps=2, backend=backend, **shared) for backend in ("raw", "tabular")
    )
    for one, other in zip(trained, stored, strict=True):
        told, kept = (dict(dict(x[3])["objectives"]) for x in (one, other))
        assert told.pop("val_loss") == pytest.approx(kept.pop("val_loss"), rel=2**-9)
        assert told == kept


@pytest.mark.slow
@pytest.mark.parametrize("name", [TABLE, SURROGATE])
def test_what_is_told_is_computed_again_in_plain_numpy(name: str) -> None:
    """Key of the episode, waiting times of clients, their weighted mean, Laplace noise, clip."""
    noise = {"clients": 0.4, "bias": 1.5, "epsilon": 300.0}
    env = gym.make(
        name, noise=noise, objectives=["val_error"], budget_trials=6, disable_env_checker=True
    )
    env.reset(seed=21)
    key = int(stream(21, "evaluation_noise").integers(2**32))
    rng = np.random.default_rng(0)
    lowest = np.inf
    for trial in range(6):
        action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        seen, _, terminated, _, info = env.step(action)
        backend = env.unwrapped.backend
        answer = backend.evaluate(info["configuration"], Fidelity(**info["fidelity"]))
        draws = stream(key, "evaluation_noise", trial)
        accuracy = answer.best[..., 1, 1].astype(np.float64)
        waits = draws.standard_exponential(accuracy.shape) / (accuracy + 0.0001) ** 1.5
        number = int(0.4 * accuracy.shape[1] + 1e-9)
        added = draws.laplace(size=(1, len(accuracy)))[0] * 6 / (number * 300.0)
        heard = np.take_along_axis(accuracy, np.argsort(waits, axis=1)[:, :number], axis=1)
        error = min(max((1.0 - heard.mean(axis=1)).mean() + added.mean(), 0.0), 1.0)
        if answer.has_diverged:
            error = 1.0
        assert info["objectives"]["val_error"] == pytest.approx(error, abs=1e-9)
        assert info["truth"]["objectives"]["val_error"] == pytest.approx(
            1.0 if answer.has_diverged else 1.0 - answer.mean("val", "accuracy")
        )
        lowest = min(lowest, error)
        assert info["incumbent"]["val_error"] == pytest.approx(lowest)
        assert info["score"] == pytest.approx(-error, abs=1e-6)
        assert seen["incumbent_value"] == pytest.approx([lowest], abs=1e-6)
        assert seen["accuracy"][1] == pytest.approx(1.0 - error, abs=1e-6)
        # Nothing else is told: it would cost a share of epsilon.
        assert seen["accuracy"][0] == 0.0
        assert seen["loss"].tolist() == [10.0, 10.0]
        assert not seen["fairness"].any()
    assert terminated


def test_trials_share_an_epsilon_and_no_more_are_made() -> None:
    env = gym.make(TABLE, noise={"epsilon": 5.0}, disable_env_checker=True)
    _, info = env.reset(seed=0)
    assert info["noise"] == {
        "clients": 1.0, "bias": 0.0, "iid": 0.0, "epsilon": 5.0, "evaluations": 16,
    }  # fmt: skip
    ends = [env.step(np.zeros(6, np.float32))[2] for _ in range(16)]
    assert ends == [False] * 15 + [True]
    asked = {"noise": {"epsilon": 5.0}, "budget_trials": 40, "disable_env_checker": True}
    assert gym.make(TABLE, **asked).reset()[1]["noise"]["evaluations"] == 40


def test_what_answers_do_not_say_is_refused() -> None:
    for arguments, why in (
        ({"noise": {"iid": 0.5}}, "val_error"),
        ({"noise": {"iid": 0.5}, "objectives": ["val_f1"]}, "class of a sample"),
        ({"noise": {"epsilon": 1.0}, "objectives": ["test_loss"]}, "sensitivity"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            gym.make(TABLE, **arguments)
    with pytest.raises(InvalidArgumentError, match="surrogate"):
        gym.make(SURROGATE, noise={"iid": 1.0}, objectives=["val_error"])
    env = gym.make(TABLE, noise={"iid": 1.0, "clients": 0.4}, objectives=["val_error"])
    env.reset(seed=0)
    *_, info = env.step(np.zeros(6, np.float32))
    assert 0.0 <= info["objectives"]["val_error"] <= 1.0


def test_rounds_follow_each_other_on_one_worker(tmp_path: Path, capsys: Any) -> None:
    words = ["run", "FedHPO-DAC-LR-BreastCancer-v0", "--agent", "random", "--out", str(tmp_path)]
    assert main([*words, "--simulated-workers", "2"]) != 0
    assert "follow" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tabular", "surrogate"])
def test_asking_again_for_nothing_tells_nothing_new(backend: str) -> None:
    arguments = {"noise": {"clients": 0.2}, "backend": backend, "disable_env_checker": True}
    for freeze_thaw in (True, False):
        env = gym.make("FedHPO-LR-CreditG-v1", freeze_thaw=freeze_thaw, **arguments)
        env.reset(seed=0)
        low, high = (np.full(env.action_space.shape or (), end, np.float32) for end in (-1.0, 0.2))
        heard = [
            [env.step(action)[-1]["objectives"]["val_loss"] for action in (low, high)]
            for _ in range(6)
        ]
        assert (len({*map(tuple, heard)}) == 1) == freeze_thaw
        env.reset(seed=1)
        again = env.step(low)[-1]["objectives"]["val_loss"]
        assert again != heard[0][0], "another episode draws anew"
