"""The first screen of a report and its landscapes: what the numbers are made of."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from fake_study import make_record
from fedhpo_gym.analysis import RunRecord, group
from fedhpo_gym.analysis.comparison import REGRET, compare_agents
from fedhpo_gym.analysis.figures import objective_label
from fedhpo_gym.analysis.landscape import BINS, landscape
from fedhpo_gym.analysis.overview import collect_facts, overview, summary_table
from fedhpo_gym.analysis.plot import line_styles
from fedhpo_gym.analysis.problems import LARGEST, NO_GUARANTEE
from fedhpo_gym.analysis.report import _collect_studies, _format_objective, build_report
from fedhpo_gym.cli import BAD, ERROR, main
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, UnknownNameError
from fedhpo_gym.objectives import NO_PRIVACY
from fedhpo_gym.records.files import read_judged, read_record, write_record
from fedhpo_gym.records.incumbents import Study, Trials, incumbents
from fedhpo_gym.studies.plan import RunPlan
from fedhpo_gym.studies.regret import known_of
from fedhpo_gym.studies.run import do_run

ID = "FedHPO-LR-CreditG-v1"
FULL = {"round": 500, "client_sample_rate": 1.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return real runs of three agents, two of which fix their fidelity."""
    found = tmp_path_factory.mktemp("runs")
    for agent in ("random", "sobol", "hyperband"):
        for seed in (0, 1):
            fidelity = {"client_sample_rate": 1.0} if agent == "hyperband" else FULL
            arguments = {"budget_trials": 4, "fidelity": fidelity}
            plan = RunPlan(ID, arguments, agent, seed)
            do_run(plan, found, lambda _: None, lambda _: None, columnar=bool(seed))
    return found


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".jsonl", ".parquet"))


@pytest.mark.slow
def test_numbers_do_not_depend_on_company(tmp_path: Path) -> None:
    for agent, seed in product(("random", "sobol"), (0, 1)):
        do_run(RunPlan(ID, {"fidelity": FULL}, agent, seed), tmp_path, *[lambda _: None] * 2)
    [problem] = group([(path, read_judged(path)) for path in files(tmp_path)], known=known_of)
    lines = [run.relative for agent in ("random", "sobol") for run in problem.runs[agent]]
    known = [line for line in lines if line is not None]
    assert len(known) == 4
    # Company that is better than anything and worse than anything, and whose last trial is long.
    others = [
        replace(
            line,
            agent=f"other{place}",
            value=np.full_like(line.value, place / 9),
            end_s=(1 + place) * line.end_s,
        )
        for place in range(10)
        for line in known[:2]
    ]
    [few], [many] = (Study.whole(of) for of in (known, [*known, *others]))
    alone, crowded = compare_agents(few, REGRET), compare_agents(many, REGRET)
    for agent in ("random", "sobol"):
        own, there = alone.numbers[agent], crowded.numbers[agent]
        assert (own.iqm, own.iqm_interval, own.anytime) == (
            there.iqm, there.iqm_interval, there.anytime,
        )  # fmt: skip
        np.testing.assert_array_equal(alone.regret[agent].mean, crowded.regret[agent].mean)
    assert alone.curves["random"][0][:, -1].tolist() == alone.finals["random"][0].tolist()


def test_agents_that_choose_fidelities_are_ranked_apart_by_trials(folder: Path) -> None:
    [problem] = group([(path, read_judged(path)) for path in files(folder)], known=known_of)
    studies, notes = _collect_studies([problem])
    assert [study.agents for study, _ in studies] == [("random", "sobol")]
    assert "hyperband chose the fidelity" in notes[0]
    timed = replace(problem, kwargs={**problem.kwargs, "budget_trials": None, "budget_s": 9.0})
    kwargs = {name: value for name, value in timed.kwargs.items() if value is not None}
    [(together, _)], notes = _collect_studies([replace(timed, kwargs=kwargs)])
    assert together.agents == ("hyperband", "random", "sobol")
    assert notes == []


def test_the_first_screen_names_what_it_shows(folder: Path) -> None:
    judged = [(path, read_judged(path)) for path in files(folder)]
    [problem] = group(judged, known=known_of)
    problem = replace(problem, kwargs={})  # else agents that choose fidelities are ranked apart
    [(study, measure)], _ = _collect_studies([problem])
    found = compare_agents(study, measure)
    page = overview(found, collect_facts(found, [problem], []), line_styles(found.order))
    places = [page.index(f"</i>{agent}</th>") for agent in found.order]
    group_at = page.index("choose the fidelity of each trial"), page.index("at one fidelity")
    chosen = [agent == "hyperband" for agent in found.order]
    assert [max(one for one in group_at if one < at) for at in places] == [
        group_at[0] if one else group_at[1] for one in chosen
    ]
    assert page.count("LR-CreditG-v1 <b>") == len(found.order), "tiles say their problem"
    assert ">mind<" not in page
    assert found.numbers["random"].overtuning is not None
    endless = replace(found.numbers["random"], overtuning=np.inf)
    found = replace(found, numbers={**found.numbers, "random": endless})
    table = summary_table(found, collect_facts(found, [problem], []))
    [row] = [row for row in table.rows if row[0].text == "random"]
    assert row[table.header.index("overtuning")].text == "no gain"


def test_what_a_run_cost_is_the_sum_of_its_trials(folder: Path) -> None:
    [problem] = group([(path, read_judged(path)) for path in files(folder)], known=known_of)
    [(study, measure)], _ = _collect_studies([problem])
    known = collect_facts(
        compare_agents(study, measure), [problem], [(ID, "sobol", "7", "failed", "")]
    )
    whole = [read_record(path) for path in files(folder) if "random" in path.name]
    expected = [
        np.mean([record.final.elapsed_s / 3600 for record in whole]),
        np.mean(
            [
                sum(s.cost["upload_bytes"] + s.cost["download_bytes"] for s in one.steps) / 1e6
                for one in whole
            ]
        ),
        np.mean([sum(step.cost["rounds"] for step in one.steps) for one in whole]),
        np.mean([len(one.steps) for one in whole]),
    ]
    np.testing.assert_allclose(known["random"].costs, expected, rtol=1e-12)
    gone = sum(s.objectives["val_loss"] == LARGEST for one in whole for s in one.steps)
    said = [word for word in known["random"].warnings if "diverged" in word]
    assert said == ([f"{gone} of 8 trials diverged"] if gone else [])
    assert "1 run unfinished" in known["sobol"].warnings


def test_a_course_is_judged_by_its_last_step() -> None:
    times, losses = np.arange(1.0, 5.0), np.array([0.5, 0.1, 0.3, 0.4])
    assert incumbents(Trials(times, losses)).tolist() == [0, 1, 1, 1]
    assert incumbents(Trials(times, losses, is_course=True)).tolist() == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0.0, 0.1, 0.14])
def test_a_constrained_study_has_a_page_whatever_was_feasible(limit: float, tmp_path: Path) -> None:
    """No trial keeps the constraints, or some do, or some of all runs; with and without truth."""
    constraints = {"fairness_std": {"limit": limit, "weight": 1.0}}
    for agent, seed in product(("random", "sobol"), range(3)):
        plan = RunPlan(
            ID, {"budget_trials": 6, "fidelity": FULL, "constraints": constraints}, agent, seed
        )
        do_run(plan, tmp_path, lambda _: None, lambda _: None)
    runs = [(path, read_judged(path)) for path in files(tmp_path)]
    violations = [run.trials.violation for _, run in runs if run.trials.violation is not None]
    assert any((one == 0).any() for one in violations) == (limit > 0)
    assert any(one[0] > 0 for one in violations)
    for known in (known_of, None):
        [problem] = group(runs, known=known)
        page = build_report([problem], "0.1.0").html
        never = sum(bool((one > 0).all()) for one in violations)
        warning = "whose recommended configuration breaks a limit"
        assert (warning in page) == (never > 0)
        assert (f"{warning} at full fidelity" in page) == (never > 0 and known is not None)
        whole = [all(np.isfinite(r.trajectory.final) for r in of) for of in problem.runs.values()]
        assert ("no agent keeps the constraints in all runs" in page) == (not any(whole))


def test_no_privacy_is_no_number() -> None:
    assert NO_PRIVACY.epsilon == NO_GUARANTEE
    assert _format_objective("epsilon", NO_GUARANTEE) == "no guarantee"
    assert (_format_objective("epsilon", 8.0), _format_objective("val_loss", 2e4)) == ("8", "2e+04")
    assert objective_label("epsilon").endswith("by the trial alone"), (
        "tuning as a whole spends more"
    )


def tried(*trials: tuple[float, float, float, int]) -> RunRecord:
    """Return a record of trials with these x, y, validation losses and rounds."""
    made = make_record()
    first, last = made.steps[0], made.steps[-1]
    steps = []
    for number, (x, y, loss, rounds) in enumerate(trials, start=1):
        step = last if number == len(trials) else first
        steps.append(
            replace(
                step,
                configuration={"x": x, "y": y, "word": "a"},
                objectives={**step.objectives, "val_loss": loss},
                fidelity={"round": rounds},
                incumbent={**step.incumbent, "trial": 1},
                elapsed_s=float(number),
            )
        )
    return RunRecord(made.header, tuple(steps))


def test_cells_are_medians_of_the_highest_fidelity() -> None:
    one = tried((1.0, 0.1, 5.0, 9), (1.0, 0.1, 3.0, 9), (1.0, 0.2, 0.1, 3), (2.0, 0.2, 4.0, 9))
    other = tried((1.0, 0.1, 1.0, 9), (2.0, 0.2, 6.0, 9))
    found = landscape([one, other], ("x", "y"))
    assert found.ticks == (["1", "2"], ["0.1", "0.2"])
    np.testing.assert_array_equal(found.loss, [[3.0, np.nan], [np.nan, 5.0]])
    assert found.trials.tolist() == [[3, 0], [0, 2]]


def test_many_values_become_ranges_with_equally_many_trials() -> None:
    values = np.linspace(0.0, 1.0, 64)
    found = landscape([tried(*((v, 0.0, v, 9) for v in values.tolist()))], ("x", "y"))
    assert found.trials.tolist() == [[64 // BINS] * BINS]
    assert found.loss[0, 0] == pytest.approx(np.median(values[:8]))
    assert found.ticks[0][0] == "0 to 0.12"


def test_what_is_no_landscape_is_refused() -> None:
    record = tried((1.0, 0.1, 5.0, 9))
    with pytest.raises(UnknownNameError, match="hyperparameter"):
        landscape([record], ("x", "z"))
    with pytest.raises(InvalidArgumentError, match="numbers"):
        landscape([record], ("x", "word"))
    with pytest.raises(MissingDataError):
        landscape([], ("x", "y"))
    other = RunRecord(replace(record.header, id="Other-v0"), record.steps)
    with pytest.raises(InvalidArgumentError, match="one problem"):
        landscape([record, other], ("x", "y"))


@pytest.mark.slow
def test_the_command_draws_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    write_record(tmp_path / "a.jsonl", tried((1.0, 0.1, 5.0, 9), (2.0, 0.2, 4.0, 9)))
    words = ["report", str(tmp_path), "--landscape", "x,y", "--out"]
    for suffix, begin in ((".pdf", b"%PDF"), (".svg", b"<?xml"), (".csv", b"x,y,median")):
        target = tmp_path / f"landscape{suffix}"
        assert main([*words, str(target)]) == 0
        assert target.read_bytes().startswith(begin)
    assert main(["report", str(tmp_path), "--landscape", "x"]) in (BAD, ERROR)
    assert "two names" in capsys.readouterr().err
