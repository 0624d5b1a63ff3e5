"""Regret of recorded runs, against what the truth says of the same numbers."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.analysis import group
from fedhpo_gym.analysis.comparison import REGRET, compare_agents
from fedhpo_gym.analysis.problems import finals
from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.records.files import read_judged, read_record, write_record
from fedhpo_gym.records.incumbents import Study
from fedhpo_gym.records.record import RunRecord, StepRecord
from fedhpo_gym.records.runs import ScoredTrials
from fedhpo_gym.studies.plan import RunPlan
from fedhpo_gym.studies.regret import hypervolume_regret_of, known_of, regret_of
from fedhpo_gym.studies.run import CellOutcome, do_run, log_outcome
from fedhpo_gym.wrappers import RegretInfo

pytestmark = pytest.mark.usefixtures("no_pictures")

ID = "FedHPO-LR-BreastCancer-v1"
ARGUMENTS = {"budget_trials": 12, "fidelity": {"client_sample_rate": 1.0}}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    folder = tmp_path_factory.mktemp("runs")
    plan = RunPlan(
        f"MO-{ID}", {**ARGUMENTS, "objectives": ("val_loss", "fairness_p10")}, "random", 0
    )
    assert do_run(plan, Path(folder), lambda _: None, lambda _: None)
    [path] = Path(folder).rglob("*.jsonl")
    return read_record(path)


FULL = {"round": 500, "client_sample_rate": 1.0}


def vector_runs(folder: Path, *agents: str, **arguments: Any) -> list[tuple[Path, RunRecord]]:
    """Return records of agents for two objectives, at full fidelity."""
    asked = {"objectives": ("val_loss", "fairness_p10"), "budget_trials": 12, "fidelity": FULL}
    for agent in agents:
        plan = RunPlan(f"MO-{ID}", {**asked, **arguments}, agent, 0)
        assert do_run(plan, folder, lambda _: None, lambda _: None)
    return [(path, read_record(path)) for path in sorted(folder.rglob("*.jsonl"))]


@pytest.fixture(scope="module")
def full_record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return vector_runs(tmp_path_factory.mktemp("full"), "sobol")[0][1]


def at_full_fidelity(record: RunRecord) -> np.ndarray:
    """Return the (T,) losses of the incumbents at full fidelity, each asked of an environment."""
    env = gym.make(ID, fidelity=FULL, disable_env_checker=True)
    env.reset(seed=0)
    found = []
    for step in record.steps:
        action = env.get_wrapper_attr("search_space").encode(step.incumbent["configuration"])
        found.append(env.step(action)[-1]["objectives"]["val_loss"])
    return np.array(found)


@pytest.mark.slow
def test_regret_is_that_of_the_recommended_configuration_at_full_fidelity(
    record: RunRecord,
) -> None:
    found, losses = regret_of(record), at_full_fidelity(record)
    everything = fedhpo_gym.truth(ID, fidelity=FULL).values[:, 0]
    assert found.regret.tolist() == (losses - everything.min()).tolist()
    share = (losses - everything.min()) / (np.median(everything) - everything.min())
    np.testing.assert_allclose(found.relative, np.minimum(share, 1.0), rtol=1e-12)
    assert found.regret.min() > 0
    assert any(step.fidelity["round"] < 500 for step in record.steps), "else the law says little"
    assert found.elapsed_s.tolist() == [step.elapsed_s for step in record.steps]


def test_no_regret_is_known_until_a_trial_is_feasible(tmp_path: Path) -> None:
    name = "FedHPO-LR-CreditG-v1"
    limits = {"constraints": {"fairness_std": 0.09}, "fidelity": FULL, "budget_trials": 20}
    plan = RunPlan(name, limits, "random", 4)
    do_run(plan, tmp_path, lambda _: None, lambda _: None)
    [path] = tmp_path.rglob("*.jsonl")
    record = read_record(path)
    found = regret_of(record)
    best = [record.steps[step.best_step - 1] for step in record.steps]
    feasible = np.array([step.objectives["fairness_std"] <= 0.09 for step in best])
    assert 0 < feasible.sum() < 20, "else the law says little"
    assert np.isfinite(found.regret).tolist() == feasible.tolist()
    assert (found.relative[~feasible] == 1.0).all()
    assert (found.regret >= 0).all()
    values = fedhpo_gym.truth(name, fidelity=FULL).values
    least = values[values[:, 1] <= 0.09, 0].min()
    losses = np.array([step.objectives["val_loss"] for step in best])
    assert found.regret[feasible].tolist() == (losses - least)[feasible].tolist()


def test_hypervolume_regret_falls_over_simulated_time(full_record: RunRecord) -> None:
    record = full_record
    elapsed_s, shares = hypervolume_regret_of(record)
    assert len(elapsed_s) == len(shares) == 12
    assert (np.diff(shares) <= 0).all()
    assert 0 < shares[-1] < 1
    _, alone = hypervolume_regret_of(record, ["val_loss"])
    assert (np.diff(alone) <= 0).all()
    with pytest.raises(UnknownNameError, match="objective"):
        hypervolume_regret_of(record, ["val_los"])


def test_hypervolume_regret_is_one_number_whoever_else_is_on_the_page(tmp_path: Path) -> None:
    runs = vector_runs(tmp_path, "random", "sobol", "nsga2")
    [together] = group(runs, known=known_of)
    own = [hypervolume_regret_of(one)[1][-1] for _, one in runs]
    # The page reads rewards, which are float32.
    assert [line.final for line in together.volumes()] == pytest.approx(own, abs=1e-5)
    for one, expected in zip(runs, own, strict=True):
        [alone] = group([one], known=known_of)
        assert alone.volumes()[0].final == pytest.approx(expected, abs=1e-5)
    assert len({*own}) == 3, "else the law says little"


def test_a_short_trial_is_on_no_front_of_full_fidelity(full_record: RunRecord) -> None:
    short = [replace(one, fidelity={**FULL, "round": 250}) for one in full_record.steps]
    assert hypervolume_regret_of(full_record)[1][-1] < 1.0
    assert hypervolume_regret_of(replace(full_record, steps=short))[1][-1] == 1.0


@pytest.mark.parametrize("cost", ["time_s", "flops"])
def test_every_trial_is_on_a_front_of_costs(cost: str, tmp_path: Path) -> None:
    objectives, fidelity = ("val_loss", cost), {"client_sample_rate": 0.2}
    runs = vector_runs(tmp_path, "sobol", objectives=objectives, fidelity=fidelity)
    brief = [replace(one, fidelity={**fidelity, "round": 1}) for one in runs[0][1].steps]
    record = replace(runs[0][1], steps=brief)
    values = [[*step.objectives.values()] for step in brief]
    truth = fedhpo_gym.truth(f"MO-{ID}", objectives=objectives)
    expected = truth.hypervolume_regret(values)
    assert 0 < expected[-1] < 1
    assert hypervolume_regret_of(record)[1].tolist() == expected.tolist()
    [problem] = group([(runs[0][0], record)], known=known_of)
    assert problem.volumes()[0].final == pytest.approx(expected[-1], abs=1e-5)


@pytest.mark.slow
def test_hypervolume_regret_under_noise_is_of_what_the_agent_believes(
    full_record: RunRecord,
) -> None:
    record = full_record
    names = [*record.steps[0].objectives]
    worst_told = [
        replace(
            step,
            objectives={name: float(number) for name in names},
            truth={"objectives": dict(step.objectives)},
        )
        for number, step in enumerate(record.steps)
    ]
    _, calm = hypervolume_regret_of(record, ["val_loss"])
    _, shares = hypervolume_regret_of(replace(record, steps=worst_told), ["val_loss"])
    assert shares.tolist() == [calm[0]] * len(calm), "the first trial was told to be the best"
    assert calm[-1] < calm[0]
    truth = fedhpo_gym.truth("FedHPO-LR-CreditG-v0")
    with pytest.raises(InvalidArgumentError, match="`observed` must have the shape"):
        truth.hypervolume_regret([[0.5]], ["val_loss"], observed=[[0.5], [0.6]])


def test_what_is_known_of_a_problem_is_whatever_fidelity_an_agent_fixed(record: RunRecord) -> None:
    known = known_of(record.header)
    assert known is not None
    everything = fedhpo_gym.truth(ID, fidelity=FULL).values[:, 0]
    assert (known.best, known.typical, known.exact) == (
        everything.min(),
        np.median(everything),
        True,
    )


def test_rewards_of_other_objectives_have_no_regret(record: RunRecord) -> None:
    steps = tuple(replace(step, reward=[1.0, 2.0, 3.0]) for step in record.steps)
    known, scored = known_of(record.header), ScoredTrials.of(replace(record, steps=steps))
    assert known is not None
    assert known.volume_regret is not None
    assert scored is not None
    with pytest.raises(InvalidArgumentError, match=r"`reward` of a run .* must have 2 numbers"):
        known.volume_regret(scored)


def test_all_that_say_regret_say_the_same(tmp_path: Path) -> None:
    """`regret`, the report's table, figure and comparison, its CSV, `load_runs`, and `info`."""
    for agent in ("random", "hyperband"):
        for seed in (0, 1):
            plan = RunPlan(ID, ARGUMENTS, agent, seed)
            do_run(plan, tmp_path, lambda _: None, lambda _: None, columnar=bool(seed))
    runs = [(path, read_record(path)) for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    assert len(runs) == 4
    told = {(one.header.agent, one.header.seed): regret_of(one) for _, one in runs}
    table = fedhpo_gym.load_runs(tmp_path)
    for (agent, seed), found in told.items():
        rows = table[(table["agent"] == agent) & (table["seed"] == seed)]
        assert rows["regret"].tolist() == found.regret.tolist()
        assert rows["relative_regret"].tolist() == found.relative.tolist()
    judged = [(path, read_judged(path)) for path, _ in runs]
    for given in (runs, judged):
        [problem] = group(given, known=known_of)
        for agent, own in problem.runs.items():
            ends = [one.regret[-1] for (name, _), one in told.items() if name == agent]
            shares = [one.relative[-1] for (name, _), one in told.items() if name == agent]
            final = finals(own)
            assert final["regret"] == ends
            # A row is about one incumbent: the one that the record names, at full fidelity.
            assert problem.known is not None
            assert final["val_loss"] == pytest.approx([problem.known.best + end for end in ends])
            for run in own:
                assert run.best is not None
                assert run.header is not None
                [record] = [one for _, one in runs if one.header == run.header]
                assert run.best.number == record.final.best_step
            assert final["relative_regret"] == shares
            times, band = problem.regret()[agent]
            assert band.mean[-1] == pytest.approx(np.mean(ends), rel=1e-12)
            assert len(times)
    relative = [run.relative for of in problem.runs.values() for run in of]
    [study] = Study.whole([line for line in relative if line is not None])
    summed = compare_agents(study, REGRET)
    for agent, ending in summed.finals.items():
        shares = [one.relative[-1] for (name, _), one in told.items() if name == agent]
        assert ending[0].tolist() == shares
    alone = compare_agents(
        Study.whole([line for line in relative if line is not None and line.seed == 0])[0], REGRET
    )
    assert alone.finals["random"][0][0] == summed.finals["random"][0][0], "whatever the company"


@pytest.mark.parametrize(
    ("value", "words"),
    [("x", "must be a .*number, got 'x'"), (-1.0, "must be in .*got -1"), (1e300, "must be in")],
)
def test_records_of_what_is_no_configuration_are_named_and_the_others_are_judged(
    value: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [(_, record)] = vector_runs(tmp_path, "random", objectives=("val_loss",))
    configuration = {**record.steps[0].configuration, "learning_rate": value}
    first = replace(record.steps[0], configuration=configuration)
    forged = replace(
        record, header=replace(record.header, seed=1), steps=(first, *record.steps[1:])
    )
    bad = tmp_path / "forged.jsonl"
    write_record(bad, forged)
    with pytest.raises(InvalidArgumentError, match=words):
        regret_of(forged)
    assert main(["regret", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert str(bad) in said.err
    assert len(said.err.splitlines()) == 1
    assert main(["report", str(tmp_path)]) == 2
    assert str(bad) in capsys.readouterr().err
    with pytest.warns(UserWarning, match="regret on .* is unknown"):
        table = fedhpo_gym.load_runs(tmp_path)
    assert table.groupby("seed")["regret"].count().tolist() == [12, 0]


def test_numbers_that_are_no_longer_stored_have_no_regret(record: RunRecord) -> None:
    other = replace(record, header=replace(record.header, fingerprint="0" * 16))
    with pytest.raises(InvalidArgumentError, match=r"stored now.*'0000"):
        regret_of(other)
    assert known_of(other.header) is None
    for kwargs in ({"backend": "raw"}, {"instances": "train"}):
        spec = {**record.header.spec, "kwargs": {**record.header.kwargs, **kwargs}}
        assert known_of(replace(record.header, spec=spec)) is None


@pytest.mark.parametrize("kind", ["round", "trial"])
@pytest.mark.parametrize("logged", [False, True])
def test_what_an_id_that_is_unknown_here_can_reach_is_unknown(
    kind: str, logged: bool, record: RunRecord, tmp_path: Path
) -> None:
    env_id, kwargs = "FedHPO-DAC-LR-Elsewhere-v1", {**record.header.kwargs, "instances": "train"}
    spec = {"id": env_id, "entry_point": f"fedhpo_gym.envs:make_{kind}_env", "kwargs": kwargs}
    header = replace(record.header, id=env_id, spec={**record.header.spec, **spec})
    if logged:
        log_outcome(tmp_path, CellOutcome(RunPlan(env_id, kwargs, "sobol", 0), "failed"))
        header = record.header
    write_record(tmp_path / "x.jsonl", replace(record, header=header))
    assert main(["report", str(tmp_path)]) == 0
    assert env_id in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert fedhpo_gym.load_runs(tmp_path)["regret"].notna().all() == logged


OWN_OBJECTIVE = """
from fedhpo_gym.objectives import Objective

def gap_of(evaluation):
    return evaluation.mean("val", "loss") - evaluation.mean("train", "loss")

GAP = Objective.of(gap_of, name="gap", unit="nats", minimize=True, bounds=(-1.0, 1.0))
"""


def test_who_names_what_no_record_may_decide_has_the_same_regret_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_gap.py").write_text(OWN_OBJECTIVE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    out, setting = str(tmp_path / "runs"), 'objectives=["val_loss", "own_gap:GAP"]'
    call = ["compare", ID, "--agents", "random,sobol", "--seeds", "2", "--out", out]
    assert main([*call, "--set", setting, "--set", "budget_trials=4"]) == 0
    assert "1 the median one" in capsys.readouterr().out
    assert main(["report", out]) == 0
    assert """--set 'objectives=["module:name"]'` to commands""" in capsys.readouterr().err
    for named in (setting, 'objectives=["own_gap:GAP"]'):
        assert main(["report", out, "--set", named]) == 0
        assert not capsys.readouterr().err
        assert main(["regret", out, "--set", named]) == 0
    with pytest.warns(UserWarning, match="regret on .* is unknown, and NaN here: `own` must hold"):
        assert fedhpo_gym.load_runs(out)["regret"].isna().all()
    assert fedhpo_gym.load_runs(out, {"objectives": ["own_gap:GAP"]})["regret"].notna().all()
    assert main(["report", out, "--set", "budget_trials=4"]) == 0
    assert "`--set budget_trials` must be one of the arguments" in capsys.readouterr().err


def test_who_watched_a_run_left_regret_in_its_record() -> None:
    env = RegretInfo(gym.make(ID, budget_trials=2))
    env.reset(seed=0)
    truth = env.get_wrapper_attr("full_truth")
    for _ in range(2):
        action = env.action_space.sample()
        *outcome, info = env.step(action)
        step = StepRecord.from_step(action, *outcome[1:], info)
        assert step.extra == {name: info[name] for name in ("regret", "relative_regret")}
        known = truth.regret_at([info["incumbent"]["configuration"]])
        assert (info["regret"], info["relative_regret"]) == tuple(one[0] for one in known)


def test_the_command_says_regret_and_the_report_shows_it(
    tmp_path: Path, record: RunRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path / "a" / "run.jsonl", record)
    assert main(["regret", str(tmp_path), "--out", str(tmp_path / "regret.csv")]) == 0
    found, (_, shares) = regret_of(record), hypervolume_regret_of(record)
    words = capsys.readouterr().out.splitlines()[1].split()
    assert words[:4] == [f"MO-{ID}", "random", "0", "12"]
    assert words[4:] == [f"{x[-1]:.4g}" for x in (found.regret, found.relative, shares)]
    with (tmp_path / "regret.csv").open(newline="") as handle:
        lines = list(csv.DictReader(handle))
    assert [float(line["relative_regret"]) for line in lines] == found.relative.tolist()
    assert [float(line["hypervolume_regret"]) for line in lines] == shares.tolist()
    assert [float(line["time"]) for line in lines] == found.elapsed_s.tolist()
    pytest.importorskip("matplotlib")
    assert main(["report", str(tmp_path), "--rule", "recommended"]) == 0
    with (tmp_path / "report_files" / "problem-1-results.csv").open(newline="") as handle:
        [row] = csv.DictReader(handle)
    assert float(row["regret"]) == found.regret[-1]
    page = (tmp_path / "report.html").read_text()
    assert "is the best configuration there, " in page
    assert "relative regret of 1 is the median configuration" in page
    trained = replace(record, header=replace(record.header, fingerprint="0" * 16))
    write_record(tmp_path / "a" / "run.jsonl", trained)
    assert main(["regret", str(tmp_path)]) == 1
    assert "stored now" in capsys.readouterr().err


def test_the_command_refuses_a_folder_in_place_of_a_file(
    tmp_path: Path, record: RunRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path / "run.jsonl", record)
    assert main(["regret", str(tmp_path), "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"`--out` must be a file, got the folder {tmp_path}; name a file in it" in said.err


def test_fronts_with_a_cost_are_of_trials_of_every_fidelity(tmp_path: Path) -> None:
    moocore = pytest.importorskip("moocore")
    for seed in range(2):
        plan = RunPlan(f"MO-{ID}", {"budget_trials": 10}, "random", seed)
        do_run(plan, tmp_path, lambda _: None, lambda _: None)
    runs = [(path, read_record(path)) for path in sorted(tmp_path.rglob("*.jsonl"))]
    [problem] = group(runs)
    errors = [-np.array([step.reward for step in one.steps]) for _, one in runs]
    assert [one.errors.tolist() for one in problem.scored()["random"]] == [
        one.tolist() for one in errors
    ], "trials of all fidelities"
    points = np.concatenate(errors)
    front = points[moocore.is_nondominated(points)]
    low, width = front.min(axis=0), np.ptp(front, axis=0)
    corner = np.full(3, 1.1)
    whole = moocore.hypervolume((front - low) / width, ref=corner)
    for line, own in zip(problem.volumes(), errors, strict=True):
        volume = moocore.hypervolume((own - low) / width, ref=corner)
        assert line.final == pytest.approx(1 - volume / whole, abs=1e-12)


@pytest.mark.slow
def test_without_moocore_all_that_needs_no_volume_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "moocore", None)
    for seed in range(2):
        plan = RunPlan(f"MO-{ID}", {"budget_trials": 4}, "random", seed)
        do_run(plan, tmp_path / "runs", lambda _: None, lambda _: None)
    assert main(["regret", str(tmp_path / "runs")]) == 0
    out = capsys.readouterr().out
    assert out.count(" –\n") == 2
    assert "needs moocore: install the extra `fronts`" in out
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    assert "Fronts are not judged" in (tmp_path / "page.html").read_text()


def test_different_runs_of_one_seed_have_keys_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pd = pytest.importorskip("pandas")
    budget = {"budget_trials": 3}
    for plan in (
        RunPlan(ID, budget, "sobol", 0),
        RunPlan(ID, budget, "sobol", 0, workers=2),
        RunPlan(ID, budget, "sobol", 0, shared_start=2),
        RunPlan(ID, {**budget, "reward": "incumbent"}, "sobol", 0),
        RunPlan(ID, {**budget, "fidelity": {"client_sample_rate": 0.2}}, "sobol", 0),
    ):
        do_run(plan, tmp_path, lambda _: None, lambda _: None)
    table = fedhpo_gym.load_runs(tmp_path)
    assert table.groupby(["id", "arguments", "agent", "seed"]).ngroups == 5
    assert not table.duplicated(["id", "arguments", "agent", "seed", "trial"]).any()
    out = tmp_path / "regret.csv"
    assert main(["regret", str(tmp_path), "--out", str(out)]) == 0
    assert not pd.read_csv(out).duplicated(["problem", "variant", "agent", "seed", "trial"]).any()
    assert '"shared_start": 2' in capsys.readouterr().out


@pytest.mark.slow
def test_a_table_of_runs_has_the_return_of_courses(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    for env_id in ("FedHPO-DAC-LR-BreastCancer-v0", "FedHPO-LR-BreastCancer-v0"):
        arguments = {"horizon": 5} if "DAC" in env_id else {"budget_s": 60.0}
        do_run(RunPlan(env_id, arguments, "random", 0), tmp_path, *[lambda _: None] * 2)
    table = fedhpo_gym.load_runs(tmp_path)
    rounds = table["id"].str.contains("DAC")
    [path] = [path for path in tmp_path.rglob("*DAC*/*") if path.is_file()]
    rewards = [step.reward for step in read_record(path).steps]
    assert table[rounds]["return"].tolist() == np.cumsum(rewards).tolist()
    assert table[~rounds]["return"].isna().all(), "trials are no course"
