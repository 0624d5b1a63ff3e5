"""Charging work: by hand, and the laws of every rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Cost, Fidelity
from fedhpo_gym.systems import CROSS_DEVICE, CROSS_SILO, SystemModel, Work
from fedhpo_gym.systems.base import Compute
from fedhpo_gym.tasks import TASKS, decisive_names, get_task, round_system, work_of

SIMPLE = SystemModel(
    client_upload_bytes_per_s=10.0,
    client_download_bytes_per_s=20.0,
    server_upload_bytes_per_s=40.0,
    bytes_per_parameter=2,
    client_compute_mean_s=3.0,
    server_compute_s=0.5,
)
WORK = Work.of_course(100, 4, Fidelity(10, 0.6), local_epochs=3, minibatch_steps=12, samples=90)


def test_what_a_course_asks_for() -> None:
    assert Work(100, 10, 2, 2.4, 3, 12, 90, 4) == WORK


@pytest.mark.parametrize(
    ("rule", "units"), [("constant", 1), ("epochs", 3), ("steps", 12), ("samples", 90)]
)
def test_every_rule_by_hand(rule: Any, units: int) -> None:
    # Ten rounds of two clients, c = 3 s a unit: the straggler takes 1 + 1/2 times as long.
    cost = replace(SIMPLE, compute=rule).cost(WORK)
    assert cost.computation_s == pytest.approx(10 * (3 * units * 1.5 + 0.5))
    # Message 200 B: up 20 s, the server sends 2.4 of them in 12 s.
    assert cost.communication_s == pytest.approx(10 * (20 + 12))
    assert cost.upload_bytes == 10 * 2 * 200


@pytest.mark.parametrize("rule", ["steps", "samples"])
def test_a_rule_refuses_what_nobody_knows(rule: Any) -> None:
    unknown = replace(WORK, minibatch_steps=None, samples=None)
    with pytest.raises(InvalidArgumentError, match=f"`compute` must be .*, got '{rule}'"):
        replace(SIMPLE, compute=rule).cost(unknown)


@pytest.mark.parametrize("name", ["local_epochs", "minibatch_steps", "samples"])
def test_negative_work_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{name}` must be non-negative, got -1"):
        Work.of_course(100, 4, Fidelity(10, 0.6), **{name: -1})  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [CROSS_SILO, CROSS_DEVICE])
@pytest.mark.parametrize("rule", get_args(Compute))
def test_more_work_never_costs_less(model: SystemModel, rule: Any) -> None:
    rng = np.random.default_rng(3)
    system = replace(model, compute=rule)
    follows = {"epochs": "local_epochs", "steps": "minibatch_steps", "samples": "samples"}
    for _ in range(50):
        base = {name: float(rng.integers(1, 50)) for name in GROWS}
        base["client_sample_rate"] = float(rng.uniform(0.01, 0.5))
        least = charged(system, base)
        for name, step in GROWS.items():
            more = charged(system, {**base, name: step(base[name])})
            assert more.time_s >= least.time_s
            assert more.upload_bytes >= least.upload_bytes
            if name in ("parameters", "rounds", follows.get(rule)):
                assert more.time_s > least.time_s


GROWS: dict[str, Callable[[float], float]] = {
    **dict.fromkeys(("parameters", "clients", "client_sample_rate"), lambda value: 2 * value),
    **dict.fromkeys(("rounds", "local_epochs", "minibatch_steps", "samples"), lambda n: n + 1),
}


def charged(system: SystemModel, said: dict[str, float]) -> Cost:
    fidelity = Fidelity(int(said["rounds"]), said["client_sample_rate"])
    rest = {name: said[name] for name in ("local_epochs", "minibatch_steps", "samples")}
    sizes = int(said["parameters"]), int(said["clients"])
    return system.cost(Work.of_course(*sizes, fidelity, **rest))


LR = get_task("LR-CreditG")
HETERO = get_task("Hetero-GraphDC")


def test_the_client_with_most_work_decides() -> None:
    configuration: dict[str, Any] = {"step_size": 2, "batch_size": 16}
    samples = np.array([10, 33, 16, 0, 100])
    trained = np.array([True, True, True, True, False])
    work = work_of(LR, configuration, 5, 0.8, trained, samples)
    assert (work.local_epochs, work.minibatch_steps, work.samples) == (2, 2 * 3, 2 * 33)
    assert (work.sampled_clients, work.client_share) == (4, 4.0)
    unknown = work_of(LR, configuration, 5, 0.8)
    assert unknown == replace(work, minibatch_steps=None, samples=None)


def test_clients_with_values_of_their_own() -> None:
    configuration: dict[str, Any] = {f"step_size@{i}": i + 1 for i in range(5)}
    trained = np.array([True, False, True, False, False])
    samples = np.array([64, 64, 65, 64, 64])
    work = work_of(HETERO, configuration, 1, 0.4, trained, samples)  # minibatches of 64
    assert (work.local_epochs, work.minibatch_steps, work.samples) == (3, 3 * 2, 3 * 65)
    assert work_of(HETERO, configuration, 1, 0.4).local_epochs == 5
    assert work_of(HETERO, configuration, 1, 0.4, np.zeros(5, np.bool_)).local_epochs == 1
    some: dict[str, Any] = {"step_size": 2, "step_size@0": 1}
    assert work_of(HETERO, some, 1, 0.4, trained).local_epochs == 2


def test_full_batches_are_one_step() -> None:
    twitter = get_task("LR-Twitter").variant(num_clients=3)
    work = work_of(twitter, {"step_size": 3}, 1, 1.0, None, np.array([5, 0, 7]))
    assert (work.minibatch_steps, work.samples) == (3, 21)


@pytest.mark.parametrize("rule", get_args(Compute))
@pytest.mark.parametrize("name", ["LR-CreditG", "MLP-CreditG", "Hetero-GraphDC"])
def test_only_the_decisive_names_decide(name: str, rule: Any) -> None:
    task = get_task(name)
    task = task.variant(system=replace(task.system, compute=rule))
    decisive = decisive_names(task)
    base = {d.name: d.grid[0] for d in task.space.dimensions}
    samples = np.full(task.num_clients, 50)

    def time(configuration: dict[str, Any]) -> float:
        return task.system.cost(work_of(task, configuration, 1, 1.0, None, samples)).time_s

    for dimension in task.space.dimensions:
        changed = time({**base, dimension.name: dimension.grid[-1]}) != time(base)
        assert changed == (dimension.name in decisive), dimension.name


def test_round_environments_charge_epochs_unless_the_task_says_more() -> None:
    for task in TASKS.values():
        assert task.system.compute == "constant"
        assert round_system(task) == replace(task.system, compute="epochs")
    steps = replace(LR.system, compute="steps")
    assert round_system(LR.variant(system=steps)) == steps
