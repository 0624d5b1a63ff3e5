"""Every example and every study runs to its end, without a warning, and says what it found."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pieces
import pytest

import fedhpo_gym
from fedhpo_gym.agents import run_episode
from fedhpo_gym.agents.base import read_problem
from fedhpo_gym.agents.policy import PolicyAgent, load_policy
from fedhpo_gym.analysis import group
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data import load_dataset
from fedhpo_gym.evaluation import stats
from fedhpo_gym.fl import ENGINE_VERSION
from fedhpo_gym.records.incumbents import read_table
from fedhpo_gym.studies.plan import Request, make_plans
from fedhpo_gym.tasks import get_task
from workers import CrewHere

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))


def instances_are_held_out_and_policies_do_what_they_are_said_to(out: Path) -> None:
    import dac_study

    [problem] = [one for one in dac_study.PROBLEMS if one.title == "Deadline"]
    small = replace(problem, judged=2)
    held_out = dac_study.held_out(small)
    for kind in ("train", "val", "test"):
        with gym.make(problem.id, instances=kind) as env:
            assert not {one.seed for one in env.unwrapped.instances} & {one[1] for one in held_out}
    for learner in dac_study.LEARNERS:
        [learned] = read(out, f"learned-Deadline-{learner}-0")
        policy = load_policy(out / f"policy-Deadline-{learner}-0")
        if learner != "cloning":  # what a clone imitates stands in no origin
            assert policy.origin["env_arguments"] == {"instances": "train"}
        alone = []
        for instance in held_out:
            with gym.make(problem.id, instances=[instance]) as env:
                steps = run_episode(env, PolicyAgent(read_problem(env, 0), policy=policy), 0)
                alone.append(sum(step.reward for step in steps))
        np.testing.assert_allclose(learned["returns"], alone, rtol=1e-9)
    [own] = read(out, "transfer-Deadline-Deadline")
    assert own == [read(out, "learned-Deadline-CMA-ES-0")[0]["returns"]]
    [optima] = [one["optimum"] for one in read(out, "stated-Quadratic")]
    assert all(0.9 < optimum < 1.0 for optimum in optima)


def searches_take_equal_rounds(out: Path) -> None:
    found = read(out, "BreastCancer-*")
    assert len(found) == 2 * 4 * 2  # seeds, X, with FedEx and without
    assert {search["courses"][-1]["spent"] for search in found} == {6}


def instances_are_new_and_the_optimum_is_not_beaten(out: Path) -> None:
    trained, unseen = (read(out, f"test-LR-{name}-v*") for name in ("BreastCancer", "Blood*"))
    assert {one["instance"]["seed"] for one in trained[0]["played"]} == {3}
    assert {one["instance"]["seed"] for one in unseen[0]["played"]} == {1, 2, 3}
    for one in (*trained[0]["played"], *unseen[0]["played"]):
        for runs in one["regrets"].values():
            for regrets in runs:
                assert min(regrets) >= 0.0
                assert (np.diff(regrets) <= 0.0).all()
                assert regrets[0] <= one["optimum"]


def no_rate_beats_the_best_of_all_rates(out: Path) -> None:
    for network in ("good", "middle", "bad"):
        low, high = (read(out, f"LR-CreditG-v1-{network}-{rate}")[0] for rate in ("0.2", "1"))
        assert low["optimum"] == high["optimum"]
        for runs in (*low["regrets"].values(), *high["regrets"].values()):
            assert np.min(runs) >= 0.0
            assert (np.diff(runs) <= 0.0).all()


def what_is_reached_is_the_best_of_all_learning_rates(out: Path) -> None:
    found = read(out, "reached-Cora-*")
    for one in found:
        assert min(one["by_learning_rate"]) == pytest.approx(np.mean(one["val_loss"]), rel=1e-5)
        assert np.mean(one["test_accuracy"]) <= one["highest_accuracy"][0] + 1e-6
        assert one["configuration"]["learning_rate"] in one["learning_rates"]
    strict, loose = (np.mean(one["val_loss"]) for one in found)  # epsilon 1 and 20
    assert strict > loose


def all_alphas_have_the_same_configurations(out: Path) -> None:
    for version, number in ((0, 96), (1, 144)):
        found = read(out, f"BreastCancer-v{version}-alpha*")
        assert len(found) == 2
        for one in found:
            assert {np.shape(values) for values in one.values()} == {(3, number)}
            assert 0.0 <= np.min(one["error"]) <= np.max(one["error"]) <= 1.0
            assert np.max(one["spread"]) <= 0.5


def read(out: Path, pattern: str) -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted(out.glob(f"{pattern}.json"))]


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    for library in ("matplotlib", "stable_baselines3", "optuna"):
        pytest.importorskip(library)
    monkeypatch.syspath_prepend(REPOSITORY / "docs" / "studies")
    return importlib.import_module(name)


FAIR = {
    "dac_study": instances_are_held_out_and_policies_do_what_they_are_said_to,
    "fedex_study": searches_take_equal_rounds,
    "train_trial_policy": instances_are_new_and_the_optimum_is_not_beaten,
    "network_study": no_rate_beats_the_best_of_all_rates,
    "privacy_study": what_is_reached_is_the_best_of_all_learning_rates,
    "heterogeneity_study": all_alphas_have_the_same_configurations,
}
NUMBERS_OF = {
    "dac_study": "seeds",
    "fedex_study": "seeds",
    "train_trial_policy": "policies",
    "network_study": "seeds",
    "privacy_study": "seeds",
    "heterogeneity_study": "rounds",
}


def test_a_report_says_what_is_computed_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    report = imported("dac_report", monkeypatch)
    held_out = {"default": [0.0, 0.0], "static": [1.0, 1.0], "falling": [2.0, 0.0]}
    results = {
        "stated-A": {"held_out": held_out, "best_schedule": "falling", "optimum": [3.0, 5.0]},
        "learned-A-CMA-ES-0": {"returns": [2.0, 2.0]},
        "learned-A-CMA-ES-1": {"returns": [1.0, 3.0]},
        "transfer-A-A": [[2.0, 2.0], [1.0, 4.0]],
    }
    study = SimpleNamespace(problems=[SimpleNamespace(title="A")], seeds=2)
    found = report.Found(study, results)
    assert found.interval("A", "CMA-ES")[0] == pytest.approx(2.0)
    row = next(one for one in report.summary_table(found).splitlines() if "CMA-ES" in one)
    # A tie is half a win: (.5 + 1 + 1 + 1) / 4 against static, (.5 + 0 + 1 + 1) / 4 otherwise.
    scores = [float(one.split("(")[0]) for one in row.split("|")[2:-1]]
    assert scores == [1.0, 2.0, 0.88, 0.62]
    assert "| A | 2.25 |" in report.transfer_table(found)
    [shares] = report.optimum_lines(found)
    assert "static 0.250; best stated schedule 0.250; CMA-ES 0.500, 0.500." in shares


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = {"many_objectives": "moocore", "ppo": "torch", "flower_strategy": "flwr"}
    pytest.importorskip(needed.get(path.stem, "gymnasium"))
    monkeypatch.setattr("sys.argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.raw
@pytest.mark.parametrize("name", FAIR)
def test_a_study_runs_and_goes_on_where_it_stopped(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: a fresh interpreter would spend its time on importing torch."""
    study = imported(name, monkeypatch)
    for module in (sys.modules.get("dac_report"), stats):  # intervals are no question here
        if module is not None:
            monkeypatch.setattr(module, "RESAMPLES", 20)
    study.main(["--quick", "--out", str(tmp_path), "--workers", "1"])
    first = capsys.readouterr().out
    assert "±" in first
    assert list(tmp_path.glob("*.png"))
    FAIR[name](tmp_path)
    pieces = {
        file: file.stat().st_mtime_ns
        for file in tmp_path.glob("*.json")
        if file.name != "study.json"
    }
    next(iter(pieces)).unlink()
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)
    study.main(["--quick", "--out", str(tmp_path), "--workers", "1"])
    assert numbers(capsys.readouterr().out) == numbers(first)
    changed = [file for file, time in pieces.items() if file.stat().st_mtime_ns != time]
    assert changed == [next(iter(pieces))]
    monkeypatch.setattr(study, "run", lambda *_: pytest.fail("pieces of two studies were mixed"))
    for other in ([], ["--quick", f"--{NUMBERS_OF[name]}", "3"]):
        with pytest.raises(InvalidArgumentError, match=rf"{NUMBERS_OF[name]} \d there, \d+ now"):
            study.main([*other, "--out", str(tmp_path)])


@dataclass(frozen=True)
class Small:
    """Stands for a study."""

    tables: Sequence[str]
    seeds: int = 2


def test_a_folder_holds_one_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "new"
    for _ in range(2):  # the first claims, the second goes on
        pieces.claim(out, Small(("A", "B")))
    wanted = {"tables": ["A", "B"], "seeds": 2, "engine": ENGINE_VERSION}
    assert read(out, "*") == [{**wanted, "fedhpo_gym": fedhpo_gym.__version__}]
    with pytest.raises(InvalidArgumentError, match=r"seeds 2 there, 5 now.*another --out"):
        pieces.claim(out, Small(("A", "B"), 5))
    monkeypatch.setattr(pieces, "ENGINE_VERSION", 99)
    with pytest.raises(InvalidArgumentError, match=rf"engine {ENGINE_VERSION} there, 99 now"):
        pieces.claim(out, Small(("A", "B")))
    (out / "study.json").rename(out / "piece.json")
    with pytest.raises(InvalidArgumentError, match=r"unknown study.*another --out"):
        pieces.claim(out, Small(("A", "B")))
    assert not (out / "study.json").exists()


def test_tables_join_once_they_were_downloaded_and_never_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    studies = imported("studies", monkeypatch)
    pytest.importorskip("sklearn")
    monkeypatch.delenv("FEDHPO_GYM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    server = {"features": np.ones((1000, 2)), "labels": np.arange(1000) % 2}
    asked = []
    monkeypatch.setattr(
        "fedhpo_gym.data.tables.download_task",
        lambda task_id, _advice: asked.append(task_id) or server,
    )
    load_dataset.cache_clear()
    try:
        assert studies.tables_here(["BreastCancer", "CreditG"]) == ("BreastCancer",)
        assert "fedhpo-gym download CreditG" in capsys.readouterr().out
        assert not asked
        load_dataset("CreditG")  # what `fedhpo-gym download CreditG` does
        assert asked == [31]
        assert studies.tables_here(["BreastCancer", "CreditG"]) == ("BreastCancer", "CreditG")
        assert not capsys.readouterr().out
    finally:
        load_dataset.cache_clear()


@pytest.mark.slow
def test_pieces_are_computed_in_processes_and_kept(tmp_path: Path) -> None:
    jobs = {tmp_path / f"{n}.json": partial(math.factorial, n) for n in (3, 4, 5)}
    assert list(pieces.pieces(jobs, 2).values()) == [6, 24, 120]
    (tmp_path / "4.json").write_text("7")
    failing = partial(math.factorial, -1)
    assert list(pieces.pieces(dict.fromkeys(jobs, failing), 2).values()) == [6, 7, 120]
    with pytest.raises(ValueError, match="factorial"):
        pieces.pieces({tmp_path / f"new-{n}.json": failing for n in range(3)}, 2)
    assert not list(tmp_path.glob("new-*"))


def numbers(report: str) -> list[str]:
    """Return the tables of a report; CPU times differ."""
    return [line for line in report.splitlines() if line.startswith("|")]


def report_of(module: Any, out: Path) -> str:
    module.main(["--quick", "--out", str(out), "--workers", "1"])
    return (out / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_study_of_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = report_of(imported("noise_study", monkeypatch), tmp_path)
    assert "Proxy tuning" in words
    assert (tmp_path / "noise.png").stat().st_size > 1000
    found = [json.loads(path.read_text()) for path in tmp_path.glob("tune-*.json")]
    assert len(found) == 2 * 2 * 3
    assert all(0.0 <= error <= 1.0 for errors in found for error in errors)


@pytest.mark.slow
@pytest.mark.raw
def test_the_study_of_courses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = numbers(report_of(imported("courses_study", monkeypatch), tmp_path))[2:]
    assert len(rows) == 5
    courses = read(tmp_path, "BreastCancer-*-0")
    assert [len(one["val_loss"]) for one in courses] == [5] * 5
    assert len({one["val_loss"][-1] for one in courses}) == 5


@pytest.mark.slow
def test_the_study_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "time to the loss of W = 1" in report_of(
        imported("workers_study", monkeypatch), tmp_path
    )
    assert (tmp_path / "workers.png").stat().st_size > 1000
    trials = {
        path.stem: json.loads(path.read_text())["trials"]
        for path in tmp_path.glob("CNN-FEMNIST-*.json")
    }
    assert len(trials) == 4
    assert min(trials["CNN-FEMNIST-random-4"]) > max(trials["CNN-FEMNIST-random-1"])


AGENTS = ("random", "hyperband")
FULL = {"round": 500, "client_sample_rate": 1.0}


@pytest.mark.slow
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
    pytest.importorskip("moocore")
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


def test_alpha_tunability_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    study = imported("algorithms_study", monkeypatch)
    expected = np.array([[2.0, 1.05, 1.0], [1.5, 1.2, 1.1]])
    assert study.alpha_tunability(expected, 0.9).tolist() == [2, 3]
    assert study.alpha_tunability(expected, 0.95).tolist() == [2, np.inf]
    assert study.alpha_tunability(expected, 1.0).tolist() == [3, np.inf]


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
