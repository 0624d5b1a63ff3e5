"""When a round of single devices ends: by hand, and the laws."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.systems.devices import DAY_S, SLOTS, Availability, client_seconds, drawn, endings


class Ending(NamedTuple):
    after_s: float
    last: int
    reports: int


def ending(
    report_s: np.ndarray, survives: np.ndarray, wanted: int, deadline_s: float = math.inf
) -> Ending:
    """One round; two at once are each as they are alone."""
    one = endings(report_s[None], survives[None], wanted, deadline_s)
    reports, alive = np.stack([report_s[::-1], report_s]), np.stack([survives[::-1], survives])
    two = endings(reports, alive, wanted, deadline_s)
    found = Ending(float(one.after_s[0]), int(one.last[0]), int(one.reports[0]))
    assert found == (two.after_s[1], two.last[1], two.reports[1])
    return found


REPORTS = np.array([3.0, 1.0, 7.0, 5.0])


@pytest.mark.parametrize(
    ("wanted", "deadline_s", "survives", "expected"),
    [
        (4, math.inf, [1, 1, 1, 1], Ending(7.0, 2, 4)),  # everybody: the slowest decides
        (2, math.inf, [1, 1, 1, 1], Ending(3.0, 0, 2)),  # over-selected: the second of four
        (4, math.inf, [1, 1, 0, 1], Ending(5.0, 3, 3)),  # a drop-out is known: the last survivor
        (4, 4.0, [1, 1, 1, 1], Ending(4.0, 0, 2)),  # two reports by the deadline
        (2, 4.0, [1, 1, 1, 1], Ending(3.0, 0, 2)),  # enough reports before it
        (2, 4.0, [1, 0, 1, 1], Ending(4.0, 0, 1)),  # one is missing: nobody knows why
        (4, 0.5, [1, 1, 1, 1], Ending(1.0, 1, 1)),  # all too slow: the fastest
        (2, 4.0, [0, 0, 0, 0], Ending(4.0, 1, 1)),  # all dropped out: asked again, noticed at 4
        (2, math.inf, [0, 0, 0, 0], Ending(1.0, 1, 1)),
    ],
)
def test_endings_by_hand(
    wanted: int, deadline_s: float, survives: list[int], expected: Ending
) -> None:
    assert ending(REPORTS, np.array(survives, np.bool_), wanted, deadline_s) == expected


def test_a_client_by_hand_and_as_appfl_has_it() -> None:
    # 40 steps of 0.05 s on a device that is 3 times as slow: 6 s. A message of 1,500,000 B over
    # 300 Mbit/s, 10^6 bits each: 1.5e6 * 8 / 300e6 = 0.04 s, there and back.
    bandwidth_mbps, model_bytes, steps, seconds_per_step, factor = 300.0, 1.5e6, 40, 0.05, 3.0
    appfl = steps * seconds_per_step * factor + 2 * model_bytes * 8 / (bandwidth_mbps * 1e6)
    assert appfl == pytest.approx(6.08)
    speed = np.array([bandwidth_mbps * 1e6 / 8])
    compute_s, transfer_s = client_seconds(
        np.array([40.0]), 0.05, np.array([3.0]), (model_bytes, speed), (model_bytes, speed)
    )
    assert compute_s[0] == pytest.approx(6.0)
    assert transfer_s[0] == pytest.approx(0.08)
    assert (compute_s + transfer_s)[0] == pytest.approx(appfl)


def test_directions_are_told_apart() -> None:
    up, down = np.array([10.0, 20.0]), np.array([40.0, 80.0])
    zero = np.zeros(2)
    _, transfer_s = client_seconds(zero, 1.0, zero, (100.0, up), (200.0, down))
    assert transfer_s.tolist() == [10 + 5, 5 + 2.5]


SECONDS = st.floats(0.001, 1e6)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Reports, who survives, and how many clients are wanted of the first ones."""
    times = draw(st.lists(SECONDS, min_size=1, max_size=12))
    alive = draw(st.lists(st.booleans(), min_size=len(times), max_size=len(times)))
    return np.array(times), np.array(alive), draw(st.integers(1, len(times)))


@given(rounds(), SECONDS)
def test_over_selection_with_a_deadline_never_ends_later(
    one: tuple[np.ndarray, np.ndarray, int], deadline_s: float
) -> None:
    times, alive, wanted = one
    more = ending(times, alive, wanted, deadline_s)
    less = ending(times[:wanted], alive[:wanted], wanted, deadline_s)
    assert more.after_s <= less.after_s
    everybody = np.ones(len(times), np.bool_)
    plain = ending(times[:wanted], everybody[:wanted], wanted)
    assert ending(times, everybody, wanted, deadline_s).after_s <= max(
        plain.after_s, times[:wanted].min()
    )


@pytest.mark.slow
@given(rounds(), st.one_of(st.just(math.inf), SECONDS), st.floats(0.01, 1.0))
def test_faster_reports_never_end_a_round_later(
    one: tuple[np.ndarray, np.ndarray, int], deadline_s: float, share: float
) -> None:
    times, alive, wanted = one
    faster = times.copy()
    faster[::2] *= share
    assert (
        ending(faster, alive, wanted, deadline_s).after_s
        <= ending(times, alive, wanted, deadline_s).after_s
    )


@given(rounds(), st.one_of(st.just(math.inf), SECONDS))
def test_a_round_has_a_report_and_never_more_than_it_wants(
    one: tuple[np.ndarray, np.ndarray, int], deadline_s: float
) -> None:
    times, alive, wanted = one
    end = ending(times, alive, wanted, deadline_s)
    assert 1 <= end.reports <= wanted
    assert end.after_s >= times[end.last]
    assert alive[end.last] or not (alive & (times <= deadline_s)).any()


@given(rounds(), SECONDS)
def test_dropout_never_ends_a_round_with_a_deadline_earlier(
    one: tuple[np.ndarray, np.ndarray, int], deadline_s: float
) -> None:
    times, alive, wanted = one
    everybody = ending(times, np.ones(len(times), np.bool_), wanted, deadline_s)
    assert ending(times, alive, wanted, deadline_s).after_s >= everybody.after_s


# ----------------------------------------------------------------------- when clients are available

TWO = Availability.of_intervals(
    [(100.0, np.array([[10.0, 20.0], [50.0, 60.0]])), (40.0, np.array([[0.0, 5.0]]))]
)


@pytest.mark.parametrize(
    ("time_s", "first", "second"),
    [
        (0.0, 10, 0),
        (5.0, 5, 0),
        (6.0, 4, 34),  # the second is back at 40
        (15.0, 0, 25),
        (20.0, 0, 20),  # an interval holds its end
        (30.0, 20, 10),
        (61.0, 49, 19),  # the first is back at 110
        (112.0, 0, 8),
    ],
)
def test_waiting_by_hand(time_s: float, first: float, second: float) -> None:
    assert TWO.wait_s(np.array([0, 1, 0]), time_s).tolist() == [first, second, first]


@pytest.mark.parametrize("kind", ["lognormal", "sine"])
def test_drawn_rates_are_as_stated(kind: str) -> None:
    number, beta = 4000, 0.3
    found = drawn(kind, number, beta, seed=5)
    hours = np.zeros(number)
    np.add.at(hours, found.client, found.end_s - found.start_s)
    shares = hours / DAY_S
    # c_i ~ LogNormal(0, -ln 0.7), p_i = c_i / max c: the largest is 1, the shape that of ln c.
    sigma = -np.log(0.7)
    rates = shares[shares > 0.05]
    if kind == "lognormal":
        assert shares.max() == 1.0
        assert np.std(np.log(rates)) == pytest.approx(sigma, rel=0.1)
    else:
        # Half of the time at best: the mean of 0.4 sin + 0.5 over a day.
        assert shares.max() == pytest.approx(0.5, abs=0.08)
    again = drawn(kind, number, beta, seed=5)
    assert np.array_equal(again.start_s, found.start_s)
    other = drawn(kind, number, beta, seed=6)
    assert len(other.start_s) != len(found.start_s) or (other.start_s != found.start_s).any()


def test_everybody_is_available_once_a_day() -> None:
    found = drawn("sine", 500, 0.9, seed=1)
    assert np.unique(found.client).tolist() == list(range(500))
    waits = found.wait_s(np.arange(500), 3 * DAY_S + 7.0)
    assert waits.min() >= 0
    assert waits.max() <= DAY_S


def test_the_sine_is_high_in_the_first_half_of_the_day() -> None:
    found = drawn("sine", 300, 0.0, seed=2)
    slot_s = DAY_S / SLOTS

    def here(slot: int) -> float:
        return float(np.mean(found.wait_s(np.arange(300), (slot + 0.5) * slot_s) == 0))

    # 0.4 sin(2 pi t) + 0.5 at a quarter and at three quarters of the day.
    assert here(SLOTS // 4 - 1) == pytest.approx(0.9, abs=0.07)
    assert here(3 * SLOTS // 4 - 1) == pytest.approx(0.1, abs=0.07)


HOURS = [drawn("sine", 6, 0.5, seed) for seed in range(4)]


@given(st.sampled_from(HOURS), st.floats(0, 4e5), st.floats(0, 4e5))
def test_who_asks_later_is_not_served_earlier(
    hours: Availability, one: float, other: float
) -> None:
    clients, (early, late) = np.arange(6), sorted((one, other))
    served = early + hours.wait_s(clients, early), late + hours.wait_s(clients, late)
    assert np.all(served[0] <= served[1] + 1e-4)  # positions on the line are rounded


@pytest.mark.parametrize(
    ("period_s", "intervals"),
    [
        (100.0, []),
        (0.0, [[0.0, 0.0]]),
        (np.inf, [[0.0, 1.0]]),
        (100.0, [[5.0, 2.0]]),
        (100.0, [[5.0, 20.0], [10.0, 30.0]]),
        (100.0, [[-1.0, 20.0]]),
        (100.0, [[1.0, 101.0]]),
        (100.0, [[np.nan, 1.0]]),
    ],
)
def test_impossible_hours_are_refused(period_s: float, intervals: list[list[float]]) -> None:
    with pytest.raises(InvalidArgumentError, match="`clients` must"):
        Availability.of_intervals([(period_s, np.array(intervals).reshape(-1, 2))])
