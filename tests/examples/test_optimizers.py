"""The studies of optimizers and of FL algorithms: small ones run, and say what they found."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("moocore")

from fedhpo_gym.analysis import group
from fedhpo_gym.records.incumbents import read_table
from fedhpo_gym.studies.plan import Request, make_plans
from fedhpo_gym.tasks import get_task
from workers import CrewHere

REPOSITORY = Path(__file__).resolve().parents[2]
AGENTS = ("random", "hyperband")
FULL = {"round": 500, "client_sample_rate": 1.0}


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(REPOSITORY / "docs" / "studies")
    return importlib.import_module(name)


def test_every_part_can_be_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    for parts in imported("optimizers_study", monkeypatch).PARTS.values():
        for part in parts:
            (agent, *_), ids = part.agents, part.problems
            request = Request(ids, [agent], 1, budget_s=part.budget_s, arguments=part.arguments)
            assert [plan.id for plan in make_plans(request)] == [*ids]


@pytest.mark.slow
def test_optimizers_are_compared_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, report = (imported(n, monkeypatch) for n in ("optimizers_study", "optimizers_report"))
    part, noise = study.Part, {"noise": {"clients": 0.2}}

    def small(*names: str, **changes: Any) -> list[Any]:
        return [part([f"FedHPO-LR-{one}" for one in names], AGENTS, 900.0, **changes)]

    def vectors(name: str) -> list[Any]:
        return [part([f"MO-FedHPO-LR-{name}"], ("random", "nsga2"), 900.0)]

    parts = {
        "contest": small("Vehicle-v1", "KC1-v1"),
        "v0": small("CreditG-v0", "Car-v0"),
        "v1": small("CreditG-v1"),
        "others": small("Digits-v1"),
        "vectors-v0": vectors("CreditG-v0"),
        "vectors-v1": vectors("CreditG-v1"),
        "vectors-others": vectors("Digits-v1"),
        "noise": small("CreditG-v0", "CreditG-v1", arguments=noise),
    }
    monkeypatch.setattr("fedhpo_gym.studies.comparison.WorkerPool", CrewHere)
    for module in (study, report):
        monkeypatch.setattr(module, "PARTS", parts)
        monkeypatch.setattr(module, "AGENTS", AGENTS)
        monkeypatch.setattr(module, "VECTOR_AGENTS", ("random", "nsga2"))
    assert study.main(["--out", str(tmp_path), "--seeds", "2"]) == 0
    capsys.readouterr()
    report.main(["--out", str(tmp_path)])
    said = capsys.readouterr().out
    for words in (
        "| hyperband against random | 13/0/7 (0.1139) |",
        "| CreditG, paper | 0.6821",
        "| mean rank without → with noise | LR v0 (1) | LR v1 (1) | all (2) |",
        "| mean rank | LR v0 (1) | LR v1 (1) | other families (1) | all (3) |",
        "2 problems, 2 seeds: of 1 pairs",
        "## Contest",
        "| from this share of the budget on | best mean rank |",
        "| nsga2 |",
        "all (3)",
    ):
        assert words in said
    assert all(
        (tmp_path / f"{name}.png").stat().st_size for name in ("contest", "stored_differences")
    )
    table = [*read_table(tmp_path / "finals.csv")]
    assert len(table) == (2 + 4 + 2) * 2 * 2 + 3 * 2 * 2
    (problem,) = [
        one
        for one in group([], [(tmp_path / "finals.csv", line) for line in table])
        if one.name == "v0 LR-CreditG-v0"
    ]
    mean = sum(run.trajectory.final for run in problem.runs["random"]) / 2
    assert f"| CreditG, here | {mean:.4f} ±" in said


@pytest.mark.slow
def test_regrets_of_a_grid_are_those_of_its_best_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = imported("optimizers_landscapes", monkeypatch)
    table, fitted = "LR-BreastCancer-v1", "GNN-Cora-v1"
    monkeypatch.setattr(program, "PANELS", {"a table": [table], "a surrogate": [fitted]})
    program.main(["--out", str(tmp_path)])
    assert (tmp_path / "landscapes.png").stat().st_size
    rows = (tmp_path / "landscapes.csv").read_text(encoding="utf-8").splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [[table, "432"], [fitted, "640"]]
    regrets, accuracies, diverged = program.regrets(get_task(table)), [], 0
    with gym.make(f"FedHPO-{table}", fidelity=FULL, budget_trials=432) as env:
        env.reset(seed=0)
        for point in itertools.product(*(d.grid for d in get_task(table).space.dimensions)):
            named = dict(zip(get_task(table).space.names, point, strict=True))
            info = env.step(env.unwrapped.search_space.encode(named))[4]
            diverged += info["diverged"]
            accuracies.append(0.0 if info["diverged"] else info["test"]["accuracy"])
    assert diverged
    np.testing.assert_allclose(regrets, 1 - np.array(accuracies) / max(accuracies), atol=1e-12)
    assert float(rows[1].split(",")[2]) == pytest.approx(np.mean(regrets <= 0.01), abs=1e-4)


@pytest.mark.raw
@pytest.mark.slow
def test_algorithms_are_compared_with_their_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    study = imported("algorithms_study", monkeypatch)
    words = ["--quick", "--out", str(tmp_path), "--workers", "1"]
    study.main(words)
    first = capsys.readouterr().out
    rows = [line.split(" | ") for line in first.splitlines() if line.startswith("| fed")]
    assert [row[0] for row in rows] == ["| fedavg", "| fedopt"] * 3
    for one, four in (map(float, row[1:3]) for row in rows[:2]):
        assert one > four, "more trials find better configurations"
    assert max(float(row[2].rstrip(" |")) for row in rows[2:4]) == 1.0
    assert [sum(int(row[k].rstrip(" |")) for row in rows[4:]) for k in (1, 2)] == [1, 1]
    (tmp_path / "LR-BreastCancer-fedopt.json").unlink()
    study.main(words)
    assert capsys.readouterr().out == first
