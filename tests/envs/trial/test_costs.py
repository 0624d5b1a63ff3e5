"""Costs as objectives: what a trial says of its cost, on every backend and in every form."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Fidelity

NAMES = ("val_loss", "time_s", "upload_bytes", "download_bytes", "flops")
CASES = {
    "table": {},
    "epochs cost": {"system": {"compute": "epochs"}},
    "surrogate": {"backend": "surrogate", "alpha": 0.1},
    "one by one": {"backend": "surrogate", "alpha": 0.1, "freeze_thaw": True},
}


def arguments(case: str) -> tuple[str, dict[str, Any]]:
    return "MO-FedHPO-LR-Vehicle-v1", {**CASES[case], "objectives": NAMES}


@pytest.mark.parametrize("case", CASES)
def test_they_are_what_a_trial_is_charged(case: str) -> None:
    name, given = arguments(case)
    env: Any = gym.make(name, disable_env_checker=True, **given)
    env.reset(seed=0)
    env.action_space.seed(0)
    task = env.unwrapped.task
    train = env.unwrapped.backend.num_samples[..., 0].mean()
    for _ in range(5):
        _, reward, *_, info = env.step(env.action_space.sample())
        found, cost = info["objectives"], info["cost"]
        for entry in NAMES[1:4]:
            assert found[entry] == cost[entry]
        fidelity = Fidelity(**info["fidelity"])
        clients = fidelity.sampled_clients(task.num_clients)
        steps = info["configuration"]["step_size"] * fidelity.round * clients
        assert found["flops"] == pytest.approx(6 * task.num_parameters * steps * train)
        assert reward[1:4].tolist() == [-np.float32(cost[entry]) for entry in NAMES[1:4]]


@pytest.mark.parametrize("case", CASES)
def test_vector_environments_say_the_same(case: str) -> None:
    name, given = arguments(case)
    many: Any = gym.make_vec(name, num_envs=3, **given)
    many.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, many.action_space.shape).astype(np.float32)
    _, rewards, *_ = many.step(actions)
    for index, action in enumerate(actions):
        env = gym.make(name, disable_env_checker=True, **given)
        env.reset(seed=0)
        _, reward, *_ = env.step(action)
        assert np.array_equal(reward, rewards[index])


POWERED = {
    "system": {"model": "devices", "devices": "alike", "client_compute_w": 2.0,
               "upload_j_per_byte": 1e-3, "compute": "epochs"},
    "objectives": ("val_loss", "energy_j"),
}  # fmt: skip


@pytest.mark.parametrize("case", ["table", "surrogate", "one by one"])
def test_energy_is_an_objective_where_devices_know_it(case: str) -> None:
    name, given = arguments(case)
    given = {**given, **POWERED}
    many: Any = gym.make_vec(name, num_envs=3, **given)
    many.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, many.action_space.shape).astype(np.float32)
    _, rewards, *_ = many.step(actions)
    for index, action in enumerate(actions):
        env: Any = gym.make(name, disable_env_checker=True, **given)
        env.reset(seed=0)
        _, reward, *_, info = env.step(action)
        assert np.array_equal(reward, rewards[index])
        task, fidelity = env.unwrapped.task, Fidelity(**info["fidelity"])
        each = 2.0 * info["configuration"]["step_size"] + 4e-3 * task.num_parameters
        trained = fidelity.round * fidelity.sampled_clients(task.num_clients)
        assert info["objectives"]["energy_j"] == pytest.approx(trained * each)


def test_asynchronous_rounds_compute_as_many_jobs_as_they_have_reports() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    rounds = {"round": 4, "client_sample_rate": 1.0}
    given = {"backend": "raw", "seed": 1, "objectives": NAMES, "fidelity": rounds}
    env: Any = gym.make("MO-FedHPO-LR-BreastCancer-v1", algorithm="fedbuff", **given)
    env.reset(seed=0)
    action = np.zeros(env.action_space.shape, np.float32)
    place = env.unwrapped.search_space.names.index("buffer_size")
    infos = []
    for action[place] in (-1.0, 1.0):
        infos.append(env.step(action)[-1])
    few, many = (info["configuration"]["buffer_size"] for info in infos)
    assert few < many
    for name in ("upload_bytes", "flops"):
        fewer, more = (info["objectives"][name] for info in infos)
        assert more / fewer == pytest.approx(many / few)


def test_energy_is_refused_where_nobody_knows_it() -> None:
    for system in ({}, {"model": "devices"}):
        with pytest.raises(InvalidArgumentError, match="energy is known where devices have a powe"):
            gym.make("MO-FedHPO-LR-Car-v0", objectives=["energy_j"], system=system)
    asynchronous = {"backend": "raw", "algorithm": "fedbuff"}
    with pytest.raises(InvalidArgumentError, match="energy is known of synchronous rounds only"):
        gym.make("MO-FedHPO-LR-BreastCancer-v1", **{**POWERED, **asynchronous})


def test_what_was_paid_for_before_still_counts() -> None:
    """An objective is what the whole query costs: else its value would depend on the past."""
    env: Any = gym.make("MO-FedHPO-LR-Car-v0", freeze_thaw=True, objectives=NAMES)
    env.reset(seed=0)
    action = np.zeros(env.action_space.shape, np.float32)
    first, again = (env.step(action)[-1] for _ in range(2))
    assert again["cost"]["time_s"] == 0 < first["cost"]["time_s"]
    assert again["objectives"] == first["objectives"]


def test_a_truth_knows_them() -> None:
    full = {"round": 500}
    truth = fedhpo_gym.truth("FedHPO-LR-BreastCancer-v1", objectives=NAMES[:2], fidelity=full)
    times = np.unique(truth.values[:, 1])
    assert len(times) == 5, "one per client sample rate"
    assert truth.ideal()[1] == times[0]
