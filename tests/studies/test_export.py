"""Runs as studies of Optuna: equal numbers, read with Optuna alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("optuna")

import optuna
from optuna.trial import TrialState

from fake_study import make_record
from fedhpo_gym.analysis import RunRecord, read_folder
from fedhpo_gym.analysis.problems import LARGEST
from fedhpo_gym.cli import ERROR, main
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.records.files import write_record
from fedhpo_gym.studies import compare
from fedhpo_gym.studies.export import to_optuna
from fedhpo_gym.tasks import get_task
from workers import CrewHere

ID = "FedHPO-LR-CreditG-v1"


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhpo_gym.studies.comparison.WorkerPool", CrewHere)


def studies(file: Path) -> dict[str, optuna.Study]:
    storage = f"sqlite:///{file}"
    return {
        name: optuna.load_study(study_name=name, storage=storage)
        for name in optuna.get_all_study_names(storage)
    }


def recorded(folder: Path, env_id: str = ID, **arguments: Any) -> list[RunRecord]:
    compare([env_id], ["random", "hyperband"], 2, folder, budget_s=120.0, arguments=arguments)
    return [record for _, record in read_folder([folder])]


@pytest.mark.slow
def test_every_trial_is_there_with_its_numbers(tmp_path: Path) -> None:
    records = recorded(tmp_path / "runs")
    assert main(["export", str(tmp_path / "runs"), "--optuna", str(tmp_path / "s.db")]) == 0
    found = studies(tmp_path / "s.db")
    assert [name.rpartition(": ")[2] for name in found] == ["hyperband", "random"]
    for name, study in found.items():
        steps = [
            (record, step)
            for record in records
            if record.header.agent == name.rpartition(": ")[2]
            for step in record.steps
        ]
        trials = study.get_trials()
        assert len(trials) == len(steps) > 1
        for trial, (record, step) in zip(trials, steps, strict=True):
            assert trial.params == dict(step.configuration)
            assert trial.user_attrs["seed"] == record.header.seed
            assert trial.user_attrs["elapsed_s"] == step.elapsed_s
            if trial.state == TrialState.COMPLETE:
                assert trial.values == [step.objectives["val_loss"]]
                assert trial.intermediate_values == {step.fidelity["round"]: trial.value}
        losses = [step.objectives["val_loss"] for _, step in steps]
        assert study.best_value == min(losses)
        assert study.metric_names == ["val_loss"]
    space, drawn = get_task("LR-CreditG-v1").space, trials[0].distributions
    rate, own = drawn["learning_rate"], space["learning_rate"]
    assert (rate.low, rate.high, rate.log) == (own.low, own.high, own.log)


@pytest.mark.slow
def test_constraints_and_vectors_keep_their_meaning(tmp_path: Path) -> None:
    limit = {"fairness_std": {"limit": 0.14, "weight": 1.0}}
    records = recorded(tmp_path / "one", constraints=limit)
    to_optuna(records, tmp_path / "one.db")
    for study in studies(tmp_path / "one.db").values():
        kept = [t.value for t in study.get_trials() if t.system_attrs["constraints"][0] <= 0]
        assert 0 < len(kept) < len(study.trials)
        assert study.best_value == min(kept)
    compare([f"MO-{ID}"], ["random"], 1, tmp_path / "two", budget_s=120.0)
    [(_, record)] = read_folder([tmp_path / "two"])
    to_optuna([record], tmp_path / "two.db")
    [study] = studies(tmp_path / "two.db").values()
    assert study.metric_names == [*record.steps[0].objectives]
    assert [one.name for one in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    rewards = np.array([step.reward for step in record.steps])
    values = np.array([trial.values for trial in study.trials])
    np.testing.assert_allclose(values * [-1, 1], rewards, rtol=1e-6)


@pytest.mark.slow
def test_what_diverged_has_failed(tmp_path: Path) -> None:
    record = make_record()
    first, *rest = record.steps
    worst = replace(first, objectives={**first.objectives, "val_loss": LARGEST})
    to_optuna([replace(record, steps=(worst, *rest))], tmp_path / "s.db")
    [study] = studies(tmp_path / "s.db").values()
    diverged = [True, *(step.objectives["val_loss"] >= LARGEST for step in rest)]
    assert [trial.state == TrialState.FAIL for trial in study.trials] == diverged
    assert 0 < sum(diverged) < len(diverged)
    for trial, failed in zip(study.trials, diverged, strict=True):
        assert (trial.value is None) == (not trial.intermediate_values) == failed


@pytest.mark.slow
def test_a_course_is_one_trial_with_its_losses(tmp_path: Path) -> None:
    record = make_record()
    steps = []
    for place, step in enumerate(record.steps, start=1):
        incumbent = {name: value for name, value in step.incumbent.items() if name != "trial"}
        steps.append(replace(step, incumbent={**incumbent, "step": place}))
    to_optuna([replace(record, steps=tuple(steps))], tmp_path / "s.db")
    [study] = studies(tmp_path / "s.db").values()
    losses = [step.objectives["val_loss"] for step in steps]
    assert study.trials[0].intermediate_values == dict(enumerate(losses, start=1))
    assert [trial.value for trial in study.trials] == losses[-1:]


@pytest.mark.slow
def test_nothing_is_replaced_or_half_written(tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    with pytest.raises(InvalidArgumentError, match="at least one run, got none"):
        to_optuna([], file)
    record = make_record()
    names = to_optuna([record], file)
    assert [*studies(file)] == names
    assert [*tmp_path.iterdir()] == [file]
    before = file.read_bytes()
    with pytest.raises(InvalidArgumentError, match=r"must be new, got .*; delete it or name"):
        to_optuna([record], file)
    assert file.read_bytes() == before
    assert main(["export", str(tmp_path / "none"), "--optuna", str(tmp_path / "x.db")]) == ERROR


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("configuration", "learning_rate", 0.0),
        ("configuration", "batch_size", 3.5),
        ("fidelity", "round", "many"),
        ("fidelity", "round", 2**70),
        ("fidelity", "\ud800", 1),
    ],
)
def test_values_that_no_environment_returns_are_refused_by_the_name_of_the_file(
    part: str, name: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, file = make_record(), tmp_path / "run.jsonl"
    record.header.spec["kwargs"]["task"] = "LR-CreditG-v1"
    steps = [replace(step, configuration={"learning_rate": 0.1}) for step in record.steps]
    steps[0] = replace(steps[0], **{part: {**getattr(steps[0], part), name: value}})
    write_record(file, replace(record, steps=tuple(steps)))
    assert main(["export", str(file), "--optuna", str(tmp_path / "x.db")]) == ERROR
    assert f"{file}: " in (error := capsys.readouterr().err)
    assert f"{part}['{name}']` must be " in error or "surrogates not allowed" in error
    assert [*tmp_path.iterdir()] == [file]
