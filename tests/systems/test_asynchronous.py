"""What aggregations cost: closed form, monotony, and the engine's own virtual time."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.asynchronous import Queue, until_aggregation
from fedhpo_gym.systems import (
    CROSS_SILO,
    ClientWork,
    CourseHistory,
    DeviceModel,
    JobClock,
    System,
    Work,
)
from fedhpo_gym.systems.base import between_reports_s
from fedhpo_gym.systems.devices import Draw
from fedhpo_gym.systems.model import RecordedModel

TIMES = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=9).map(np.array)
PHONES = DeviceModel(compute="epochs", bandwidth_variation=0.3, dropout=0.2, seed=3)


def work(clients: int = 8, at_once: float = 0.5, reports: int = 3, **more: Any) -> Work:
    return Work.of_course(40_000, clients, Fidelity(10, at_once), reports=reports, **more)


@settings(max_examples=50, deadline=None)
@given(TIMES, st.data())
def test_the_time_between_reports_is_that_of_the_polynomials(times: Any, data: Any) -> None:
    at_once = data.draw(st.integers(1, len(times)))
    above, below = (
        sum(prod(chosen) for chosen in combinations(times.tolist(), k))
        for k in (at_once, at_once - 1)
    )
    found = between_reports_s(times, at_once)
    assert found == pytest.approx(above / below / (len(times) - at_once + 1), rel=1e-9)
    slower = times.copy()
    slower[data.draw(st.integers(0, len(times) - 1))] *= 1.5
    assert between_reports_s(slower, at_once) >= found * (1 - 1e-12)
    if at_once > 1:
        assert between_reports_s(times, at_once - 1) >= found * (1 - 1e-12)


def test_limits_of_the_time_between_reports() -> None:
    times = np.array([1.0, 2.0, 5.0])
    assert between_reports_s(times, 1) == pytest.approx(8 / 3)
    assert between_reports_s(times, 3) == pytest.approx(1 / (1 + 1 / 2 + 1 / 5))
    assert between_reports_s(np.full(1000, 6.0), 4) == pytest.approx(6.0 / 4)
    assert np.isfinite(between_reports_s(np.geomspace(1e-6, 1e300, 400), 200))


def simulated_s(system: System, asked: Work, aggregations: int) -> float:
    queue = Queue()
    for version in range(aggregations):
        queue, _, _ = until_aggregation(
            queue,
            version,
            reports=asked.reports,
            at_once=asked.sampled_clients,
            num_clients=asked.num_clients,
            clock=JobClock(system, asked),
            seed=5,
        )
    return queue.now_s / aggregations


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("system", "at_once"),
    [
        (CROSS_SILO, 0.5),
        (replace(CROSS_SILO, compute="epochs", server_compute_s=0.7), 1.0),
        (PHONES, 0.25),
        (replace(PHONES, devices="flash", server_compute_s=0.7), 0.75),
        (replace(PHONES, compute_sigma=1.5), 1.0),
    ],
    ids=["exponential", "exponential, epochs", "devices", "flash", "very uneven"],
)
def test_long_courses_take_what_is_planned(system: System, at_once: float) -> None:
    own = ClientWork(np.array([1.0, 1, 1, 2, 2, 3, 4, 6]))
    asked = replace(work(at_once=at_once, local_epochs=6), clients=own)
    planned = system.cost(replace(asked, rounds=1)).time_s
    assert simulated_s(system, asked, 700) == pytest.approx(planned, rel=0.06)


def test_a_hand_computed_aggregation() -> None:
    """Alike: 3 reports of 4 clients at once, each 2 s down, 6 s up and 10 s of computing."""
    phones = DeviceModel(
        devices="alike",
        client_compute_s=5.0,
        compute="epochs",
        download_median_bytes_per_s=80_000.0,
        upload_median_bytes_per_s=160_000 / 6,
        server_compute_s=1.5,
        dropout=0.25,
    )
    cost = phones.cost(work(local_epochs=2))
    assert cost.time_s == pytest.approx(10 * (3 * 18 / 4 / 0.75 + 1.5))
    assert cost.computation_s == pytest.approx(10 * (3 * 10 / 4 / 0.75 + 1.5))
    assert cost.communication_s == pytest.approx(cost.time_s - cost.computation_s)
    assert (cost.upload_bytes, cost.download_bytes) == (30 * 160_000, 40 * 160_000)
    straggler = replace(phones, dropout=0.0).cost(replace(work(local_epochs=2), reports=0))
    assert straggler.time_s == pytest.approx(10 * (18 + 1.5)), "a synchronous round of four"


def test_eq_1_without_its_straggler() -> None:
    """K = M = 4 of 8 clients: T_comm + c, where a synchronous round takes T_comm + c H_4."""
    synchronous = CROSS_SILO.cost(work(reports=0))
    found = CROSS_SILO.cost(work(reports=4))
    assert found.time_s == pytest.approx(synchronous.communication_s + 10 * 1.0)
    assert synchronous.computation_s == pytest.approx(10 * 25 / 12)


@settings(max_examples=40, deadline=None)
@given(
    system=st.sampled_from([CROSS_SILO, PHONES]),  # with hours, simulated courses have luck
    at_once=st.sampled_from([0.25, 0.5, 1.0]),
    reports=st.integers(1, 9),
    factor=st.floats(1.0, 50.0),
    grow=st.sampled_from(["local_epochs", "num_parameters", "rounds", "reports"]),
)
def test_more_work_never_costs_less(
    system: System, at_once: float, reports: int, factor: float, grow: str
) -> None:
    rule = replace(system, compute="epochs")
    asked = work(at_once=at_once, reports=reports)
    more = getattr(asked, grow) * factor
    kind = type(getattr(asked, grow))
    assert rule.cost(replace(asked, **{grow: kind(more)})).time_s >= rule.cost(asked).time_s * (
        1 - 1e-12
    )


def test_what_happened_costs_what_it_took() -> None:
    seconds = np.array([3.0, 4.5])
    happened = CourseHistory(1, 0, 0.0, np.ones((2, 8), np.bool_), seconds)
    asked = replace(work(happened=happened), rounds=2)
    cost = replace(PHONES, server_compute_s=1.0).cost(asked)
    assert cost.time_s == pytest.approx(7.5)
    assert cost.computation_s >= 2.0


def test_a_job_is_drawn_by_its_name() -> None:
    for system in (CROSS_SILO, PHONES, replace(PHONES, availability="lognormal")):
        clock = JobClock(system, work())
        assert clock.job(1, 7, 2, 5.0) == clock.job(1, 7, 2, 5.0)
        assert clock.job(1, 7, 2, 5.0) != clock.job(1, 8, 2, 5.0)
        assert clock.job(1, 7, 2, 5.0) != clock.job(2, 7, 2, 5.0)
    assert Draw(1, (0, 7)) == Draw(1, (0, 7))


def test_what_cannot_be_asynchronous_is_refused(tmp_path: Any) -> None:
    file = tmp_path / "rounds.csv"
    file.write_text("communication_s,computation_s\n1,2\n")
    for system, words in (
        (RecordedModel(path=str(file)), "analytic.*RecordedModel"),
        (replace(PHONES, over_selection=0.3), "over_selection.*0.3"),
        (replace(PHONES, deadline_s=60.0), "deadline_s.*60"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            system.cost(work())
        with pytest.raises(InvalidArgumentError, match=words):
            JobClock(system, work())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("availability", "dropout"), [("always", 0.0), ("lognormal", 0.25), ("sine", 0.25)]
)
def test_planned_aggregations_cost_what_living_through_them_costs(
    availability: Any, dropout: float
) -> None:
    model = DeviceModel(
        availability=availability, dropout=dropout, availability_beta=0.3, server_compute_s=5.0
    )
    asked = Work.of_course(100, 12, Fidelity(60, 0.25), reports=3)
    clock, ends = JobClock(model, asked), []
    for seed in range(40):
        queue = Queue()
        for version in range(asked.rounds):
            queue, _, _ = until_aggregation(
                queue, version, reports=3, at_once=3, num_clients=12, clock=clock, seed=seed
            )
        ends.append(queue.now_s)
    own = np.array(ends)
    error = own.std() / np.sqrt(len(own))
    planned_s = model.cost(asked).time_s
    assert abs(planned_s - own.mean()) < 0.05 * own.mean() + 2 * error
    assert (own <= model.ample_s(asked)).mean() > 0.95
    assert model.cost(replace(asked, rounds=37)).time_s < planned_s
