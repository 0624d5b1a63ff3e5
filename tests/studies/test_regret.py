"""Regret of recorded runs, against what the truth says of the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.analysis.files import read_record
from fedhpo_gym.analysis.records import RunRecord
from fedhpo_gym.errors import UnknownNameError
from fedhpo_gym.studies.plan import Plan
from fedhpo_gym.studies.regret import hypervolume_regret_of, regret_of
from fedhpo_gym.studies.run import do_run

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
    assert ((found.normalised >= 0) & (found.normalised <= 1)).all()
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
