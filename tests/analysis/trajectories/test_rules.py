"""Which trial is the incumbent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.records.incumbents import RULES, Trajectory, Trials, incumbents


def trials(values: list[float], levels: list[float] | None = None, **others: Any) -> Trials:
    times = others.pop("times", [float(n + 1) for n in range(len(values))])
    level = None if levels is None else np.array(levels)
    return Trials(np.array(times), np.array(values), level, **others)


def test_higher_fidelity_is_preferred_by_hand() -> None:
    tried = trials([0.3, 0.2, 0.9, 0.1, 0.8, 0.8, 0.7], [1, 1, 3, 1, 3, 9, 3])
    assert incumbents(tried).tolist() == [0, 1, 2, 2, 4, 5, 5]
    named = np.array([0, 0, 2, 2, 2, 5, 5])
    assert incumbents(replace(tried, recommended=named)).tolist() == named.tolist()


def test_of_equals_the_first_stands() -> None:
    for rule in RULES:
        assert incumbents(trials([0.5, 0.5, 0.4, 0.4], [2, 2, 2, 2]), rule).tolist() == [0, 0, 2, 2]


def test_infinite_values_have_an_incumbent() -> None:
    assert incumbents(trials([np.inf, np.inf, 1.0], [1, 2, 2])).tolist() == [0, 1, 2]


@pytest.mark.parametrize("key", range(20))
def test_the_rule_is_its_sentence(key: int) -> None:
    rng = stream(0, "rules", key)
    values, levels = rng.integers(0, 5, size=(2, 25)).astype(float)
    found = incumbents(trials(values.tolist(), levels.tolist()))
    for t in range(25):
        highest = max(levels[: t + 1])
        of_highest = [n for n in range(t + 1) if levels[n] == highest]
        assert found[t] == min(of_highest, key=lambda n: (values[n], n))


def test_with_one_level_the_rules_are_one() -> None:
    values = stream(0, "one level").normal(size=30).tolist()
    expected = [values.index(min(values[: n + 1])) for n in range(30)]
    assert incumbents(trials(values, [7.0] * 30)).tolist() == expected
    assert incumbents(trials(values)).tolist() == expected


@pytest.mark.parametrize("rule", RULES)
def test_what_comes_later_changes_nothing_before(rule: str) -> None:
    rng = stream(0, "later")
    values, levels = rng.normal(size=40).tolist(), rng.integers(1, 4, size=40).tolist()
    whole = incumbents(trials(values, levels), rule)
    assert incumbents(trials(values[:17], levels[:17]), rule).tolist() == whole[:17].tolist()


def test_a_trajectory_keeps_what_changes() -> None:
    tried = trials([3.0, 4.0, 1.0, 2.0], times=[10.0, 20.0, 30.0, 40.0])
    run = Trajectory.of("p", "a", 0, tried)
    assert run.time_s.tolist() == [10, 30]
    assert run.value.tolist() == [3, 1]
    assert (run.end_s, run.final) == (40, 1)
    at = np.array([9.9, 10.0, 29.0, 30.0, 99.0])
    np.testing.assert_array_equal(run.at(at), [np.nan, 3, 3, 1, 1])


def test_of_trials_at_one_moment_the_last_state_counts() -> None:
    run = Trajectory.of("p", "a", 0, trials([3.0, 1.0, 2.0], times=[5.0, 5.0, 5.0]))
    assert run.time_s.tolist() == [5]
    assert run.value.tolist() == [1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times": [2.0, 1.0]}, "backwards"),
        ({"test": np.zeros(3)}, "one entry per trial"),
        ({"times": [1.0, np.nan]}, "NaN"),
    ],
)
def test_what_is_no_run_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        trials([0.1, 0.2], **change)


def test_no_trial_and_no_rule_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one"):
        trials([])
    with pytest.raises(UnknownNameError, match="highest_fidelity"):
        incumbents(trials([1.0]), "highest")
