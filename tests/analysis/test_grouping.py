"""What is one problem, and who is one contestant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.analysis import Header, RunRecord, StepRecord, build_report, group
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.records.incumbents import Trajectory, Trials

pytestmark = pytest.mark.usefixtures("no_pictures")

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
    (_, smac) = joined.results()
    assert smac.val_loss
    assert (smac.val_loss.mean, smac.test_loss, smac.trials) == (0.3, None, None)
    assert alone.winner() is None
    with pytest.raises(InvalidArgumentError, match=r"t.csv both hold"):
        group([record("smac", [(1.0, 0.5, 81)], FULL)], foreign)


def test_a_record_without_validation_loss_is_refused() -> None:
    path, made = record("random", [(1.0, 0.5, 81)], FULL)
    made.steps[0].objectives.clear()  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgumentError, match="must hold 'val_loss'"):
        group([(path, made)])


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


def test_the_page_says_where_agents_ended_at_different_fidelities() -> None:
    records = [
        record("random", [(10.0, 0.5, 81), (20.0, 0.4, 81)], FULL),
        record("early", [(1.0, 0.3, 3), (14.0, 0.35, 27)], FREE),
    ]
    page = build_report(group(records), "0.1.0").html
    assert "early" in page
    assert "of lower fidelity" in page
