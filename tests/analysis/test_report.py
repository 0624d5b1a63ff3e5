"""The report: what is one problem, numbers checked by hand, one page that needs no other file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.analysis import Header, RunRecord, StepRecord, build_report, group
from fedhpo_gym.analysis.plot import draw_curves
from fedhpo_gym.analysis.problems import ProblemRuns, QuartileCurve, Summary, finals
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, MissingDependencyError
from fedhpo_gym.records.incumbents import Trajectory, Trials

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
VOID = {"meta", "link", "br"}


def run(
    agent: str = "random",
    seed: int = 0,
    losses: Sequence[float] = (0.5, 0.7, 0.3),
    times: Sequence[float] = (10.0, 20.0, 30.0),
    **changes: Any,
) -> tuple[Path, RunRecord]:
    """Make a record of some trials of 500 rounds."""
    fields = {"fingerprint": "sha256:abc", **changes}
    trials = [(time, loss, 500) for time, loss in zip(times, losses, strict=True)]
    return record(agent, trials, {"backend": "tabular", "fidelity": {"round": 500}}, seed, **fields)


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
    found = finals(problem.runs["random"])
    val_loss = Summary.of(found["val_loss"])
    assert val_loss
    assert (val_loss.mean, val_loss.std) == pytest.approx((0.2, 0.2 / np.sqrt(2)))
    means = {n: one.mean for n, values in found.items() if (one := Summary.of(values))}
    assert means["test_loss"] == pytest.approx(0.3)
    assert means["test_accuracy"] == pytest.approx(0.8)
    assert means["trials"] == 2.5
    winner = problem.winner()
    assert winner
    assert winner.path == records[1][0]
    (single,) = group([run(losses=(0.2, 0.4), times=(1.0, 2.0))])
    alone = finals(single.runs["random"])
    assert alone["test_loss"] == pytest.approx([0.3])
    one = Summary.of(alone["val_loss"])
    assert one
    assert one.std is None


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


def html_of(
    records: Iterable[tuple[Path, RunRecord]], version: str, now: datetime | None = None
) -> str:
    return build_report(group(records), version, now).html


@pytest.fixture(scope="module")
def page() -> str:
    return html_of(two_agents(), "9.9.9", NOW)


@pytest.mark.slow
def test_the_page_is_whole_and_needs_no_other_file() -> None:
    html = html_of([*two_agents(), run(id="FedHPO-LR-Car-v0")], "0.1.0", NOW)
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_same_records_make_the_same_page(page: str) -> None:
    is_same = (
        html_of(reversed(two_agents()), "9.9.9", NOW) == page
    )  # pytest would take minutes to show how two pages differ
    assert is_same


def test_one_agent_alone_is_never_the_best() -> None:
    assert Page(html_of([run()], "0.1.0", NOW)).bold == []


def test_what_records_say_is_text_and_never_markup() -> None:
    evil = "<script>$x_{$</script>"
    html = html_of([run(evil, id=evil, fingerprint=evil)], evil, NOW)
    assert html.count("<script>") == 0
    assert html.count("&lt;script&gt;") >= 5
    Page(html)


def test_no_records_are_refused() -> None:
    with pytest.raises(MissingDataError, match="fedhpo-gym run"):
        html_of([], "0.1.0")


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[plot\]'"):
        html_of([run()], "0.1.0", NOW)


def _limits(problem: ProblemRuns, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    from matplotlib.axes import Axes

    limits: list[tuple[float, float]] = []
    monkeypatch.setattr(Axes, "set_ylim", lambda _self, low, high: limits.append((low, high)))
    draw_curves(problem.curves(), "x")
    return limits[0]


def test_a_curve_may_end_long_before_another() -> None:
    """It does where a run comes to recommend what does not keep the constraints."""
    times, losses = np.array([1.0, 2.0, 90.0]), np.array([0.9, 0.8, 0.7])
    long, short = (QuartileCurve(times[:n], *[losses[:n]] * 3) for n in (3, 2))
    assert b"<svg" in draw_curves({"random": long, "asha": short}, "x").svg.encode()


def test_a_terrible_first_trial_does_not_hide_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    times = (10.0, 20.0, 60.0, 100.0)
    (problem,) = group([run(losses=(4000.0, 2.0, 1.0, 0.9), times=times)])
    low, high = _limits(problem, monkeypatch)
    assert 0.7 < low < 0.9
    assert 2.0 < high < 3.0
    (flat,) = group([run(losses=(0.5,), times=(10.0,))])
    assert _limits(flat, monkeypatch)[0] < 0.5 < _limits(flat, monkeypatch)[1]


ID = "FedHPO-LR-CreditG-v0"
Trial = tuple[float, float, int]


def record(
    agent: str, trials: list[Trial], kwargs: dict[str, Any], seed: int = 0, **header: Any
) -> tuple[Path, RunRecord]:
    """Make a record of trials: time, validation loss, rounds; test loss is a tenth more."""
    steps, best = [], 0
    for number, (time, loss, rounds) in enumerate(trials):
        best = number if loss < trials[best][1] else best
        fidelity = {"round": rounds, "client_sample_rate": 1.0}
        steps.append(
            StepRecord(
                action=[0.0],
                reward=-loss,
                terminated=number == len(trials) - 1,
                truncated=False,
                configuration={"learning_rate": 0.01 * (number + 1)},
                fidelity=fidelity,
                objectives={"val_loss": loss},
                cost={"time_s": 1.0},
                elapsed_s=time,
                incumbent={
                    "trial": best + 1,
                    "val_loss": trials[best][1],
                    "configuration": {"learning_rate": 0.01 * (best + 1)},
                },
                test={"loss": loss + 0.1, "accuracy": 1 - loss},
            )
        )
    fields = {"id": ID, "fingerprint": "card:new", **header}
    made = Header(
        package_version="0.1.0", agent=agent, seed=seed, spec={"kwargs": kwargs}, **fields
    )
    return Path(f"{agent}-{seed}.jsonl"), RunRecord(made, tuple(steps))


FULL = {"backend": "tabular", "fidelity": {"round": 81, "client_sample_rate": 1.0}}
FREE = {"backend": "tabular", "fidelity": {"client_sample_rate": 1.0}}


def test_black_box_and_multi_fidelity_agents_share_a_problem() -> None:
    random = record("random", [(10.0, 0.5, 81), (20.0, 0.4, 81)], FULL)
    hyperband = record("hyperband", [(1.0, 0.3, 3), (4.0, 0.6, 9), (14.0, 0.45, 81)], FREE)
    (problem,) = group([random, hyperband], rule="highest_fidelity")
    assert problem.name == ID
    assert problem.kwargs == {"backend": "tabular"}
    finals = {agent: runs[0].trajectory.final for agent, runs in problem.runs.items()}
    assert finals == {"hyperband": 0.45, "random": 0.4}, "0.3 was seen with 3 rounds only"
    best = problem.runs["hyperband"][0].best
    assert best
    assert (best.number, best.fidelity["round"]) == (3, 81)
    (recommended,) = group([random, hyperband])
    assert recommended.runs["hyperband"][0].trajectory.final == 0.3


def test_a_reward_is_the_agents_affair_too() -> None:
    one = record("random", [(1.0, 0.5, 81)], FULL)
    other = record("ppo", [(1.0, 0.5, 81)], {**FULL, "reward": "improvement"})
    assert len(group([one, other])) == 1


def test_one_agent_under_two_fidelities_is_two_contestants() -> None:
    low = {"backend": "tabular", "fidelity": {"round": 9, "client_sample_rate": 1.0}}
    records = [
        record("random", [(10.0, 0.5, 81)], FULL),
        record("random", [(1.0, 0.6, 9)], low),
        record("optuna-tpe", [(1.0, 0.6, 81)], FULL),
    ]
    (problem,) = group(records)
    assert [*problem.runs] == [
        "optuna-tpe",
        "random (fidelity.round=81)",
        "random (fidelity.round=9)",
    ]
    assert problem.runs["optuna-tpe"][0].trajectory.agent == "optuna-tpe"


def test_problems_of_one_id_are_named_by_what_they_differ_in() -> None:
    records = [
        record("random", [(1.0, 0.5, 81)], FULL),
        record("random", [(1.0, 0.5, 81)], {**FULL, "system": {"compute": "epochs"}}),
        record("random", [(1.0, 0.5, 81)], FULL, fingerprint="card:other"),
    ]
    assert [problem.name for problem in group(records)] == [
        f"{ID} (data 1)",
        f"{ID} (data 2)",
        f"{ID} (system.compute=epochs)",
    ]


def test_numbers_under_an_old_name_are_the_same_problem() -> None:
    old = record("random", [(1.0, 0.5, 81)], FULL, fingerprint="arrays:old")
    new = record("optuna-tpe", [(1.0, 0.4, 81)], FULL)
    asked: list[str] = []

    def present(header: Header) -> str:
        asked.append(header.fingerprint)
        return "card:new"

    assert len(group([old, new])) == 2, "unless it is known, other names are other numbers"
    (problem,) = group([old, new], present=present)
    assert problem.fingerprints == ("arrays:old", "card:new")
    assert sorted(asked) == ["arrays:old", "card:new"]
    asked.clear()
    group([new], present=present)
    assert asked == [], "one name needs no question"


def test_foreign_runs_join_by_the_name_of_the_problem() -> None:
    trials = Trials(np.array([2.0]), np.array([0.3]))
    foreign = [
        (Path("t.csv"), Trajectory.of(ID, "smac", 0, trials)),
        (Path("t.csv"), Trajectory.of("toy", "smac", 0, trials)),
    ]
    joined, alone = group([record("random", [(1.0, 0.5, 81)], FULL)], foreign)
    assert [*joined.runs] == ["random", "smac"]
    assert (alone.name, [*alone.runs]) == ("toy", ["smac"])
    smac = finals(joined.runs["smac"])
    assert (smac["val_loss"], smac["test_loss"], smac["trials"]) == ([0.3], [None], [None])
    assert alone.winner() is None
    with pytest.raises(InvalidArgumentError, match=r"t.csv both hold"):
        group([record("smac", [(1.0, 0.5, 81)], FULL)], foreign)


def test_a_record_without_validation_loss_is_refused() -> None:
    path, made = record("random", [(1.0, 0.5, 81)], FULL)
    made.steps[0].objectives.clear()  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgumentError, match="must hold 'val_loss'"):
        group([(path, made)])


@pytest.mark.usefixtures("no_pictures")
def test_at_full_fidelity_lower_levels_do_not_count_at_any_time() -> None:
    records = [
        record("random", [(10.0, 0.5, 81), (20.0, 0.4, 81)], FULL),
        record("hyperband", [(1.0, 0.3, 3), (14.0, 0.45, 81), (15.0, 0.1, 3)], FREE),
        record("early", [(1.0, 0.3, 3), (14.0, 0.35, 27)], FREE),
    ]
    (problem,) = group(records, rule="full_fidelity")
    lines = {agent: runs[0].trajectory for agent, runs in problem.runs.items()}
    assert lines["hyperband"].at(np.array([13.0, 14.0, 15.0]))[1:].tolist() == [0.45, 0.45]
    assert np.isnan(lines["hyperband"].at(np.array([13.0]))).all()
    assert lines["random"].final == 0.4
    assert lines["early"].final == np.inf, "it never trained a course to its end"
    page = build_report([problem], "0.1.0").html
    assert "without full fidelity" in page
    assert "full fidelity" not in build_report(group(records[:1]), "0.1.0").html.split("How to")[0]


@pytest.mark.usefixtures("no_pictures")
def test_the_page_says_where_agents_ended_at_different_fidelities() -> None:
    records = [
        record("random", [(10.0, 0.5, 81), (20.0, 0.4, 81)], FULL),
        record("early", [(1.0, 0.3, 3), (14.0, 0.35, 27)], FREE),
    ]
    page = build_report(group(records), "0.1.0").html
    assert "early" in page
    assert "of lower fidelity" in page
