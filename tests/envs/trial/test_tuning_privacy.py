"""Privacy as part of the action, and what all trials together spend."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.envs.trial.observation import is_counted
from fedhpo_gym.evaluation.records import Fidelity, query_columns
from fedhpo_gym.objectives import PRIVACY_NAMES, ledger_of, selection_epsilon
from fedhpo_gym.tasks import get_task
from fedhpo_gym.tasks.privacy import DELTA, privacy_spent, renyi_spent

ID = "FedHPO-GNN-Cora-v1"
PRIVATE: dict[str, Any] = {"algorithm": "nbafl", "disable_env_checker": True}
TUNED: dict[str, Any] = {**PRIVATE, "tune": {"epsilon": [1, 100]}}


def spent(task: Any, configuration: dict[str, Any], fidelity: Fidelity) -> list[float]:
    """Return the privacy vector of one query."""
    columns = query_columns(task.space, [(configuration, fidelity)])
    return [float(number) for number in privacy_spent(task, columns).vector()[0]]


def play(env: Any, number: int) -> list[Any]:
    env.reset(seed=0)
    env.action_space.seed(0)
    return [env.step(env.action_space.sample()) for _ in range(number)]


# ---------------------------------------------------------------------------- the whole tuning


@pytest.mark.parametrize("given", [PRIVATE | {"settings": {"epsilon": 1}}, TUNED])
def test_all_trials_together_spend_the_sum_of_their_divergences(given: Any) -> None:
    env: Any = gym.make(ID, **given)
    steps = play(env, 5)
    task = env.unwrapped.task
    total, worst = np.zeros(254), np.zeros(254)
    for number, (seen, *_, info) in enumerate(steps, start=1):
        fidelity = Fidelity(**info["fidelity"])
        asked = info["configuration"], fidelity.round, fidelity.client_sample_rate
        total += (own := renyi_spent(task, *asked))
        worst = np.maximum(worst, own)
        alone = spent(task, info["configuration"], fidelity)
        assert ledger_of(own.tolist(), DELTA).vector().tolist() == alone
        wanted = ledger_of(total.tolist(), DELTA).vector()
        assert seen["tuning_privacy"].tolist() == wanted.astype(np.float32).tolist()
        said = info["tuning_privacy"]
        assert [said[name] for name in PRIVACY_NAMES] == wanted.tolist()
        selected = min(selection_epsilon(worst, number, DELTA), 1e4)
        assert said["selection_epsilon"] == selected
    assert env.reset(seed=0)[0]["tuning_privacy"].tolist() == [0.0] * 5


@pytest.mark.parametrize("freeze_thaw", [False, True])
def test_trials_that_run_when_the_budget_ends_have_spent(freeze_thaw: bool) -> None:
    given = {**PRIVATE, "settings": {"epsilon": 1}, "freeze_thaw": freeze_thaw}
    env: Any = gym.make(ID, budget_trials=4, **given)
    crew = fedhpo_gym.parallel(env, workers=3)
    crew.reset(seed=0)
    task, begun = env.unwrapped.task, []
    rounds: dict[Any, int] = {}
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (3, *env.action_space.shape)).astype(np.float32)
    while True:
        while crew.free:
            begun.append(actions[len(begun) % 3])
            crew.start(begun[-1])
        finished = crew.finish()
        total, worst = np.zeros(254), np.zeros(254)
        rounds.clear()
        for action in begun:
            configuration, fidelity = env.unwrapped.decode(action)
            rate = fidelity.client_sample_rate
            course = (*configuration.values(), rate)
            paid = rounds.get(course, 0) if freeze_thaw else 0
            rounds[course] = max(paid, fidelity.round)
            total += renyi_spent(task, configuration, max(fidelity.round - paid, 0), rate)
            worst = np.maximum(worst, renyi_spent(task, configuration, fidelity.round, rate))
        wanted = ledger_of(total.tolist(), DELTA).vector()
        assert finished.observation["tuning_privacy"].tolist() == wanted.astype(np.float32).tolist()
        said = finished.info["tuning_privacy"]
        assert [said[name] for name in PRIVACY_NAMES] == wanted.tolist()
        assert said["selection_epsilon"] == min(selection_epsilon(worst, len(begun), DELTA), 1e4)
        if finished.terminated:
            break
    assert len(begun) == 6, "two of them are lost"
    assert crew.reset(seed=0)[0]["tuning_privacy"].tolist() == [0.0] * 5


def test_only_what_protects_something_has_a_ledger_of_the_tuning() -> None:
    assert not is_counted(get_task("GNN-Cora-v0").variant(algorithm="nbafl"))
    env = gym.make(ID, disable_env_checker=True)
    assert "tuning_privacy" not in env.reset(seed=0)[0]
    assert "tuning_privacy" not in play(env, 1)[0][-1]


# -------------------------------------------------------------------------- part of the action


def test_stored_values_of_epsilon_are_searched() -> None:
    env: Any = gym.make(f"MO-{ID}", **TUNED)
    assert env.reset(seed=0)[1]["objective_names"][-1] == "epsilon"
    assert env.unwrapped.search_space["epsilon"].values == (1.0, 10.0, 20.0)
    for *_, info in play(env, 5):
        value = info["configuration"].pop("epsilon")
        fixed: Any = gym.make(f"MO-{ID}", **PRIVATE, settings={"epsilon": value}).unwrapped
        answer = fixed.backend.evaluate(info["configuration"], Fidelity(**info["fidelity"]))
        assert info["objectives"]["val_loss"] == answer.mean("val", "loss")


def test_a_range_leaves_values_out() -> None:
    env: Any = gym.make(ID, **PRIVATE, tune={"epsilon": [5, 20]})
    assert env.unwrapped.search_space["epsilon"].values == (10.0, 20.0)
    with pytest.raises(MissingDataError, match=r"has \[20.0\] of \['epsilon'\].*backend=\"raw\""):
        gym.make(ID, **PRIVATE, backend="surrogate", tune={"epsilon": [15, 100]})
    with pytest.raises(MissingDataError):
        gym.make(ID, **PRIVATE, tune={"w_clip": [0.01, 1]})


@pytest.mark.slow
def test_the_truth_knows_the_price_of_privacy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhpo_gym.envs.trial.truth.MAX_QUERIES", 600)
    arguments = {name: value for name, value in TUNED.items() if name != "disable_env_checker"}
    truth = fedhpo_gym.truth(ID, objectives=("val_loss", "epsilon"), **arguments)
    found = {truth.query(int(row))[0]["epsilon"] for row in range(600)}
    assert found == {1.0, 10.0, 20.0}
    assert len(truth.front()) > 3


def test_a_tuned_backend_survives_pickling() -> None:
    backend = gym.make(ID, **TUNED).unwrapped.backend  # type: ignore[attr-defined]
    again = pickle.loads(pickle.dumps(backend))
    assert again.fingerprint == backend.fingerprint
    assert again.space == backend.space


@pytest.mark.parametrize(
    ("tune", "words"),
    [
        ({"learning_rate": [0.1, 1]}, "settings of algorithm='nbafl'.*got 'learning_rate'"),
        ({"epsilon": [10, 1]}, "lowest and the highest 'epsilon'"),
        ({"epsilon": [1, 2, 3]}, "lowest and the highest 'epsilon'"),
        ({"epsilon": [0, 1]}, r"must be in \[1e-06"),
    ],
)
def test_what_cannot_be_tuned_is_refused(tune: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        gym.make(ID, **PRIVATE, tune=tune)


def test_who_asks_for_another_range_or_algorithm_is_told_what_there_is() -> None:
    pool = r"pools of epsilon=\[1, 16\] with algorithm='dpfedavg'"
    with pytest.raises(MissingDataError, match=pool):
        gym.make("FedHPO-JointPrivate-ExamLondon-v1", backend="tabular", tune={"epsilon": [2, 8]})
    with pytest.raises(InvalidArgumentError, match="a setting of algorithm='nbafl' or 'dpfedavg'"):
        gym.make(ID, tune={"epsilon": [2, 8]})


def test_a_soft_constraint_on_epsilon_can_be_kept() -> None:
    """The README's example: some of its trials pay nothing."""
    task = get_task("LR-BreastCancer-v1").variant(algorithm="nbafl").tune({"epsilon": (0.1, 100)})
    private = {**{d.name: d.low for d in task.space.dimensions}, "epsilon": 1.0}
    assert spent(task, private, Fidelity(500, 1.0))[0] < 10
    open_ = {**private, "epsilon": 100.0}
    assert spent(task, open_, Fidelity(500, 1.0))[0] > 10


@pytest.mark.raw
def test_noise_is_trained_with_as_the_action_says(
    shared_datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(shared_datasets))
    short = {"backend": "raw", "fidelity": {"round": 2, "client_sample_rate": 0.4}, "seed": 1}
    env: Any = gym.make(
        "FedHPO-LR-BreastCancer-v1",
        **PRIVATE,
        **short,
        tune={"epsilon": [0.1, 100]},
        constraints={"epsilon": {"limit": 10, "weight": 0.5}},
    )
    env.reset(seed=0)
    losses = []
    for value in (0.1, 100.0):
        configuration = {d.name: d.low for d in env.unwrapped.search_space.dimensions}
        configuration.update(epsilon=value, learning_rate=0.1)
        action = env.unwrapped.search_space.encode(configuration)
        *_, info = env.step(action.astype(np.float32))
        del info["configuration"]["epsilon"]
        fixed: Any = gym.make(
            "FedHPO-LR-BreastCancer-v1", **PRIVATE, **short, settings={"epsilon": value}
        ).unwrapped
        answer = fixed.backend.evaluate(info["configuration"], Fidelity(**info["fidelity"]))
        losses.append(info["objectives"]["val_loss"])
        assert losses[-1] == pytest.approx(answer.mean("val", "loss"), rel=1e-6)
    assert losses[0] != losses[1]
