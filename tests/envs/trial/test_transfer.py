"""Tuning a new federation with what others taught: one environment, and one command."""

from __future__ import annotations

import numpy as np
import pytest

from fedhpo_gym.agents import Step, make_agent, run_episode
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.envs.trial.transfer import transfer_env
from fedhpo_gym.tasks import get_task
from fedhpo_gym.tasks.meta import in_space

pytest.importorskip("torch")
pytest.importorskip("sklearn")


pytestmark = pytest.mark.usefixtures("only_made_meta_data")


def test_a_trial_really_trains_and_scores_explained_entropy() -> None:
    task = get_task("FedHPO-LR-BreastCancer-v1")
    env = transfer_env(task, "LR", trials=3)
    steps = list(run_episode(env, make_agent("random", env, 0), seed=0))
    assert len(steps) == 3
    assert env.get_wrapper_attr("task").space == in_space(task, "LR").space
    for step in steps:
        loss = step.info["objectives"]["val_loss"]
        explained = np.clip(1.0 - loss / task.label_entropy, 0.0, 1.0)
        assert step.info["score"] == pytest.approx(explained)
    assert len({step.info["objectives"]["val_loss"] for step in steps}) == 3


def test_who_shares_data_teaches_nothing() -> None:
    taught = {
        name: {one.name for one in transfer_env(get_task(name), "LR").source_tasks}
        for name in ("FedHPO-LR-BreastCancer-v1", "FedHPO-LR-CreditG-v1", "FedHPO-LR-MplsForce-v1")
    }
    assert taught["FedHPO-LR-BreastCancer-v1"] == {"CreditG-5-label", "Car-5-label", "MplsStops"}
    assert taught["FedHPO-LR-CreditG-v1"] == {"Car-5-label", "MplsStops"}
    assert taught["FedHPO-LR-MplsForce-v1"] == {"CreditG-5-label", "Car-5-label"}


def test_the_command_says_the_best_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    from fedhpo_gym.cli import main

    words = ["transfer", "FedHPO-LR-BreastCancer-v1", "--agent", "zero-shot", "--space", "LR"]
    assert main([*words, "--trials", "3"]) == 0
    said = capsys.readouterr().out
    assert "3 other federations teach zero-shot" in said
    assert "The best configuration:" in said
    assert "server_optimizer:" in said
    assert main(["transfer", "FedHPO-LR-BreastCancer-v1", "--agent", "random"]) == 2
    assert "one that transfers" in capsys.readouterr().err


def test_a_trial_that_diverged_is_never_the_best(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedhpo_gym.cli import main, transfer

    def step(loss: float, number: int, *, diverged: bool) -> Step:
        objectives = {"val_loss": loss, "val_error": 0.1, "explained": 0.5}
        info = {"objectives": objectives, "diverged": diverged, "elapsed_s": float(number)}
        info |= {"configuration": {"learning_rate": number}, "test": {"accuracy": 0.9}}
        return Step(np.zeros(1), 0.0, info=info)

    tried = [step(0.1, 11, diverged=True), step(0.7, 22, diverged=False)]
    monkeypatch.setattr(transfer, "run_episode", lambda *_: iter(tried))
    words = ["transfer", "FedHPO-LR-BreastCancer-v1", "--agent", "zero-shot", "--space", "LR"]
    assert main([*words, "--trials", "2"]) == 0
    said = capsys.readouterr().out
    assert "learning_rate: 22" in said
    assert "0.1000" not in said
    monkeypatch.setattr(transfer, "run_episode", lambda *_: iter(tried[:1]))
    assert main([*words, "--trials", "1"]) == 0
    assert "All trials diverged" in capsys.readouterr().out


def test_data_that_are_no_table_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="rows of numbers"):
        transfer_env(get_task("FedHPO-CNN-FEMNIST-v1"), "LR")
