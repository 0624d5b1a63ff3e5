"""When clients are available: by hand, the rates of the drawn ones, and the law of waiting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.systems.devices import DAY_S, SLOTS, Availability, drawn

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
