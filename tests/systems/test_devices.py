"""The clock of single devices: by hand, its draws, and its laws."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Cost, Fidelity
from fedhpo_gym.systems import CROSS_SILO, ClientWork, CourseHistory, DeviceModel, Work
from fedhpo_gym.systems.devices import FLASH_KB_PER_S, Draw

ALIKE = DeviceModel(
    devices="alike",
    client_compute_s=3.0,
    compute="steps",
    upload_median_bytes_per_s=10.0,
    download_median_bytes_per_s=40.0,
    bytes_per_parameter=2,
    server_compute_s=0.5,
)
FAULTY = DeviceModel(
    availability="sine",
    dropout=0.3,
    over_selection=0.5,
    deadline_s=4000.0,
    bandwidth_variation=0.4,
    compute="steps",
)


def planned(rounds: int = 10, rate: float = 0.6, **others: Any) -> Work:
    options: dict[str, Any] = {"local_epochs": 3, "minibatch_steps": 12, "samples": 90}
    return Work.of_course(100, 5, Fidelity(rounds, rate), **{**options, **others})


def past(sampled: list[list[int]], seed: int = 7, first: int = 0, start_s: float = 0.0) -> Work:
    cohorts = np.array(sampled, np.bool_)
    happened = CourseHistory(seed, first, start_s, cohorts)
    steps = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    clients = ClientWork(np.ones(5), steps, 10 * steps)
    return planned(len(cohorts), happened=happened, clients=clients)


def test_devices_that_are_alike_by_hand() -> None:
    # Three of five clients: 12 steps of 3 s, 200 B up at 10 B/s and down at 40 B/s, server 0.5 s.
    cost = ALIKE.cost(planned())
    assert cost.computation_s == pytest.approx(10 * (36 + 0.5))
    assert cost.communication_s == pytest.approx(10 * (20 + 5))
    assert cost.time_s == pytest.approx(10 * 61.5)
    assert cost.upload_bytes == cost.download_bytes == 10 * 3 * 200
    half = replace(ALIKE, upload_compression=0.5, download_compression=0.25).cost(planned())
    assert half.communication_s == pytest.approx(10 * (10 + 1.25))
    assert (half.upload_bytes, half.download_bytes) == (10 * 3 * 100, 10 * 3 * 50)


def test_energy_by_hand() -> None:
    powered = {"client_compute_w": 2.0, "upload_j_per_byte": 0.25, "download_j_per_byte": 0.125}
    model = replace(ALIKE, **powered)
    # Three clients: 36 s at 2 W, 200 B up at 1/4 J and down at 1/8 J each; the server is left out.
    assert model.energy_j(planned()) == pytest.approx(10 * 3 * (72 + 50 + 25))
    assert replace(ALIKE, upload_j_per_byte=0.25).energy_j(planned(2)) == pytest.approx(2 * 3 * 50)
    # Steps 1 and 4, then 1 and 2: all that took part pay, not only the slowest.
    happened = past([[1, 0, 0, 1, 0], [1, 1, 0, 0, 0]])
    assert model.energy_j(happened) == pytest.approx(3 * 2 * (5 + 3) + 4 * 75)
    # One of two is late, and one more is invited: what they have begun they finish.
    late = replace(model, deadline_s=30.0, over_selection=0.5)
    assert late.cost(happened).upload_bytes < 4 * 200
    invited = past([[1, 0, 0, 1, 0]])
    reached = late.energy_j(invited)
    assert reached == pytest.approx(5 * 6 + 3 * 75 + 6 * {1: 2, 2: 3, 4: 5}[others(late, invited)])
    # Who drops out sends nothing, but one is asked again where nobody is left.
    lossy = replace(ALIKE, upload_j_per_byte=1.0, dropout=0.5)
    spent = [lossy.energy_j(past([[1, 1, 0, 0, 0]], seed)) / 200 for seed in range(40)]
    assert set(spent) == {1.0, 2.0}


def others(model: DeviceModel, work: Work) -> int:
    """Return who is invited beyond the cohort {0, 3} in the first round."""
    assert work.happened is not None
    draw = Draw(work.happened.seed, (model.seed, 0))
    order = draw.stream("invited_clients").permutation(5)
    return next(int(client) for client in order if client not in (0, 3))


@pytest.mark.parametrize("model", [ALIKE, FAULTY, DeviceModel(devices="flash")])
def test_energy_never_falls_with_work_and_adds_up(model: DeviceModel) -> None:
    model = replace(model, client_compute_w=3.0, upload_j_per_byte=2e-6)
    one, more = (model.energy_j(planned(rounds)) for rounds in (1, 7))
    assert more == pytest.approx(7 * one)
    slower = model.energy_j(planned(1, minibatch_steps=13))
    assert (one < slower) == (model.compute == "steps")
    assert model.energy_j(planned(1, rate=0.2)) < one
    sampled = [[1, 0, 0, 1, 0], [0, 1, 1, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 1, 1]]
    first = past(sampled[:1])
    rest = past(sampled[1:], first=1, start_s=model.cost(first).time_s)
    whole = model.energy_j(past(sampled))
    assert model.energy_j(first) + model.energy_j(rest) == pytest.approx(whole, rel=1e-12)


def test_who_knows_no_energy_says_so() -> None:
    for system in (ALIKE, CROSS_SILO):
        assert not system.knows_energy
        with pytest.raises(
            InvalidArgumentError, match=r"`client_compute_w`.*'devices'.*Model with"
        ):
            system.energy_j(planned())
    with pytest.raises(InvalidArgumentError, match="synchronous rounds only"):
        replace(ALIKE, client_compute_w=1.0).energy_j(planned(reports=2))
    with pytest.raises(InvalidArgumentError, match="`upload_j_per_byte` must be in"):
        DeviceModel(upload_j_per_byte=-1.0)


def test_rounds_that_happened_by_hand() -> None:
    # Client 3 is the slowest of the first round (4 steps), client 1 of the second (2 steps).
    cost = ALIKE.cost(past([[1, 0, 0, 1, 0], [1, 1, 0, 0, 0]]))
    assert cost.computation_s == pytest.approx(3 * 4 + 3 * 2 + 2 * 0.5)
    assert cost.communication_s == pytest.approx(2 * 25)
    assert cost.upload_bytes == 2 * 2 * 200
    assert cost.rounds == 2


SLOW_SERVER = DeviceModel(availability="sine", server_compute_s=30_000.0, compute="steps")


@pytest.mark.parametrize("model", [ALIKE, FAULTY, DeviceModel(devices="flash"), SLOW_SERVER])
def test_a_course_in_pieces_costs_what_it_costs_in_one(model: DeviceModel) -> None:
    sampled = [[1, 0, 0, 1, 0], [0, 1, 1, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 1, 1]]
    whole = model.cost(past(sampled))
    first = model.cost(past(sampled[:1]))
    rest = model.cost(past(sampled[1:], first=1, start_s=first.time_s))
    assert first.time_s + rest.time_s == pytest.approx(whole.time_s, rel=1e-12)
    assert model.cost(past(sampled)) == whole == replace(model).cost(past(sampled))


def test_chance_belongs_to_system_course_and_round() -> None:
    model = DeviceModel(bandwidth_variation=0.5)
    sampled = [[1, 1, 0, 0, 0]]
    costs = [
        model.cost(past(sampled)),
        model.cost(past(sampled, seed=8)),
        model.cost(past(sampled, first=1)),
        replace(model, seed=1).cost(past(sampled)),
        model.cost(past([[0, 0, 1, 1, 0]])),
    ]
    assert len({cost.time_s for cost in costs}) == len(costs)


def test_copies_and_pickles_cost_the_same() -> None:
    cost = FAULTY.cost(planned())
    for other in (copy.deepcopy(FAULTY), pickle.loads(pickle.dumps(FAULTY)), replace(FAULTY)):
        assert other == FAULTY
        assert other.cost(planned()) == cost


def test_a_planned_course_is_linear_in_its_rounds() -> None:
    always = replace(FAULTY, availability="always", deadline_s=20.0)
    one, many = always.cost(planned(1)), always.cost(planned(250))
    assert many.time_s == pytest.approx(250 * one.time_s, rel=1e-12)
    assert FAULTY.cost(planned(0)) == Cost(0.0, 0.0, 0.0, 0.0, 0.0, 0)


def test_drawn_devices_have_the_stated_distributions() -> None:
    drawn = DeviceModel().population(20_000)
    for values, median, sigma in (
        (drawn.compute, 1.0, 0.6),
        (drawn.upload, 3102.6 * 1024, 0.701),
        (drawn.download, 5171.7 * 1024, 0.484),
    ):
        assert np.median(values) == pytest.approx(median, rel=0.03)
        assert np.std(np.log(values)) == pytest.approx(sigma, rel=0.03)
    logs = np.log(drawn.upload), np.log(drawn.download)
    assert np.corrcoef(*logs)[0, 1] == pytest.approx(0.448, abs=0.02)


def test_the_stated_fit_is_that_of_the_measured_phones() -> None:
    table = np.log(np.array(FLASH_KB_PER_S))
    down, up = table[:, 0], table[:, 2]
    assert len(table) == 19
    assert np.exp([down.mean(), up.mean()]) == pytest.approx([5171.7, 3102.6], abs=0.1)
    assert [down.std(ddof=1), up.std(ddof=1)] == pytest.approx([0.484, 0.701], abs=5e-4)
    assert np.corrcoef(down, up)[0, 1] == pytest.approx(0.448, abs=5e-4)
    # Medians, as in other people's summaries of this file.
    assert np.median(np.array(FLASH_KB_PER_S)[:, [0, 2]], axis=0) == pytest.approx([4317.6, 3285.7])


def test_measured_phones_vary_as_measured() -> None:
    model = DeviceModel(devices="flash", compute_sigma=0.0)
    population = model.population(500)
    assert len(np.unique(population.upload)) == 19
    assert population.compute.tolist() == [1.0] * 500
    # 431.0 kB/s with a standard deviation of 157.7 is the slowest uplink.
    slowest = population.upload.argmin()
    assert population.upload[slowest] == pytest.approx(431.0 * 1024)
    assert population.upload_variation[slowest] == pytest.approx(157.7 / 431.0)


def test_variation_keeps_the_mean_speed() -> None:
    steady = DeviceModel(compute_sigma=0, upload_sigma=0, download_sigma=0, client_compute_s=0)
    varied = replace(steady, bandwidth_variation=0.3, upload_compression=1e-12)
    rounds = [[1, 0, 0, 0, 0]] * 500
    # E[1/speed] of a log-normal speed with mean m and variation v is (1 + v^2) / m.
    ratio = (
        varied.cost(past(rounds)).time_s
        / replace(steady, upload_compression=1e-12).cost(past(rounds)).time_s
    )
    assert ratio == pytest.approx(1 + 0.3**2, rel=0.03)


def test_unavailable_clients_are_waited_for() -> None:
    always = DeviceModel()
    sine = replace(always, availability="sine")
    assert sine.cost(planned(1)).time_s > always.cost(planned(1)).time_s + 60
    hurried = replace(sine, deadline_s=60.0, over_selection=0.6)
    assert hurried.cost(planned(1)).time_s < sine.cost(planned(1)).time_s


@pytest.mark.parametrize(
    ("compute", "asked"), [("constant", 1), ("epochs", 3), ("steps", 12), ("samples", 90)]
)
def test_work_decides_time(compute: Any, asked: int) -> None:
    cost = replace(ALIKE, compute=compute).cost(planned(1))
    assert cost.computation_s == pytest.approx(3 * asked + 0.5)


def test_what_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="`compute` must be 'constant' or 'epochs'"):
        ALIKE.cost(planned(minibatch_steps=None))
    with pytest.raises(InvalidArgumentError, match="`work` must have `num_clients`"):
        ALIKE.cost(Work(100, 1, 1, 1.0, minibatch_steps=1.0))


models = st.builds(
    DeviceModel,
    devices=st.sampled_from(["lognormal", "flash", "alike"]),
    availability=st.sampled_from(["always", "lognormal", "sine"]),
    over_selection=st.floats(0, 2),
    dropout=st.floats(0, 0.9),
    deadline_s=st.sampled_from([0.0, 1.0, 500.0, 1e5]),
    bandwidth_variation=st.sampled_from([0.0, 0.5]),
    compute_sigma=st.floats(0, 2),
    seed=st.integers(0, 100),
)
COHORTS = [[1, 0, 0, 1, 0], [0, 1, 1, 0, 0], [1, 1, 0, 0, 0]]


@pytest.mark.slow
@settings(max_examples=10)
@given(models, st.floats(1, 100))
def test_more_bandwidth_is_never_slower(model: DeviceModel, times: float) -> None:
    # Smaller messages are what more bandwidth for all amounts to, for measured devices, too.
    faster = replace(model, upload_compression=1 / times, download_compression=1 / times)
    for work in (planned(), past(COHORTS)):
        assert faster.cost(work).time_s <= model.cost(work).time_s * (1 + 1e-9)
    quick = replace(
        model,
        upload_median_bytes_per_s=model.upload_median_bytes_per_s * times,
        download_median_bytes_per_s=model.download_median_bytes_per_s * times,
    )
    for work in (planned(), past(COHORTS)):
        assert quick.cost(work).time_s <= model.cost(work).time_s * (1 + 1e-9)


@settings(max_examples=10)
@given(models, st.floats(0, 3), st.sampled_from([1.0, 500.0, 1e5]))
def test_over_selection_with_a_deadline_is_never_later(
    model: DeviceModel, more: float, deadline_s: float
) -> None:
    model = replace(model, deadline_s=deadline_s)
    invited = replace(model, over_selection=model.over_selection + more)
    for work in (planned(), past(COHORTS)):
        assert invited.cost(work).time_s <= model.cost(work).time_s * (1 + 1e-9)
        assert invited.cost(work).download_bytes >= model.cost(work).download_bytes


@settings(max_examples=10)
@given(models)
def test_a_round_always_has_a_report(model: DeviceModel) -> None:
    message = 100 * 4
    for work in (planned(3), past(COHORTS)):
        cost = model.cost(work)
        assert 3 * message <= cost.upload_bytes * (1 + 1e-12)
        assert cost.time_s == cost.communication_s + cost.computation_s > 0
        assert cost.communication_s >= 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": "phones"}, "`devices` must be one of"),
        ({"availability": "often"}, "`availability` must be one of"),
        ({"dropout": 1.0}, "`dropout` must be in"),
        ({"deadline_s": -1.0}, "`deadline_s` must be in"),
        ({"deadline_s": float("nan")}, "`deadline_s` must be in"),
        ({"over_selection": -0.1}, "`over_selection` must be in"),
        ({"bandwidth_correlation": 2}, "`bandwidth_correlation` must be in"),
        ({"seed": -1}, "`seed` must be in .0, 4294967296"),
        ({"seed": 10**5000}, "`seed` must be an integer"),
        ({"compute_sigma": 11}, "`compute_sigma` must be in .0, 10"),
        ({"upload_median_bytes_per_s": 1e-9}, "`upload_median_bytes_per_s` must be in .1e-06"),
        ({"upload_compression": 1.5}, "`upload_compression` must be in .0, 1"),
        ({"download_compression": 0}, "`download_compression` must be in"),
        ({"samples_per_client": 1.5}, "`samples_per_client` must be an integer"),
        ({"devices": "fedscale"}, "`devices_path` must name a file"),
        ({"devices_path": "x.json"}, "`devices_path` must name a file for .*be empty where"),
        ({"availability": "flash"}, "`availability_path` must name a file"),
        ({"availability_path": "x.json"}, "`availability_path` must name a file"),
        (
            {"devices": "fedscale", "devices_path": "x.json"},
            "`compute` must be 'samples' for devices of FedScale",
        ),
    ],
)
def test_impossible_devices_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        DeviceModel(**changes)


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_widest_devices_have_finite_times(sign: int) -> None:
    model = DeviceModel(
        compute_sigma=10,
        upload_sigma=10,
        download_sigma=10,
        bandwidth_variation=10,
        client_compute_s=1e18,
        upload_median_bytes_per_s=1e18 if sign > 0 else 1e-6,
        bandwidth_correlation=sign,
    )
    cost = model.cost(Work.of_course(10**9, 1000, Fidelity(1, 0.1)))
    assert np.isfinite(cost.time_s)


HOURS = [
    DeviceModel(availability="lognormal"),
    DeviceModel(availability="sine", compute="steps"),
    DeviceModel(availability="sine", availability_beta=0.6, dropout=0.2, over_selection=0.5),
    DeviceModel(availability="lognormal", deadline_s=900.0, dropout=0.1, client_compute_s=60.0),
    DeviceModel(bandwidth_variation=0.5, dropout=0.3),
    DeviceModel(devices="flash", over_selection=0.4, deadline_s=3.0, server_compute_s=2.0),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "clients", "rate"),
    [(model, *((5, 0.2), (5, 1.0), (40, 0.25))[i % 3]) for i, model in enumerate(HOURS)],
)
def test_a_plan_costs_what_living_through_it_costs(
    model: DeviceModel, clients: int, rate: float
) -> None:
    rounds = 100
    work = Work.of_course(100, clients, Fidelity(rounds, rate), minibatch_steps=12)
    rng, lived = np.random.default_rng(0), []
    for seed in range(60):
        sampled = rng.permuted(np.tile(np.arange(clients), (rounds, 1)), axis=1) < clients * rate
        happened = CourseHistory(seed, 0, 0.0, sampled)
        lived.append(model.cost(replace(work, happened=happened)))
    cost, own = model.cost(work), np.array([one.time_s for one in lived])
    error = own.std() / np.sqrt(len(own))
    assert abs(cost.time_s - own.mean()) < 0.05 * own.mean() + 2 * error
    assert cost.upload_bytes == pytest.approx(
        np.mean([one.upload_bytes for one in lived]), rel=0.05
    )
    assert (own <= model.ample_s(work)).mean() > 0.95
    assert model.ample_s(work) >= cost.time_s


@pytest.mark.parametrize("model", HOURS[:4])
def test_more_rounds_and_more_work_never_cost_less(model: DeviceModel) -> None:
    times = [model.cost(planned(rounds)).time_s for rounds in (1, 2, 9, 10, 40)]
    assert times == sorted(times)
    assert model.cost(planned(9)).time_s == times[2]  # whatever was asked in between
    steps = [model.cost(planned(30, minibatch_steps=n)).time_s for n in (1, 12, 13, 4000)]
    assert steps == sorted(steps)
