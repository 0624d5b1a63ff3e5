"""The cost model against the paper, hand computation, and the original code's own numbers."""

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np
import pytest

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Cost, Fidelity
from fedhpo_gym.systems import CROSS_DEVICE, CROSS_SILO, DeviceModel, SystemModel, Work
from fedhpo_gym.systems.base import MOST, SLOWEST, Compute
from fedhpo_gym.systems.model import harmonic
from fedhpo_gym.tasks import TASKS, decisive_names, get_task, round_system, work_of
from golden import golden

FEMNIST_CNN = 6_603_902


@pytest.mark.parametrize(
    ("model", "key"), [(CROSS_SILO, "estimated"), (CROSS_DEVICE, "cross_device")]
)
def test_equals_the_original_code(model: SystemModel, key: str) -> None:
    cases = golden("cost")["cases"]
    assert len(cases) == 672
    for case in cases:
        system = replace(
            model, client_compute_mean_s=case["c"], server_compute_s=case["time_server"]
        )
        cost = system.cost(Work.of_course(case["P"], case["K"], Fidelity(case["R"], case["rate"])))
        expected = case[key]
        if int(case["K"] * case["rate"]) == 0:
            # The original lets nobody compute there; we let one client take part.
            expected += case["R"] * case["c"]
        assert cost.time_s == pytest.approx(expected, rel=1e-12, abs=0.0), case


@pytest.mark.parametrize(
    ("parameters", "clients", "rate", "communication_s", "round_s"),
    [
        (FEMNIST_CNN, 200, 1.0, 20_254.3, 20_260),
        (FEMNIST_CNN, 200, 0.2, 4_131.5, 4_136),
        (579_594, 5, 1.0, 53.06, 55.35),
        (4_386_178, 5, 1.0, 401.6, 403.9),
        (92_231, 5, 1.0, 8.444, 10.73),
        (237_446, 5, 1.0, 21.74, 24.02),
        (32_259, 5, 1.0, 2.953, 5.237),
    ],
)
def test_round_costs_of_the_benchmark_models(
    parameters: int, clients: int, rate: float, communication_s: float, round_s: float
) -> None:
    cost = CROSS_SILO.cost(Work.of_course(parameters, clients, Fidelity(1, rate)))
    assert cost.communication_s == pytest.approx(communication_s, rel=3e-4)
    assert cost.time_s == pytest.approx(round_s, rel=3e-4)


def test_course_costs_of_the_benchmark_models() -> None:
    assert CROSS_SILO.cost(
        Work.of_course(FEMNIST_CNN, 200, Fidelity(500, 1.0))
    ).time_s == pytest.approx(1.013e7, rel=1e-3)
    cross_device = CROSS_DEVICE.cost(Work.of_course(800_002, 3300, Fidelity(1, 0.01)))
    assert cross_device.communication_s == pytest.approx(16.28, abs=5e-3)
    assert cross_device.time_s == pytest.approx(20.4, abs=0.05)


SIMPLE = SystemModel(
    client_upload_bytes_per_s=10.0,
    client_download_bytes_per_s=20.0,
    server_upload_bytes_per_s=40.0,
    bytes_per_parameter=2,
    client_compute_mean_s=3.0,
    server_compute_s=0.5,
    max_connections=4,
)


def test_cross_silo_by_hand() -> None:
    # Message 200 B: up 20 s, server sends 3 of 4 in 600/40 = 15 s; compute 3*(1+1/2+1/3) + 0.5.
    cost = SIMPLE.cost(Work.of_course(100, 4, Fidelity(10, 0.75)))
    assert cost.communication_s == pytest.approx(350.0)
    assert cost.computation_s == pytest.approx(60.0)
    assert cost.time_s == pytest.approx(410.0)
    assert cost.upload_bytes == cost.download_bytes == 10 * 3 * 200
    assert cost.rounds == 10


def test_cross_silo_waits_for_the_slower_end() -> None:
    # One client: the server needs 5 s to send, the client 10 s to receive.
    assert SIMPLE.cost(Work.of_course(100, 1, Fidelity(1, 1.0))).communication_s == pytest.approx(
        30.0
    )


def test_cross_device_by_hand() -> None:
    # Up 20 s, down 10 s, latency exp(3 - 4).
    cost = replace(SIMPLE, mode="cross_device").cost(Work.of_course(100, 4, Fidelity(10, 0.75)))
    assert cost.communication_s == pytest.approx(10 * (30 + math.exp(-1)))
    assert cost.computation_s == pytest.approx(60.0)


def test_communication_counts_fractions_computation_whole_clients() -> None:
    # Rate 0.6 of 4 clients: 2.4 messages of 5 s each, but two clients that compute.
    cost = SIMPLE.cost(Work.of_course(100, 4, Fidelity(1, 0.6)))
    assert cost.communication_s == pytest.approx(20 + 12)
    assert cost.computation_s == pytest.approx(3 * 1.5 + 0.5)
    assert cost.upload_bytes == 400


def test_defaults_are_appendix_e() -> None:
    assert CROSS_SILO.client_upload_bytes_per_s == CROSS_SILO.server_upload_bytes_per_s == 262_144
    assert CROSS_SILO.client_download_bytes_per_s == 786_432
    assert (CROSS_SILO.client_compute_mean_s, CROSS_SILO.server_compute_s) == (1.0, 0.0)
    assert CROSS_SILO.max_connections == 65_535
    assert replace(CROSS_DEVICE, mode="cross_silo") == CROSS_SILO == SystemModel()


@pytest.mark.parametrize("n", [1, 3, 40])
def test_proposition_1_against_monte_carlo(n: int) -> None:
    draws = 200_000
    slowest = np.random.default_rng(7).exponential(2.5, size=(draws, n)).max(axis=1)
    error = slowest.std() / math.sqrt(draws)
    assert 2.5 * harmonic(n) == pytest.approx(slowest.mean(), abs=4 * error)


def test_harmonic_numbers() -> None:
    assert [harmonic(n) for n in (1, 2, 3, 4)] == pytest.approx([1, 3 / 2, 11 / 6, 25 / 12])
    assert harmonic(100_001) - harmonic(100_000) == pytest.approx(1 / 100_001, rel=1e-8)
    assert harmonic(10**9) == pytest.approx(21.300481502347944, rel=1e-14)
    with pytest.raises(InvalidArgumentError, match="`n` must be at least 1"):
        harmonic(0)


def test_zero_rounds_cost_nothing() -> None:
    cost = CROSS_SILO.cost(Work.of_course(10, 5, Fidelity(0, 1.0)))
    assert (cost.time_s, cost.upload_bytes, cost.download_bytes) == (0.0, 0.0, 0.0)


def test_latency_rises_but_never_overflows() -> None:
    one_round = Fidelity(1, 1.0)
    no_latency = CROSS_DEVICE.cost(Work.of_course(1, 100, one_round)).communication_s
    at_limit = CROSS_DEVICE.cost(Work.of_course(1, 65_535, one_round)).communication_s
    assert at_limit == pytest.approx(no_latency + 1.0)
    far_above = CROSS_DEVICE.cost(Work.of_course(1, 10**9, Fidelity(10**6, 1.0)))
    assert 1e200 < far_above.time_s < math.inf


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("mode", "cross_deivce", "`mode` must be one of .*'cross_device'.*, got 'cross_deivce'"),
        ("compute", "epoch", "`compute` must be one of .*'epochs'.*, got 'epoch'"),
        ("client_upload_bytes_per_s", 0.0, "must be at least 1e-06 and finite, got 0.0"),
        ("client_download_bytes_per_s", -1.0, "must be at least 1e-06"),
        ("server_upload_bytes_per_s", math.inf, "and finite"),
        ("bytes_per_parameter", "4", "must be a number, in .0, 1e[+]18., got '4'"),
        ("max_connections", True, "must be a number"),
        ("client_compute_mean_s", -0.1, "must be in .0, 1e.18."),
        ("server_compute_s", math.nan, "must be in .0, 1e.18."),
    ],
)
def test_model_refuses_bad_fields(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        replace(CROSS_SILO, **{field: value})
    assert f"`{field}`" in str(caught.value)


@pytest.mark.parametrize(("parameters", "clients"), [(0, 5), (5, 0), (1.5, 5), (5, "5")])
def test_cost_refuses_bad_arguments(parameters: Any, clients: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must be .*at least 1, got"):
        CROSS_SILO.cost(Work.of_course(parameters, clients, Fidelity(1, 1.0)))


@pytest.mark.parametrize("name", ["mode", "compute"])
@pytest.mark.parametrize("value", [np.array([1.0, 2.0]), ["constant"], None, 1])
def test_words_are_strings(name: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{name}` must be one of "):
        replace(CROSS_SILO, **{name: value})


def test_point_to_point_by_hand() -> None:
    # 200 B messages, n = 3: the server sends at 40 B/s (15 s, more than the client's 10 s) and
    # receives at 15 B/s (40 s, more than the client's 20 s).
    model = replace(SIMPLE, mode="point_to_point", server_download_bytes_per_s=15.0)
    cost = model.cost(Work.of_course(100, 4, Fidelity(10, 0.75)))
    assert cost.communication_s == pytest.approx(10 * (15 + 40))
    one = model.cost(Work.of_course(100, 1, Fidelity(1, 1.0)))
    assert one.communication_s == pytest.approx(20 + 10)


@pytest.mark.parametrize("mode", ["cross_silo", "cross_device", "point_to_point"])
def test_compression_is_a_factor_on_bytes(mode: Any) -> None:
    work = Work.of_course(100, 4, Fidelity(10, 0.75))
    whole = replace(SIMPLE, mode=mode)
    both = replace(whole, upload_compression=0.25, download_compression=0.25)
    assert both.cost(work).communication_s == pytest.approx(
        whole.cost(replace(work, num_parameters=25)).communication_s
    )
    assert both.cost(work).computation_s == whole.cost(work).computation_s
    up = replace(whole, upload_compression=0.5).cost(work)
    assert (up.upload_bytes, up.download_bytes) == (10 * 3 * 100, 10 * 3 * 200)


@pytest.mark.parametrize("model", [SystemModel, DeviceModel])
def test_the_slowest_and_dearest_cost_is_a_finite_number(model: Any) -> None:
    dearest: dict[str, Any] = {"bytes_per_parameter": MOST, "server_compute_s": MOST}
    for field in fields(model):
        if field.name.endswith("bytes_per_s"):
            dearest[field.name] = SLOWEST
        if field.name in ("client_compute_s", "client_compute_mean_s", "deadline_s"):
            dearest[field.name] = MOST
    work = Work.of_course(10**9, 1000, Fidelity(100_000, 1.0), local_epochs=1e6)
    assert math.isfinite(model(compute="epochs", **dearest).cost(work).time_s)
    for name, value in (("bytes_per_parameter", 1e19), ("server_compute_s", 1e308)):
        with pytest.raises(InvalidArgumentError, match=f"`{name}` must be in .*1e.18."):
            model(**{name: value})


# --------------------------------------------------------------------------------- charging work

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
