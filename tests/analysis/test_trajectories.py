"""Which trial is the incumbent, and runs put together on common grids of times."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import (
    DamagedDataError,
    InvalidArgumentError,
    MissingDataError,
    UnknownNameError,
)
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.records.incumbents import (
    COLUMNS,
    RULES,
    Study,
    Trajectory,
    Trials,
    incumbents,
    read_table,
)
from fedhpo_gym.records.runs import level_of, problem_arguments


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


def test_the_trial_that_crosses_the_budget_counts_in_full() -> None:
    tried = trials([0.5, 0.2], times=[4.0, 13.0])
    run = replace(Trajectory.of("p", "a", 1, tried), budget_s=10.0)
    study = Study(("p",), ("a",), {("p", "a"): (run,)})
    found = study.values("p", "a", np.array([0.3, 0.5, 1.0]))
    assert found.tolist() == [[np.inf, 0.5, 0.2]]


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


def run(problem: str, agent: str, seed: int, values: list[float], end: float = 4.0) -> Trajectory:
    times = np.linspace(end / len(values), end, len(values))
    return Trajectory.of(problem, agent, seed, Trials(times, np.array(values)))


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_foreign_table_becomes_runs(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "value,time,seed,agent,problem,level,test\n"
        "0.5,2,0,smac,toy,9,0.6\n0.1,1,0,smac,toy,3,0.9\n0.4,3,0,smac,toy,9,0.7\n"
        "0.3,1,1,smac,toy,9,0.2\n",
    )
    first, second = read_table(path)
    assert (first.problem, first.agent, first.seed) == ("toy", "smac", 0)
    assert first.value.tolist() == [0.1, 0.5, 0.4]
    assert first.test is not None
    assert first.test.tolist() == [0.9, 0.6, 0.7]
    assert (second.seed, second.final) == (1, 0.3)
    path.write_text("\ufeff" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert read_table(path)[0].value.tolist() == first.value.tolist(), (
        "a byte-order mark is no name"
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    runs = [run('a "p", b', "x", 0, [0.5, 0.1, 0.3]), run("q", "y", 3, [1 / 3])]
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerows([COLUMNS, *(row for one in runs for row in one.rows())])
    again = read_table(tmp_path / "t.csv")
    for one, other in zip(runs, again, strict=True):
        assert (one.problem, one.agent, one.seed) == (other.problem, other.agent, other.seed)
        assert one.time_s.tolist() == other.time_s.tolist()
        assert one.value.tolist() == other.value.tolist()
        assert one.end_s == other.end_s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("problem,agent,seed,time\np,a,0,1\n", "must have the columns"),
        ("problem,agent,seed,time,value,cost\np,a,0,1,2,3\n", "must have the columns"),
        ("problem,agent,seed,time,value\np,a,0,1,nan\n", "line 2: `value` must be a finite"),
        ("problem,agent,seed,time,value\np,a,x,1,2\n", "line 2"),
        ("problem,agent,seed,time,value\np,a,0,1\n", "line 2"),
        ("problem,agent,seed,time,value\n", "no line after"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DamagedDataError, match=message):
        read_table(table(tmp_path, text))


def test_a_missing_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no table"):
        read_table(tmp_path / "none.csv")


def test_only_problems_that_all_agents_solved_are_compared() -> None:
    runs = [run(p, a, 0, [1.0]) for p in "pq" for a in "xy"]
    runs += [run("r", "x", 0, [1.0]), run("s", "x", 0, [1.0]), run("s", "z", 0, [1.0])]
    first, second = Study.whole(runs)
    assert (first.problems, first.agents) == (("p", "q"), ("x", "y"))
    assert (second.problems, second.agents) == (("s",), ("x", "z"))
    with pytest.raises(InvalidArgumentError, match="remove one"):
        Study.whole([*runs, runs[0]])


def test_a_study_puts_runs_on_one_grid() -> None:
    runs = [run("p", "x", s, [0.5, 0.2 + s], 4.0) for s in range(2)]
    runs += [run("p", "y", s, [0.4], 8.0) for s in (1, 2)]
    (study,) = Study.whole(runs)
    assert study.horizons_s == {"p": 8.0}
    at = np.array([0.1, 0.25, 0.5, 1.0])
    inf = float("inf")
    assert study.values("p", "x", at).tolist() == [[inf, 0.5, 0.2, 0.2], [inf, 0.5, 0.5, 0.5]]
    assert study.values("p", "y", at).tolist() == [[inf, inf, inf, 0.4]] * 2
    assert study.paired_seeds("p") == (1,)
    np.testing.assert_allclose(study.finals_of_means(), [[0.35, 0.4]])
    assert study.finals_of_runs().tolist() == [[0.5, 0.4]]


def test_fidelity_is_the_agents_affair_and_the_system_is_not() -> None:
    kwargs = {"backend": "tabular", "fidelity": {"round": 81}, "budget_s": 9.0, "reward": "score"}
    assert problem_arguments(kwargs) == {"backend": "tabular", "budget_s": 9.0}
    assert level_of({"round": 81, "client_sample_rate": 0.2}) == pytest.approx(16.2)
    assert level_of({}) == 1.0
