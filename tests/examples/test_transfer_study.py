"""The study of transfer: what chance leaves, and what its programs count."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.analysis.transfer import MethodRuns
from fedhpo_gym.stored.meta_data import DESIGN_SIZE, open_meta_data
from fedhpo_gym.tasks.meta import META_SPACES

pytest.importorskip("matplotlib")
import learned_study
import transfer_report as report
import transfer_study as study
import transfer_tasks as tasks


def cells(text: str, name: str) -> list[list[str]]:
    """Return the rows of a report that begin with a name, without it."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [line[1:] for line in lines if line[0].strip() == name]


def test_what_uniform_draws_leave_is_the_mean_over_all_of_them() -> None:
    values = np.array([0.7, 0.0, 0.2, 1.0, 0.2])
    expected = [np.mean([min(some) for some in combinations(values, n)]) for n in range(1, 6)]
    np.testing.assert_allclose(tasks.left_by_random(values, [1, 2, 3, 4, 5, 9]), [*expected, 0.0])
    assert tasks.left_by_random(values, 2) == pytest.approx(expected[1])


def test_agents_are_compared_with_as_many_draws_as_they_evaluate() -> None:
    """Evaluations of the initial design count: an agent that is no better than chance has 1."""
    runs = {}
    for name in ("Tuna", "Wine-5-label"):
        data = open_meta_data("LR")
        pool = tasks.regrets(data)[data.index(name)]
        left = tasks.left_by_random(pool, DESIGN_SIZE + np.arange(26))
        runs[name] = {"test0": (1.0 - left).tolist()}
    text = report.report({"discrete": {"gp": {"LR": runs}}}, 25)
    _, shares, without, by_space = cells(text, "uniform over the pool")
    assert shares == ["1.00 [1.00, 1.00]"] * 2
    assert without == ["1.00"] * 2
    assert [by_space] == [one for one in cells(text, "gp") if len(one) == 1]
    assert cells(text, "gp")[3] == ["1.00 [1.00, 1.00]"] * 2
    new = cells(text, "uniform over places that no source has")[1]
    assert all(float(one.split()[0]) < 1.0 for one in new)
    assert "uniform" not in report.report({"continuous": {"gp": {"LR": runs}}}, 25)


def test_pools_with_near_copies_are_those_of_the_page() -> None:
    found = [tasks.copies(open_meta_data(space)) for space in META_SPACES]
    assert [int((one > 0).sum()) for one in found] == [18, 10, 4]
    assert max(one.max() for one in found) == 2
    assert sum(len(one) for one in found) == 169


def test_runs_that_repeat_each_other_count_once() -> None:
    runs = tuple(("LR", task, f"seed{i}") for task in ("Tuna", "Wine") for i in range(3))
    regret = np.arange(24.0).reshape(6, 2, 2)
    regret[:, 1] = 0.5  # whatever the seed, and by chance in both tasks
    found = learned_study.distinct_runs(MethodRuns(("random", "list"), runs, regret))
    assert found == {"random": 6, "list": 2}


@pytest.mark.slow
@pytest.mark.usefixtures("few_meta_tasks")
def test_the_smallest_studies_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study.main(["--quick", "--workers", "1", "--out", str(tmp_path / "transfer")])
    text = capsys.readouterr().out
    assert [len(cells(text, name)) for name in ("rgpe", *report.UNIFORM)] == [4, 4, 4]
    tasks.main(["--quick", "--out", str(tmp_path / "tasks")])
    assert cells(capsys.readouterr().out, "LR")[0][-1].endswith(" of 84")
