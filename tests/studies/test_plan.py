"""What a study runs, from what the command line asks, and the suites it may name."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium as gym
import pytest

from fedhpo_gym.cli import make_parser
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.studies import SUITES, suite
from fedhpo_gym.studies.environments import make_environment
from fedhpo_gym.studies.plan import Request, make_plans
from fedhpo_gym.studies.run import do_run
from fedhpo_gym.tasks import TASKS

ID = "FedHPO-LR-BreastCancer-v0"
ROOT = Path(__file__).parents[2]


def test_every_fidelity_that_is_named_counts() -> None:
    words = ["run", ID, "--agent", "random", "--fidelity", "round=100", "--fidelity"]
    options = make_parser().parse_args([*words, "client_sample_rate=0.2"])
    assert options.fidelity == ["round=100", "client_sample_rate=0.2"]


def test_a_fidelity_that_the_agent_chooses_cannot_be_fixed() -> None:
    with pytest.raises(InvalidArgumentError, match=r"leave 'round' to 'hyperband'.*round=500"):
        make_plans(Request([ID], ["hyperband"], seeds=1, fidelity={"round": 500}))
    [plan] = make_plans(Request([ID], ["hyperband"], seeds=1, fidelity={"round": "free"}))
    assert plan.kwargs["fidelity"] == {"client_sample_rate": 1.0}


def test_agents_choose_the_rounds_of_generated_tasks_where_they_are_left_to_them() -> None:
    def fixed(agent: str, **fidelity: object) -> list[object]:
        plans = make_plans(Request(["FedHPO-Generated-LR-v1"], [agent], 2, fidelity=fidelity))
        return [plan.kwargs["fidelity"] for plan in plans]

    assert fixed("random") == [{"round": 4, "client_sample_rate": 1.0}] * 2
    assert fixed("random", round="free") == fixed("hyperband") == [{"client_sample_rate": 1.0}] * 2
    assert fixed("hyperband", client_sample_rate=0.2) == [{"client_sample_rate": 0.2}] * 2


@pytest.mark.slow
def test_a_run_whose_record_is_there_opens_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [plan] = make_plans(Request([ID], ["random"], seeds=1, arguments={"budget_trials": 2}))
    assert do_run(plan, tmp_path, lambda _: None, pytest.fail)
    [path] = tmp_path.rglob("*.jsonl")
    assert plan.key is not None
    assert path.stem.endswith(plan.key)
    monkeypatch.setattr("fedhpo_gym.studies.run.make_environment", pytest.fail)
    assert not do_run(plan, tmp_path, lambda _: None, pytest.fail)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(pytest.fail.Exception):
        do_run(plan, tmp_path, lambda _: None, lambda _: None)


MANY = "MO-FedHPO-GNN-Cora-v1"


def test_what_no_configuration_changes_is_no_objective_of_a_comparison() -> None:
    """Simulated time follows from rounds and clients alone, unless the clock knows the epochs."""
    [plan] = make_plans(Request([MANY], ["random"], seeds=1))
    assert plan.kwargs["objectives"] == ["val_loss", "fairness_p10"]
    free = make_plans(Request([MANY], ["random"], seeds=1, fidelity={"round": "free"}))
    assert "objectives" not in free[0].kwargs
    clock = {"system": {"model": "devices"}}
    [timed] = make_plans(Request(["MO-FedHPO-MLP-Car-v1"], ["random"], 1, arguments=clock))
    assert "objectives" not in timed.kwargs


@pytest.mark.parametrize("env_id", [ID, MANY])
def test_objectives_without_the_validation_loss_are_refused_before_any_trial(env_id: str) -> None:
    for given in (["val_error"], ["val_error", "val_f1"]):
        request = Request([env_id], ["random"], seeds=1, arguments={"objectives": given})
        with pytest.raises(InvalidArgumentError, match="`objectives` must hold 'val_loss'"):
            make_plans(request)


def test_it_is_refused_where_it_is_asked_for() -> None:
    asked = {"objectives": ["val_loss", "time_s"]}
    with pytest.raises(InvalidArgumentError, match=r"time_s of .* cannot.*--fidelity round=free"):
        make_plans(Request([MANY], ["random"], seeds=1, arguments=asked))
    free = {"client_sample_rate": "free"}
    make_plans(Request([MANY], ["random"], seeds=1, fidelity=free, arguments=asked))


@pytest.mark.parametrize("name", SUITES)
def test_every_problem_of_a_suite_is_registered_and_named_once(name: str) -> None:
    ids = suite(name)
    assert ids
    assert len(set(ids)) == len(ids)
    assert set(ids) <= set(gym.registry)


def test_the_paper_has_twenty_problems_and_none_is_new() -> None:
    assert len(suite("paper")) == 20
    assert all(env_id.endswith("-v0") for env_id in suite("paper"))


def test_a_wrong_name_is_told_the_right_ones() -> None:
    with pytest.raises(UnknownNameError, match="'lr'"):
        suite("lrs")


def test_the_small_suite_is_what_its_rule_says() -> None:
    lines = (ROOT / "docs" / "difficulty.md").read_text("utf-8").splitlines()
    head, _, *rows = (line.strip("| ").split(" | ") for line in lines if line.startswith("|"))
    cells = {
        (f"{row[0].partition('-v')[0]}-v{version}", row[1]): dict(zip(head, row, strict=True))
        for row in rows
        for version in re.findall(r"-v(\d+)", row[0])
    }
    newest = {task.name: task for task in sorted(TASKS.values(), key=lambda task: task.version)}
    left: dict[str, float] = {}
    for task in newest.values():
        kinds = [f"{task.algorithm}, {kind}" for kind in ("table", "surrogate", "pool")]
        stored = [cells[key] for kind in kinds if (key := (task.key, kind)) in cells][:1]
        for row in stored:
            if _number(row["left 25"]) >= 0.01 and _number(row["seeds gained"]) >= 10:
                left[task.id] = _number(row["seeds left"])
    assert suite("small") == tuple(sorted(left, key=lambda one: -left[one])[:7])


def _number(cell: str) -> float:
    return -1.0 if cell == "–" else float(cell.replace(",", ""))


def test_the_small_suite_answers_from_stored_numbers_alone() -> None:
    for env_id in suite("small"):
        with make_environment(env_id, {}) as env:
            env.reset(seed=0)
            assert env.unwrapped.backend.name != "raw"  # type: ignore[attr-defined]
