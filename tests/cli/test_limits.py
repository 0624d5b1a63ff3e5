"""What `fedhpo-gym show` and `compare` say of constraints, against the truth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedhpo_gym
from fedhpo_gym.cli import main
from workers import CrewHere

ID, HARD = "FedHPO-LR-CreditG-v1", "FedHPO-LR-KC1-v1"
FULL = {"round": 500, "client_sample_rate": 1.0}


def test_limits_are_those_that_a_share_of_the_configurations_keeps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", HARD, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["stored"]
    names = ("val_loss", "fairness_std", "fairness_p10")
    values = fedhpo_gym.truth(HARD, objectives=names, fidelity=FULL).values
    for name, column, sign in zip(names[1:], values.T[1:], (1, -1), strict=True):
        limits = found["limits"]["by_objective"][name]["limits"]
        for share, one in zip((0.05, 0.2, 0.5), limits, strict=True):
            kept = sign * column <= sign * one["limit"]
            assert (one["kept"], one["best"]) == (kept.sum(), values[kept, 0].min())
            assert share <= kept.mean() < share + 0.03
            assert one["useless"] == (one["best"] >= found["label_frequencies"]["val_loss"])
    assert [one["useless"] for one in limits] == [True, False, False], "else the law says little"


@pytest.mark.parametrize(
    ("limit", "said"), [(0.08, "3 of 432"), (0.05, "none of 432"), (0.2, None)]
)
def test_a_comparison_warns_of_constraints_that_leave_nothing_of_use(
    limit: float,
    said: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedhpo_gym.studies.comparison.WorkerPool", CrewHere)
    setting = f'constraints={{"fairness_std": {limit}}}'
    words = ["compare", ID, "--agents", "random", "--seeds", "1", "--no-report", "--set", setting]
    assert main([*words, "--set", "budget_trials=2", "--out", str(tmp_path)]) == 0
    heard = capsys.readouterr().err
    assert (said or "") in heard
    assert ("configurations keep" in heard or "keeps the constraints" in heard) == bool(said)
