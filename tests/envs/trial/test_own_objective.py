"""Objectives of a user's own: a function of an evaluation, in every form of a trial environment."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Evaluation, Evaluations
from fedhpo_gym.objectives import NO_PRIVACY, Objective
from fedhpo_gym.records.files import read_record
from fedhpo_gym.studies.plan import Plan
from fedhpo_gym.studies.regret import regret_of
from fedhpo_gym.studies.replay import replay
from fedhpo_gym.studies.run import do_run
from fedhpo_gym.testing.conformance import diverged, some_evaluation

ID = "FedHPO-LR-BreastCancer-v1"
FULL = {"round": 500, "client_sample_rate": 1.0}


def gap_of(evaluation: Evaluation) -> float:
    """How much lower the training loss is than the validation loss."""
    return evaluation.mean("val", "loss") - evaluation.mean("train", "loss")


def worst_error(evaluation: Evaluation) -> float:
    return 1.0 - float(evaluation.clients("val", "accuracy").min())


GAP = Objective.of(gap_of, name="gap", unit="nats", minimize=True, bounds=(-1.0, 1.0))
WORST = Objective.of(worst_error, name="worst_error", unit="1", minimize=True, bounds=(0.0, 1.0))
GIVEN: dict[str, Any] = {"objectives": ["val_loss", GAP, WORST], "fidelity": FULL}


def test_it_is_what_the_function_says() -> None:
    env: Any = gym.make(f"MO-{ID}", disable_env_checker=True, **GIVEN)
    assert env.reset(seed=0)[1]["objective_names"] == ["val_loss", "gap", "worst_error"]
    action = np.zeros(env.action_space.shape, np.float32)
    _, reward, *_, info = env.step(action)
    answer = env.unwrapped.backend.evaluate(*env.unwrapped.decode(action))
    assert info["objectives"]["gap"] == gap_of(answer)
    assert reward[1:].tolist() == [-np.float32(gap_of(answer)), -np.float32(worst_error(answer))]


@pytest.mark.parametrize("kwargs", [{}, {"backend": "surrogate", "alpha": 0.1}])
def test_vector_environments_say_the_same(kwargs: Any) -> None:
    name, given = "MO-FedHPO-LR-Vehicle-v1", {"objectives": [GAP, "val_loss"], **kwargs}
    many: Any = gym.make_vec(name, num_envs=3, **given)
    many.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, many.action_space.shape).astype(np.float32)
    _, rewards, *_ = many.step(actions)
    for index, action in enumerate(actions):
        env = gym.make(name, disable_env_checker=True, **given)
        env.reset(seed=0)
        assert np.array_equal(env.step(action)[1], rewards[index])


def test_it_ranks_trials_and_is_constrained_like_any_other() -> None:
    env: Any = gym.make(
        ID, objectives=[WORST, GAP], constraints={"gap": 0.0}, disable_env_checker=True
    )
    env.reset(seed=0)
    env.action_space.seed(0)
    infos = [env.step(env.action_space.sample())[-1] for _ in range(6)]
    best = min(info["objectives"]["worst_error"] for info in infos)
    assert infos[-1]["incumbent"]["worst_error"] == best
    for info in infos:
        assert info["penalty"] == pytest.approx(max(info["objectives"]["gap"], 0.0), abs=1e-6)


def test_where_training_diverged_it_is_the_worst() -> None:
    found = diverged(some_evaluation(0))
    assert GAP.compute(Evaluations.stack([found]), NO_PRIVACY).tolist() == [1.0]


def test_the_truth_knows_it() -> None:
    truth = fedhpo_gym.truth(ID, **GIVEN)
    env: Any = gym.make(ID, disable_env_checker=True, **GIVEN)
    row = int(truth.front(["gap", "val_loss"])[0])
    answer = env.unwrapped.backend.evaluate(*truth.query(row))
    assert truth.values[row, 1] == gap_of(answer)


@pytest.mark.parametrize("objectives", [[WORST, "fairness_p10"], ["fairness_p10", GAP]])
def test_a_table_knows_the_regret_of_it(objectives: list[Any]) -> None:
    given = {"objectives": objectives, "fidelity": FULL, "constraints": {"fairness_p10": 0.5}}
    env = gym.make(ID, reward="regret", budget_trials=500, **given)
    many = gym.make_vec(ID, reward="regret", num_envs=2, budget_trials=500, **given)
    env.reset(seed=0), many.reset(seed=0)
    space = env.get_wrapper_attr("search_space")
    rewards = []
    for cell in itertools.product(*(d.grid for d in space.dimensions)):
        action = space.encode(dict(zip(space.names, cell, strict=True)))
        rewards.append(env.step(action)[1])
        assert many.step(np.stack([action, action]))[1].tolist() == [rewards[-1]] * 2
    assert rewards[0] < rewards[-1] == 0.0, "all have been tried"


def test_it_needs_a_name_of_its_own_and_a_function() -> None:
    taken = Objective.of(gap_of, name="val_f1", unit="1", minimize=True, bounds=(0.0, 1.0))
    with pytest.raises(InvalidArgumentError, match="name of its own, got 'val_f1'"):
        gym.make(ID, objectives=["val_loss", taken])
    with pytest.raises(InvalidArgumentError, match="different names"):
        gym.make(ID, objectives=[GAP, GAP])
    with pytest.raises(InvalidArgumentError, match="take an Evaluation, got 3"):
        Objective.of(3, name="x", unit="1", minimize=True, bounds=(0, 1))  # type: ignore[arg-type]


def test_a_record_says_that_it_cannot_be_replayed_without_it(tmp_path: Path) -> None:
    plan = Plan(ID, {**GIVEN, "budget_trials": 3}, "random", 0)
    assert do_run(plan, tmp_path, lambda _: None, lambda _: None)
    [path] = tmp_path.rglob("*.jsonl")
    record = read_record(path)
    with pytest.raises(InvalidArgumentError, match=r"'gap'.*cannot be replayed without it"):
        replay(record)
    own = {one.name: one for one in (GAP, WORST)}
    assert replay(record, own) is None
    assert regret_of(record, own).regret.min() >= 0
    other = Objective.of(gap_of, name="gap", unit="nats", minimize=False, bounds=(-1.0, 1.0))
    with pytest.raises(InvalidArgumentError, match="as the record says it"):
        replay(record, {**own, "gap": other})
    changed = Objective.of(
        lambda e: gap_of(e) / 2, name="gap", unit="nats", minimize=True, bounds=(-1.0, 1.0)
    )
    difference = replay(record, {**own, "gap": changed})
    assert difference is not None
    assert "gap" in difference.field


@pytest.mark.parametrize("wrong", ["a", None, np.ones(2), 1j, True, 10**400])
def test_what_is_no_number_is_refused_by_name(wrong: Any) -> None:
    own = Objective.of(lambda _: wrong, name="odd", unit="1", minimize=True, bounds=(0.0, 1.0))
    env = gym.make("FedHPO-LR-CreditG-v1", objectives=[own], disable_env_checker=True)
    env.reset(seed=0)
    with pytest.raises(InvalidArgumentError, match=r"'odd'.*one real number"):
        env.step(np.zeros(env.action_space.shape or (), np.float32))


@pytest.mark.parametrize("minimize", [True, False])
def test_what_is_not_finite_is_a_bound_in_records_too(tmp_path: Path, minimize: bool) -> None:
    worst = 2.0 if minimize else -1.0
    for number, value in ((np.nan, worst), (np.inf, 2.0), (-np.inf, -1.0), (7.0, 7.0)):
        named: dict[str, Any] = {"name": "odd", "unit": "1", "minimize": minimize}
        odd = Objective.of(lambda _, number=number: number, **named, bounds=(-1.0, 2.0))
        plan = Plan(ID, {"objectives": ["val_loss", odd], "budget_trials": 1}, "random", 0)
        folder = tmp_path / str(number)
        assert do_run(plan, folder, lambda _: None, lambda _: None)
        [path] = folder.rglob("*.jsonl")
        assert read_record(path).steps[0].objectives["odd"] == value


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"bounds": None}, "`bounds` must be two numbers"),
        ({"bounds": (0, "1")}, "`bounds` must be two numbers"),
        ({"bounds": (0.0, 1.0, 2.0)}, "`bounds` must be two numbers"),
        ({"bounds": (0, 10**400)}, "`bounds` must be two numbers"),
        ({"minimize": 1}, "`minimize` of objective `x`"),
        ({"sensitivity": 1.0}, "`sensitivity` must take numbers of clients"),
        ({"sensitivity": lambda _: 1.0}, "`sensitivity` must return a finite number"),
        ({"sensitivity": lambda n: -n}, "`sensitivity` must return a finite number"),
        ({"sensitivity": lambda _: "much"}, "`sensitivity` of objective `x`"),
    ],
)
def test_what_is_said_of_it_is_checked(named: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {"name": "x", "unit": "1", "minimize": True, "bounds": (0.0, 1.0)}

    def use() -> None:
        mine = Objective.of(worst_error, **{**usual, **named})
        env = gym.make(ID, objectives=[mine], noise={"epsilon": 10})
        env.reset(seed=0)
        env.step(env.action_space.sample())

    with pytest.raises(InvalidArgumentError, match=words):
        use()


def test_a_function_cannot_change_what_others_read() -> None:
    def writes(evaluation: Evaluation) -> float:
        evaluation.best[...] = 0.0
        return 0.1

    own = Objective.of(writes, name="vandal", unit="1", minimize=True, bounds=(0.0, 1.0))
    env = gym.make("FedHPO-LR-CreditG-v1", objectives=["val_loss", own], disable_env_checker=True)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="read-only"):
        env.step(np.zeros(env.action_space.shape or (), np.float32))


@pytest.mark.parametrize("named", [{"name": ""}, {"name": 3}, {"unit": 3}])
def test_names_are_words(named: dict[str, Any]) -> None:
    given = {"name": "a", "unit": "1", "minimize": True, "bounds": (0.0, 1.0), **named}
    with pytest.raises(InvalidArgumentError, match="must be a word"):
        Objective.of(lambda _: 0.0, **given)
