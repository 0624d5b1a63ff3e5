"""The command that asks other libraries' checkers: it passes what is right, and finds faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("stable_baselines3")
pytest.importorskip("mo_gymnasium")
pytest.importorskip("pettingzoo")

from fedhpo_gym.cli import ERROR, main
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.envs.round.env import RoundEnv
from fedhpo_gym.tasks import TASKS, get_task
from fedhpo_gym.testing.checks import (
    CHECKS,
    FAILED,
    PASSED,
    SKIPPED,
    cheap_arguments,
    check_id,
    ids,
)

pytestmark = pytest.mark.raw

ID = "FedHPO-DAC-LR-BreastCancer-v0"


def outcomes(env_id: str) -> dict[str, str]:
    return {verdict.check: verdict.outcome for verdict in check_id(env_id)}


def test_every_checker_has_its_say() -> None:
    scalar = ("gymnasium", "stable-baselines3", "pettingzoo")
    assert outcomes(ID) == dict.fromkeys(scalar, PASSED)
    assert outcomes(f"MO-{ID}") == dict.fromkeys(("gymnasium", "mo-gymnasium"), PASSED)
    assert outcomes("FedHPO-LR-Digits-v0") == dict.fromkeys(scalar[:2], PASSED)
    assert {*scalar, "mo-gymnasium"} == set(CHECKS)


def far_reward(outcome: Any) -> Any:
    observation, reward, *rest = outcome
    return observation, np.full_like(reward, 99.0), *rest


def text_reward(outcome: Any) -> Any:
    observation, _, *rest = outcome
    return observation, "much", *rest


def strange_observation(outcome: Any) -> Any:
    observation, *rest = outcome
    return {**observation, "val_loss": observation["val_loss"] + 9.0}, *rest


def noise() -> Callable[[Any], Any]:
    """Return a fault that twins do not share: every step has its own reward."""
    count = iter(range(10_000))

    def fault(outcome: Any) -> Any:
        observation, reward, *rest = outcome
        return observation, reward + 0.01 * next(count), *rest

    return fault


@pytest.mark.parametrize(
    ("env_id", "fault", "refused"),
    [
        (ID, strange_observation, {"gymnasium", "stable-baselines3"}),
        (ID, text_reward, {"gymnasium", "stable-baselines3", "pettingzoo"}),
        (ID, noise(), {"gymnasium", "pettingzoo"}),
        (f"MO-{ID}", far_reward, {"mo-gymnasium"}),
        (f"MO-{ID}", noise(), {"gymnasium", "mo-gymnasium"}),
    ],
    ids=["observation", "type of the reward", "chance", "bounds of the reward", "MO chance"],
)
def test_planted_faults_are_found(
    env_id: str, fault: Callable[[Any], Any], refused: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = RoundEnv.step
    monkeypatch.setattr(RoundEnv, "step", lambda self, action: fault(step(self, action)))
    assert {name for name, outcome in outcomes(env_id).items() if outcome == FAILED} == refused


def test_a_picture_that_is_none_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoundEnv, "render", lambda _: np.zeros((4, 4), np.uint8))
    assert outcomes(ID)["gymnasium"] == FAILED


def test_the_command_prints_a_table_and_says_with_its_exit_code_whether_all_is_well(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["check", "*DAC-LR-BreastCancer-v0"]) == 0
    words = capsys.readouterr().out
    assert f"| {ID} | passed | passed | – | passed |" in words
    assert f"| MO-{ID} | passed | – | passed | – |" in words
    assert words.endswith("2 ids: 5 passed, 0 failed, 0 skipped\n")
    step = RoundEnv.step
    monkeypatch.setattr(RoundEnv, "step", lambda self, action: text_reward(step(self, action)))
    assert main(["check", ID]) == 1
    assert f"{ID}, pettingzoo: failed: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("missing", "verdict"), [("fedhpo_gym.envs.rounds", FAILED), ("mo_gymnasium", SKIPPED)]
)
def test_only_modules_of_others_may_be_missing(
    missing: str, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(RoundEnv, "reset", refuse)
    assert set(outcomes(ID).values()) == {verdict}


def test_data_that_are_missing_skip_the_checkers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(tmp_path))
    assert main(["check", "FedHPO-DAC-MF-FedNetflix"]) == 0
    assert "fedhpo-gym download FedNetflix" in capsys.readouterr().out


def test_unknown_ids_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "FedHPO-DAC-LR-Nope"]) == ERROR
    assert "FedHPO-DAC-LR-Nope" in capsys.readouterr().err
    with pytest.raises(InvalidArgumentError, match="one of"):
        list(check_id("LR-BreastCancer"))


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_every_id_is_asked_about(task: Any) -> None:
    assert len(ids(task)) == 4
    assert get_task(ids(task)[-1]) is task
    arguments = cheap_arguments(task, task.round_id)
    assert ("pretrained" in arguments.get("settings", {})) == (task.model == "BERT")
