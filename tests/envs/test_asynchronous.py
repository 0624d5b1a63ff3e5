"""Asynchronous algorithms in environments: what a round costs, and what cannot be combined."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.backends import make_backend
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.systems import DeviceModel
from fedhpo_gym.tasks import get_task
from fedhpo_gym.testing import plain

pytestmark = pytest.mark.raw

TRIALS, ROUNDS = "FedHPO-LR-BreastCancer-v1", "FedHPO-DAC-LR-BreastCancer-v1"
DEVICES = {"model": "devices", "compute": "epochs"}
SHORT: dict[str, Any] = {
    "backend": "raw",
    "seed": 1,
    "fidelity": {"round": 6, "client_sample_rate": 0.6},
    "system": DEVICES,
    "budget_trials": 3,
}
IN_ROUNDS: dict[str, Any] = {"instances": [[0.7, 100]], "rounds_per_step": 2, "horizon": 8}


def test_work_decides_the_time_of_a_trial() -> None:
    env = gym.make(TRIALS, algorithm="fedbuff", **{**SHORT, "budget_trials": 9})
    env.reset(seed=0)
    names = env.unwrapped.search_space.names  # type: ignore[attr-defined]
    found: dict[str, list[tuple[float, float]]] = {"step_size": [], "buffer_size": []}
    for name, pairs in found.items():
        for value in (-1.0, 0.0, 1.0):
            action = np.zeros(len(names), np.float32)
            action[names.index(name)] = value
            info = env.step(action)[4]
            pairs.append((info["configuration"][name], info["cost"]["time_s"]))
            assert info["cost"]["rounds"] == 6
    one, _, four = found["step_size"]
    assert four[1] > 3 * one[1]
    ratios = [time / reports for reports, time in found["buffer_size"]]
    np.testing.assert_allclose(ratios, ratios[0])


def test_the_clock_decides_what_is_trained() -> None:
    tasks = [
        get_task("LR-BreastCancer-v1").variant(algorithm="fedbuff", system=DeviceModel(seed=seed))
        for seed in (0, 0, 1)
    ]
    query = tasks[0].space.decode(np.zeros(len(tasks[0].space))), Fidelity(6, 0.6)
    backends = [make_backend("raw", task, seed=1) for task in tasks]
    one, same, other = (backend.evaluate(*query).current for backend in backends)
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    prints = [backend.fingerprint for backend in backends]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("algorithm", ["fedasync", "fedbuff"])
def test_rounds_cost_their_virtual_time(algorithm: str) -> None:
    """Of a server that takes 2 s each, and of clients that are slower with more epochs."""
    system = {**DEVICES, "server_compute_s": 2.0}
    env = gym.make(ROUNDS, algorithm=algorithm, dynamic=["step_size"], system=system, **IN_ROUNDS)
    total = []
    for epochs in (-1.0, 1.0):
        env.reset(seed=0)
        times = []
        for _ in range(4):
            times.append(env.step(np.array([epochs], np.float32))[4]["cost"]["time_s"])
        assert min(times) >= 2 * 2.0
        assert len(set(times)) > 1, "virtual time is no price list"
        total.append(sum(times) - 8 * 2.0)
    assert total[1] > 2 * total[0]


def test_a_copy_goes_on_alike_with_what_is_in_flight() -> None:
    env = gym.make(ROUNDS, algorithm="fedbuff", system=DEVICES, **IN_ROUNDS)
    env.reset(seed=0)
    env.action_space.seed(0)
    env.step(env.action_space.sample())
    twins = [pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    for _ in range(3):
        action = env.action_space.sample()
        expected = plain(env.step(action))
        for twin in twins:
            assert plain(twin.step(action)) == expected


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        (TRIALS, {"backend": "surrogate"}, "`backend`.*'raw'.*'surrogate'"),
        (TRIALS, {}, "`backend`.*'raw'.*'tabular'"),
        (TRIALS, {"backend": "raw", "settings": {"epsilon": 5.0}}, "`settings`.*epsilon"),
        (TRIALS, {"backend": "raw", "system": {"model": "devices", "deadline_s": 9}}, "deadline_s"),
        (ROUNDS, {"per_client": True}, "`per_client`.*False.*'fedbuff'"),
        (ROUNDS, {"system": {"model": "devices", "over_selection": 0.3}}, "over_selection.*0.3"),
    ],
    ids=str,
)
def test_what_cannot_be_combined_is_refused(
    name: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        gym.make(name, algorithm="fedbuff", **arguments)
