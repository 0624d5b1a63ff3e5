"""The report: numbers checked by hand, one page that needs no other file."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.analysis import Header, RunRecord, StepRecord, group, make_report
from fedhpo_gym.analysis.plot import draw_curves
from fedhpo_gym.analysis.problems import Curve, Problem
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, MissingDependencyError
from fedhpo_gym.records.incumbents import Trajectory
from fedhpo_gym.records.runs import trials_of_run

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
VOID = {"meta", "link", "br"}


def run(
    agent: str = "random",
    seed: int = 0,
    losses: Sequence[float] = (0.5, 0.7, 0.3),
    times: Sequence[float] = (10.0, 20.0, 30.0),
    **changes: Any,
) -> tuple[Path, RunRecord]:
    """Make a record of some trials: test loss is loss + 0.1, test accuracy 1 - loss."""
    spec = {"kwargs": {"backend": "tabular", "fidelity": {"round": 500}}}
    fields = {"id": "FedHPO-LR-CreditG-v0", "spec": spec, "fingerprint": "sha256:abc", **changes}
    steps = []
    for number, (loss, time) in enumerate(zip(losses, times, strict=True), start=1):
        best = int(np.argmin(losses[:number]))
        incumbent = {
            "trial": best + 1,
            "val_loss": losses[best],
            "configuration": {"learning_rate": 0.01 * (best + 1)},
        }
        steps.append(
            StepRecord(
                action=[0.0],
                reward=-loss,
                terminated=number == len(losses),
                truncated=False,
                configuration={"learning_rate": 0.01 * number},
                fidelity={"round": 500},
                objectives={"val_loss": loss},
                cost={"time_s": 10.0},
                elapsed_s=time,
                incumbent=incumbent,
                test={"loss": loss + 0.1, "accuracy": 1 - loss},
            )
        )
    header = Header(package_version="0.1.0", agent=agent, seed=seed, **fields)
    return Path(f"{agent}-{seed}.jsonl"), RunRecord(header, tuple(steps))


def test_a_run_is_a_step_function_of_its_incumbents() -> None:
    _, record = run()
    line = Trajectory.of("p", "random", 0, trials_of_run(record))
    values = line.at(np.array([0.0, 9.9, 10.0, 20.0, 29.9, 30.0, 99.0]))
    np.testing.assert_array_equal(values, [np.nan, np.nan, 0.5, 0.5, 0.5, 0.3, 0.3])


def test_curves_are_quantiles_over_runs_where_all_are_known() -> None:
    starts = [10.0, 12.0, 14.0, 16.0, 18.0]
    finals = [0.1, 0.2, 0.3, 0.4, 0.5]
    records = [
        run(seed=i, losses=(1.0, final), times=(start, 40.0))
        for i, (start, final) in enumerate(zip(starts, finals, strict=True))
    ]
    late = [run("late", losses=(2.0,), times=(50.0,))]
    (problem,) = group([*records, *late])
    curve = problem.curves()["random"]
    assert curve.time_s[0] == pytest.approx(18.0, abs=0.11)
    assert curve.time_s[0] >= 18.0
    assert curve.time_s[-1] == 50.0
    at_30, at_end = np.searchsorted(curve.time_s, 30.0), -1
    assert (curve.lower[at_30], curve.median[at_30], curve.upper[at_30]) == (1.0, 1.0, 1.0)
    ends = (curve.lower[at_end], curve.median[at_end], curve.upper[at_end])
    assert ends == pytest.approx((0.2, 0.3, 0.4))
    assert problem.curves()["late"].time_s.tolist() == [50.0]


def test_final_results_are_those_of_the_incumbent() -> None:
    records = [run(seed=0), run(seed=1, losses=(0.5, 0.1), times=(10.0, 30.0))]
    (problem,) = group(records)
    (result,) = problem.results()
    assert (result.agent, result.runs) == ("random", 2)
    assert result.val_loss
    assert result.test_loss
    assert result.test_accuracy
    assert result.trials
    assert result.val_loss.mean == pytest.approx(0.2)
    assert result.val_loss.std == pytest.approx(0.2 / np.sqrt(2))
    assert result.test_loss.mean == pytest.approx(0.3)
    assert result.test_accuracy.mean == pytest.approx(0.8)
    assert result.trials.mean == 2.5
    winner = problem.winner()
    assert winner
    assert winner.path == records[1][0]
    (single,) = group([run(losses=(0.2, 0.4), times=(1.0, 2.0))])
    (alone,) = single.results()
    assert alone.test_loss
    assert alone.val_loss
    assert alone.test_loss.mean == pytest.approx(0.3)
    assert alone.val_loss.std is None


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "FedHPO-LR-Car-v0"},
        {"fingerprint": "sha256:def"},
        {"spec": {"kwargs": {"backend": "raw", "fidelity": {"round": 500}}}},
        {"spec": {"kwargs": {"backend": "tabular", "system": {"compute": "epochs"}}}},
        {"spec": {"kwargs": {"backend": "tabular", "budget_s": 9.0}}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_runs_of_other_settings_or_data_are_another_problem(changes: dict[str, Any]) -> None:
    assert len(group([run(), run(seed=1)])) == 1
    problems = group([run(), run(seed=1, **changes), run("optuna-tpe")])
    assert sorted(len(problem.runs) for problem in problems) == [1, 2]


def test_the_same_run_twice_is_refused() -> None:
    first, second = run(), run()
    with pytest.raises(InvalidArgumentError, match=r"a.jsonl and b.jsonl both hold .*'random'"):
        group([(Path("a.jsonl"), first[1]), (Path("b.jsonl"), second[1])])


class Page(HTMLParser):
    """Checks that elements are closed in order, and collects what a test asks for."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.bold: list[str] = []
        self.text = ""
        self._best = False
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.links += [v for n, v in values.items() if n in ("href", "src", "xlink:href")]
        self.ids += [values["id"]] if "id" in values else []
        self._best = "best" in values.get("class", "").split()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._best = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._best:
            self.bold.append(data)


def two_agents() -> list[tuple[Path, RunRecord]]:
    return [
        run(seed=0),
        run(seed=1, losses=(0.6, 0.5, 0.4)),
        run("optuna-tpe", 0, losses=(0.5, 0.25, 0.6)),
        run("optuna-tpe", 1, losses=(0.5, 0.2, 0.6)),
    ]


@pytest.fixture(scope="module")
def page() -> str:
    return make_report(two_agents(), "9.9.9", NOW)


def test_the_page_is_whole_and_needs_no_other_file() -> None:
    html = make_report([*two_agents(), run(id="FedHPO-LR-Car-v0")], "0.1.0", NOW)
    page = Page(html)
    # Six of the comparison and five in its rows, two of the first problem, one of the other.
    assert html.count("<svg") == 14
    assert len(page.ids) == len(set(page.ids)), "an id is used twice"
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links), page.links
    for reference in re.findall(r"url\((.*?)\)", html):
        assert reference.startswith("#")
        assert reference[1:] in page.ids
    hosts = {"www.w3.org"}  # names of XML vocabularies; nothing is fetched
    assert set(re.findall(r"https?://([^/\"]+)", html)) <= hosts
    assert not re.search(r"<(script|link|img|iframe)|@import", html)
    assert 'name="viewport"' in html


def test_the_page_states_results_winner_and_versions(page: str) -> None:
    read = Page(page)
    text = " ".join(read.text.split())
    assert "0.3500 ± 0.0707" in text
    assert read.bold.count("0.2250 ± 0.0354") == 2
    assert "Found by optuna-tpe with seed 1 in trial 2 of 3: validation loss 0.2000" in text
    assert "test loss 0.3000, test accuracy 0.8000" in text
    assert re.search(r"learning_rate\s*0.02", text)
    assert re.search(r"validation loss\s*0.2\b", text)
    assert "4 runs on 1 problem. Report made 2026-01-02 03:04 UTC by fedhpo-gym 9.9.9" in text
    assert "records written by fedhpo-gym 0.1.0" in text
    assert "backend = tabular. Data fingerprint sha256:abc." in text
    assert "simulated time (seconds)" in text


def test_the_same_records_make_the_same_page(page: str) -> None:
    is_same = (
        make_report(reversed(two_agents()), "9.9.9", NOW) == page
    )  # pytest would take minutes to show how two pages differ
    assert is_same


def test_one_agent_alone_is_never_the_best() -> None:
    assert Page(make_report([run()], "0.1.0", NOW)).bold == []


def test_what_records_say_is_text_and_never_markup() -> None:
    evil = "<script>$x_{$</script>"
    html = make_report([run(evil, id=evil, fingerprint=evil)], evil, NOW)
    assert html.count("<script>") == 0
    assert html.count("&lt;script&gt;") >= 5
    Page(html)


def test_no_records_are_refused() -> None:
    with pytest.raises(MissingDataError, match="fedhpo-gym run"):
        make_report([], "0.1.0")


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[plot\]'"):
        make_report([run()], "0.1.0", NOW)


def _limits(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    from matplotlib.axes import Axes

    limits: list[tuple[float, float]] = []
    monkeypatch.setattr(Axes, "set_ylim", lambda _self, low, high: limits.append((low, high)))
    draw_curves(problem.curves(), "x")
    return limits[0]


def test_a_curve_may_end_long_before_another() -> None:
    """It does where a run comes to recommend what does not keep the constraints."""
    times, losses = np.array([1.0, 2.0, 90.0]), np.array([0.9, 0.8, 0.7])
    long, short = (Curve(times[:n], *[losses[:n]] * 3) for n in (3, 2))
    assert b"<svg" in draw_curves({"random": long, "asha": short}, "x").svg.encode()


def test_a_terrible_first_trial_does_not_hide_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    times = (10.0, 20.0, 60.0, 100.0)
    (problem,) = group([run(losses=(4000.0, 2.0, 1.0, 0.9), times=times)])
    low, high = _limits(problem, monkeypatch)
    assert 0.7 < low < 0.9
    assert 2.0 < high < 3.0
    (flat,) = group([run(losses=(0.5,), times=(10.0,))])
    assert _limits(flat, monkeypatch)[0] < 0.5 < _limits(flat, monkeypatch)[1]
