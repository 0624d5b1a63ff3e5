"""Regret of recorded runs, against what the truth says of the same numbers."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.analysis.files import read_record, write_record
from fedhpo_gym.analysis.problems import AgentResult, Run
from fedhpo_gym.analysis.records import RunRecord, StepRecord
from fedhpo_gym.analysis.trajectories import Trajectory
from fedhpo_gym.cli import main
from fedhpo_gym.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.studies.plan import Plan
from fedhpo_gym.studies.regret import hypervolume_regret_of, known_of, regret_of
from fedhpo_gym.studies.run import do_run
from fedhpo_gym.wrappers import RegretInfo

ID = "FedHPO-LR-BreastCancer-v1"
ARGUMENTS = {"budget_trials": 12, "fidelity": {"client_sample_rate": 1.0}}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    folder = tmp_path_factory.mktemp("runs")
    plan = Plan(f"MO-{ID}", {**ARGUMENTS, "objectives": ("val_loss", "fairness_p10")}, "random", 0)
    assert do_run(plan, Path(folder), lambda _: None, lambda _: None)
    [path] = Path(folder).rglob("*.jsonl")
    return read_record(path)


def test_regret_is_that_of_the_incumbents(record: RunRecord) -> None:
    found = regret_of(record)
    truth = fedhpo_gym.truth(
        ID, objectives=("val_loss",), fidelity=ARGUMENTS["fidelity"]
    )  # the best of what the run could ask for
    losses = np.array([step.incumbent["val_loss"] for step in record.steps])
    assert found.regret.tolist() == (losses - truth.values.min()).tolist()
    assert (np.diff(found.regret) <= 0).all()
    assert found.regret.min() > 0
    assert ((found.relative >= 0) & (found.relative <= 1)).all()
    assert found.elapsed_s.tolist() == [step.elapsed_s for step in record.steps]


def test_hypervolume_regret_falls_over_simulated_time(record: RunRecord) -> None:
    elapsed_s, shares = hypervolume_regret_of(record)
    assert len(elapsed_s) == len(shares) == 12
    assert (np.diff(shares) <= 0).all()
    assert 0 < shares[-1] < 1
    _, alone = hypervolume_regret_of(record, ["val_loss"])
    assert (np.diff(alone) <= 0).all()
    with pytest.raises(UnknownNameError, match="objective"):
        hypervolume_regret_of(record, ["val_los"])


def test_hypervolume_regret_under_noise_is_of_what_the_agent_believes(record: RunRecord) -> None:
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
    with pytest.raises(InvalidArgumentError, match="`told` must have the shape"):
        truth.hypervolume_regret([[0.5]], ["val_loss"], told=[[0.5], [0.6]])


def test_what_is_known_of_a_problem_is_whatever_fidelity_an_agent_fixed(record: RunRecord) -> None:
    known = known_of(record.header)
    assert known is not None
    everything = fedhpo_gym.truth(ID).values[:, 0]
    assert (known.best, known.typical, known.exact) == (
        everything.min(),
        np.median(everything),
        True,
    )
    losses = np.array([record.final.incumbent["val_loss"]])
    result = AgentResult.of("random", (), known)
    assert result.regret is None, "without runs"
    line = Trajectory("p", "a", 0, np.ones(1), losses, None, 1.0)
    result = AgentResult.of("random", (Run(line, Path()),), known)
    assert result.regret is not None
    assert result.regret.mean == losses[0] - known.best
    assert result.relative_regret is not None
    share = (losses[0] - known.best) / (known.typical - known.best)
    assert result.relative_regret.mean == pytest.approx(share)


def test_numbers_that_are_no_longer_stored_have_no_regret(record: RunRecord) -> None:
    other = replace(record, header=replace(record.header, fingerprint="0" * 16))
    with pytest.raises(InvalidArgumentError, match=r"stored now.*'0000"):
        regret_of(other)
    assert known_of(other.header) is None
    for kwargs in ({"backend": "raw"}, {"instances": "train"}):
        spec = {**record.header.spec, "kwargs": {**record.header.kwargs, **kwargs}}
        assert known_of(replace(record.header, spec=spec)) is None


def test_who_watched_a_run_left_regret_in_its_record() -> None:
    env = RegretInfo(gym.make(ID, budget_trials=2))
    env.reset(seed=0)
    for _ in range(2):
        action = env.action_space.sample()
        *outcome, info = env.step(action)
        step = StepRecord.from_step(action, *outcome[1:], info)
        assert step.extra == {name: info[name] for name in ("regret", "relative_regret")}


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
    assert main(["report", str(tmp_path), "--rule", "best_seen"]) == 0
    with (tmp_path / "report_files" / "problem-1-results.csv").open(newline="") as handle:
        [row] = csv.DictReader(handle)
    known = known_of(record.header)
    assert known is not None
    assert float(row["regret"]) == record.final.incumbent["val_loss"] - known.best
    page = (tmp_path / "report.html").read_text()
    assert "of all that can be asked for" in page
    assert "relative regret of 1 is the median query" in page
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
