"""When a round of single devices ends: by hand, and the laws."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhpo_gym.systems.cohorts import client_seconds, endings


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
