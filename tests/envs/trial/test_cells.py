"""Rows of a grid: alone or all together they are the same, and belong to no environment."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.backends import make_backend
from fedhpo_gym.envs import TrialEnv
from fedhpo_gym.envs.trial import evaluator
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.objectives import get_objective
from fedhpo_gym.tasks import Task, get_task

ID = "FedHPO-LR-CreditG-v0"
ZEROS = np.zeros(6, np.float32)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "_scored_grids", type(evaluator._scored_grids)())


def outcomes(monkeypatch: pytest.MonkeyPatch, patience: int, **given: Any) -> list[Any]:
    monkeypatch.setattr(evaluator, "PATIENCE", patience)
    env = gym.make(ID, budget_trials=50, disable_env_checker=True, **given)
    env.reset(seed=0)
    rng = np.random.default_rng(3)
    found = []
    for _ in range(30):
        seen, reward, _, _, info = env.step(rng.uniform(-1, 1, 6).astype(np.float32))
        found.append(({name: values.tolist() for name, values in seen.items()}, reward, info))
    return found


def test_rows_are_the_same_one_by_one_and_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    some = outcomes(monkeypatch, 1000)
    assert not evaluator._scored_grids, "all cells were computed"
    first_ten_alone = outcomes(monkeypatch, 10)
    assert len(evaluator._scored_grids) == 1
    assert some == first_ten_alone == outcomes(monkeypatch, 0)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [{"clients": 0.4, "bias": 1.0}, {"clients": 0.4, "epsilon": 9}])
def test_noisy_trials_are_the_same_where_the_truth_is_known(
    noise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"noise": noise, "objectives": ["val_loss", "fairness_std", "time_s"]}
    some = outcomes(monkeypatch, 1000, **given)
    assert not evaluator._scored_grids
    assert some == outcomes(monkeypatch, 10, **given) == outcomes(monkeypatch, 0, **given)
    exact = outcomes(monkeypatch, 0, objectives=given["objectives"])
    for one, other in zip(some, exact, strict=True):
        assert one[2]["truth"]["objectives"] == other[2]["objectives"]
        assert one[2]["test"] == other[2]["test"]


@pytest.mark.slow
def test_few_grids_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "PATIENCE", 0)
    for objective in ("val_loss", "val_f1", "val_error", "train_loss", "train_f1"):
        env = gym.make(ID, objectives=[objective])
        env.reset()
        env.step(ZEROS)
    assert len(evaluator._scored_grids) == evaluator.MAX_GRIDS


@pytest.mark.slow
def test_rows_keep_no_environment_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "PATIENCE", 0)
    env: Any = gym.make_vec(ID, num_envs=2, freeze_thaw=True)
    env.reset(seed=0)
    env.step(np.zeros((2, 6), np.float32))
    process = weakref.ref(env._process)
    env.close()
    del env
    gc.collect()
    assert process() is None


@dataclass(frozen=True, kw_only=True)
class Scaled(Task):
    """A task with an objective of its own that keeps its name."""

    @property
    def objectives(self) -> Any:
        loss = get_objective("val_loss")
        mine = replace(loss, name="mine", compute=lambda e, p: SCALE[0] * loss.compute(e, p))
        return MappingProxyType({"mine": mine})


SCALE = [1.0]


def test_another_objective_of_the_same_name_has_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "PATIENCE", 0)
    task = get_task("LR-CreditG")
    mine = Scaled(**{field.name: getattr(task, field.name) for field in fields(task)})
    found = []
    for scale in (1.0, 100.0):
        SCALE[0] = scale
        env = TrialEnv(TrialSetup.of(mine, make_backend("tabular", mine), objectives=["mine"]))
        env.reset()
        found.append(env.step(ZEROS)[-1]["objectives"]["mine"])
    assert found[1] == 100.0 * found[0]


def test_a_fixed_fidelity_is_the_legal_value_that_it_equals() -> None:
    costs = []
    for rate in (1.0, 1.0 - 9e-10):
        env = gym.make(ID, fidelity={"client_sample_rate": rate, "round": 100})
        env.reset()
        costs.append(env.step(np.zeros(4, np.float32))[-1]["cost"])
    assert costs[0] == costs[1]
