"""What noise of evaluation leaves alone, and what it does to objectives of a user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Evaluation
from fedhpo_gym.objectives import Objective
from fedhpo_gym.records.files import read_record
from fedhpo_gym.studies.plan import Plan
from fedhpo_gym.studies.regret import regret_of
from fedhpo_gym.studies.replay import replay
from fedhpo_gym.studies.run import do_run
from fedhpo_gym.wrappers import RegretInfo

ID, SAMPLE = "FedHPO-LR-CreditG-v1", "FedHPO-LR-Synthetic-v1"
COSTS = ["time_s", "upload_bytes", "download_bytes", "flops", "epsilon"]
FEW: dict[str, Any] = {"clients": 0.4, "bias": 1.0}
PRIVATE: dict[str, Any] = {**FEW, "epsilon": 40.0}


def error_of(evaluation: Evaluation) -> float:
    return 1.0 - evaluation.mean("val", "accuracy")


def plain_mean(evaluation: Evaluation) -> float:
    """The mean over all clients, who may be silent."""
    return 1.0 - float(evaluation.clients("val", "accuracy").mean())


def own(function: Any = error_of, **given: Any) -> Objective:
    return Objective.of(function, name="own", unit="1", minimize=True, bounds=(0.0, 1.0), **given)


def infos(name: str, number: int = 5, **given: Any) -> list[dict[str, Any]]:
    env: Any = gym.make(name, disable_env_checker=True, **given)
    env.reset(seed=4)
    rng = np.random.default_rng(0)
    shape = env.action_space.shape
    return [env.step(rng.uniform(-1, 1, shape).astype(np.float32))[-1] for _ in range(number)]


@pytest.mark.parametrize("name", [ID, SAMPLE])
@pytest.mark.parametrize("noise", [FEW, PRIVATE], ids=str)
def test_costs_are_told_exactly_and_take_no_share_of_epsilon(name: str, noise: Any) -> None:
    few = infos(name, noise=noise, objectives=["val_loss"])
    found = infos(name, noise=noise, objectives=["val_loss", *COSTS])
    exact = infos(name, objectives=["val_loss", *COSTS])
    for alone, info, truth in zip(few, found, exact, strict=True):
        assert info["truth"]["objectives"] == truth["objectives"]
        told = dict(info["objectives"])
        assert told.pop("val_loss") == alone["objectives"]["val_loss"]
        assert told == {key: truth["objectives"][key] for key in COSTS}
    assert any(a["objectives"] != b["objectives"] for a, b in zip(found, exact, strict=True))


def test_default_objectives_of_vector_ids_can_be_private() -> None:
    for info in infos(f"MO-{ID}", noise=PRIVATE):
        assert {"val_loss", "fairness_p10", "time_s"} <= {*info["objectives"]}
    costs = infos(ID, noise={"iid": 0.5}, objectives=["val_error", "time_s"])
    assert all(one["objectives"]["time_s"] == one["cost"]["time_s"] for one in costs)


@pytest.mark.parametrize("name", [ID, SAMPLE])
def test_an_objective_of_your_own_hears_what_the_server_hears(name: str) -> None:
    for info in infos(name, noise=FEW, objectives=["val_error", own()]):
        told, truth = info["objectives"], info["truth"]["objectives"]
        assert told["own"] == pytest.approx(told["val_error"])
        assert truth["own"] == pytest.approx(truth["val_error"])
    # Who forgets that clients may be silent learns nothing of them.
    for info in infos(name, noise=FEW, objectives=[own(plain_mean)]):
        assert info["score"] == -1.0
        assert 0.0 <= info["truth"]["objectives"]["own"] <= 1.0


def test_under_an_epsilon_it_states_a_sensitivity() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'own'.*`sensitivity`"):
        gym.make(ID, noise=PRIVATE, objectives=["val_loss", own()])
    stated = own(sensitivity=lambda clients: 1.0 / clients)
    found = infos(ID, noise=PRIVATE, objectives=[stated])
    named = infos(ID, noise=PRIVATE, objectives=["val_error"])
    for one, other in zip(found, named, strict=True):
        assert one["objectives"]["own"] == pytest.approx(other["objectives"]["val_error"])
    exact = own(sensitivity=np.zeros_like)
    for info in infos(ID, noise=PRIVATE, objectives=["val_loss", exact]):
        assert info["objectives"]["own"] == info["truth"]["objectives"]["own"]


def test_vector_environments_hear_the_same() -> None:
    given: dict[str, Any] = {"noise": FEW, "objectives": ["val_loss", own()]}
    many: Any = gym.make_vec(f"MO-{ID}", num_envs=3, **given)
    many.reset(seed=[1, 2, 3])
    actions = np.random.default_rng(0).uniform(-1, 1, many.action_space.shape).astype(np.float32)
    rewards = many.step(actions)[1]
    for index, action in enumerate(actions):
        env = gym.make(f"MO-{ID}", disable_env_checker=True, **given)
        env.reset(seed=index + 1)
        assert np.array_equal(env.step(action)[1], rewards[index])


def test_privacy_of_training_is_another_one() -> None:
    given: dict[str, Any] = {"algorithm": "nbafl", "settings": {"epsilon": 10}}
    given["objectives"] = ["val_error", "epsilon"]
    found = infos("FedHPO-GNN-Cora-v1", 3, noise={"epsilon": 5.0}, **given)
    exact = infos("FedHPO-GNN-Cora-v1", 3, **given)
    for info, truth in zip(found, exact, strict=True):
        assert info["tuning_privacy"] == truth["tuning_privacy"]
        assert info["objectives"]["epsilon"] == truth["objectives"]["epsilon"]


def test_regret_is_of_what_incumbents_truly_are(tmp_path: Path) -> None:
    space = gym.make(ID).get_wrapper_attr("fidelity_space")
    full = {dimension.name: dimension.high for dimension in space.dimensions}
    kwargs = {"noise": PRIVATE, "budget_trials": 8, "fidelity": full}
    assert do_run(Plan(ID, kwargs, "random", 2, workers=3), tmp_path, print, print)
    [path] = tmp_path.rglob("*.jsonl")
    record = read_record(path)
    assert replay(record) is None
    truths = [record.steps[step.best_step - 1].true_objectives["val_loss"] for step in record.steps]
    optimum = truths - regret_of(record).regret
    assert optimum == pytest.approx([optimum[0]] * len(truths))
    assert min(regret_of(record).regret) >= 0.0
    env: Any = RegretInfo(gym.make(ID, disable_env_checker=True, noise=PRIVATE, fidelity=full))
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(6):
        info = env.step(env.action_space.sample())[-1]
        truth = info["truth"]["incumbent"]["val_loss"]
        assert info["regret"] == env.get_wrapper_attr("truth").regret(truth) >= 0.0
