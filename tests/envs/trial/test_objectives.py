"""Default objectives of `MO-` ids of version 1: all of them vary, wherever numbers are stored."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.backends import STORED
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.identity import Identity
from fedhpo_gym.envs.trial.setup import DEFAULT_OBJECTIVES, FAIR, LIVE_OBJECTIVES
from fedhpo_gym.evaluation.records import Evaluation, Evaluations
from fedhpo_gym.objectives import NO_PRIVACY, Objective
from fedhpo_gym.records.files import read_record
from fedhpo_gym.records.incumbents import incumbents
from fedhpo_gym.records.runs import JudgedRun
from fedhpo_gym.stored.catalogue import find_stored, list_names
from fedhpo_gym.studies.plan import RunPlan
from fedhpo_gym.studies.regret import regret_of
from fedhpo_gym.studies.replay import replay
from fedhpo_gym.studies.run import do_run
from fedhpo_gym.tasks import TASKS, task_of
from fedhpo_gym.testing.conformance import diverged, some_evaluation
from fedhpo_gym.wrappers import RegretInfo

ENDINGS = {"tabular": ".table.json", "surrogate": ".surrogate.json"}


def stored() -> list[Any]:
    """Return the arguments of everything with stored numbers that ids of version 1 answer from."""
    found = {}
    for backend, ending in ENDINGS.items():
        for name in list_names(ending):
            card = find_stored(name, ending)
            assert card is not None
            identity = Identity.from_card(json.loads(card.read_text(encoding="utf-8")))
            task = task_of(identity)
            newest = TASKS[f"{task.name}-v1"]
            options = dict(identity.options)
            variant = newest.variant(**options).fix(dict(identity.settings))
            if not STORED[backend](variant):
                continue
            given = {**options, "backend": backend, "settings": dict(identity.settings) or None}
            key = f"{variant.table_name} {backend}"
            found[key] = pytest.param(f"MO-{newest.id}", given, id=key)
    assert len(found) > 25
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "given"), stored())
def test_every_default_objective_of_every_stored_id_varies(
    name: str, given: dict[str, Any]
) -> None:
    env: Any = gym.make_vec(name, num_envs=64, **given)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    _, rewards, *_ = env.step(rng.uniform(-1, 1, env.action_space.shape).astype("f"))
    protects = given.get("algorithm") == "nbafl"
    names = [objective.name for objective in env.objectives]
    backend = env.setup.backend
    wanted = [*LIVE_OBJECTIVES, "epsilon"][: 3 + protects]
    fair = [one for one in FAIR if not backend.why_refused(one)]
    wanted[1:2] = fair[:1]
    assert names == wanted
    assert {"val_loss", "time_s"} <= {*names}
    for objective, column in zip(names, rewards.T, strict=True):
        assert len(np.unique(column)) > 2, objective


@pytest.mark.parametrize("name", ["MO-FedHPO-LR-Car-v0", "FedHPO-LR-Car-v1", "FedHPO-LR-Car-v0"])
def test_other_ids_keep_theirs(name: str) -> None:
    _, info = gym.make(name, disable_env_checker=True).reset(seed=0)
    assert info["objective_names"] == list(DEFAULT_OBJECTIVES)


ID = "MO-FedHPO-LR-CreditG-v1"
FULL = {"round": 500, "client_sample_rate": 1.0}


@pytest.mark.parametrize("name", ["time_s", "upload_bytes"])
def test_a_cost_that_cannot_vary_is_refused(name: str) -> None:
    objectives = ["val_loss", name]
    with pytest.raises(InvalidArgumentError, match=rf"able to vary, but '{name}'.*fidelity.*500"):
        gym.make(ID, objectives=objectives, fidelity=FULL)
    for fidelity in ({}, {"round": 500}, {"client_sample_rate": 1.0}):
        env = gym.make(ID, objectives=objectives, fidelity=fidelity, disable_env_checker=True)
        env.reset(seed=0)
        env.action_space.seed(0)
        values = {env.step(env.action_space.sample())[-1]["objectives"][name] for _ in range(9)}
        assert len(values) > 1, fidelity


def test_defaults_and_what_is_alone_are_left_as_they_are() -> None:
    given: dict[str, Any] = {"fidelity": FULL, "disable_env_checker": True}
    assert gym.make(ID, **given).get_wrapper_attr("reward_dim") == 3
    alone = gym.make("FedHPO-LR-CreditG-v1", objectives=["val_loss"], **given)
    assert alone.get_wrapper_attr("objectives")[0].name == "val_loss"


OWN_ID = "FedHPO-LR-BreastCancer-v1"


def gap_of(evaluation: Evaluation) -> float:
    """How much lower the training loss is than the validation loss."""
    return evaluation.mean("val", "loss") - evaluation.mean("train", "loss")


def worst_error(evaluation: Evaluation) -> float:
    return 1.0 - float(evaluation.clients("val", "accuracy").min())


GAP = Objective.of(gap_of, name="gap", unit="nats", minimize=True, bounds=(-1.0, 1.0))
WORST = Objective.of(worst_error, name="worst_error", unit="1", minimize=True, bounds=(0.0, 1.0))
GIVEN: dict[str, Any] = {"objectives": ["val_loss", GAP, WORST], "fidelity": FULL}


def test_it_is_what_the_function_says() -> None:
    env: Any = gym.make(f"MO-{OWN_ID}", disable_env_checker=True, **GIVEN)
    assert env.reset(seed=0)[1]["objective_names"] == ["val_loss", "gap", "worst_error"]
    action = np.zeros(env.action_space.shape, np.float32)
    _, reward, *_, info = env.step(action)
    answer = env.unwrapped.backend.evaluate(*env.unwrapped.decode(action))
    assert info["objectives"]["gap"] == gap_of(answer)
    assert reward[1:].tolist() == [-np.float32(gap_of(answer)), -np.float32(worst_error(answer))]


@pytest.mark.parametrize(
    "kwargs", [{}, {"backend": "surrogate", "alpha": 0.1}, {"noise": {"clients": 0.4, "bias": 1.0}}]
)
def test_vector_environments_say_the_same(kwargs: Any) -> None:
    name, given = "MO-FedHPO-LR-Vehicle-v1", {"objectives": [GAP, "val_loss"], **kwargs}
    many: Any = gym.make_vec(name, num_envs=3, **given)
    many.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, many.action_space.shape).astype(np.float32)
    _, rewards, *_ = many.step(actions)
    for index, action in enumerate(actions):
        env = gym.make(name, disable_env_checker=True, **given)
        env.reset(seed=index)
        assert np.array_equal(env.step(action)[1], rewards[index])


def test_it_ranks_trials_and_is_constrained_like_any_other() -> None:
    env: Any = gym.make(
        OWN_ID, objectives=[WORST, GAP], constraints={"gap": 0.0}, disable_env_checker=True
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
    truth = fedhpo_gym.truth(OWN_ID, **GIVEN)
    env: Any = gym.make(OWN_ID, disable_env_checker=True, **GIVEN)
    row = int(truth.front(["gap", "val_loss"])[0])
    answer = env.unwrapped.backend.evaluate(*truth.query(row))
    assert truth.values[row, 1] == gap_of(answer)


@pytest.mark.slow
@pytest.mark.parametrize("objectives", [[WORST, "fairness_p10"], ["fairness_p10", GAP]])
def test_a_table_knows_the_regret_of_it(objectives: list[Any]) -> None:
    given = {"objectives": objectives, "fidelity": FULL, "constraints": {"fairness_p10": 0.5}}
    env = gym.make(OWN_ID, reward="regret", budget_trials=500, **given)
    many = gym.make_vec(OWN_ID, reward="regret", num_envs=2, budget_trials=500, **given)
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
    with pytest.raises(InvalidArgumentError, match="a new name, got 'val_f1'"):
        gym.make(OWN_ID, objectives=["val_loss", taken])
    with pytest.raises(InvalidArgumentError, match="different names"):
        gym.make(OWN_ID, objectives=[GAP, GAP])
    with pytest.raises(InvalidArgumentError, match="take an Evaluation, got 3"):
        Objective.of(3, name="x", unit="1", minimize=True, bounds=(0, 1))  # type: ignore[arg-type]


def test_a_record_says_that_it_cannot_be_replayed_without_it(tmp_path: Path) -> None:
    plan = RunPlan(OWN_ID, {**GIVEN, "budget_trials": 3}, "random", 0)
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
        plan = RunPlan(OWN_ID, {"objectives": ["val_loss", odd], "budget_trials": 1}, "random", 0)
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
        *((one, "must be a word") for one in ({"name": ""}, {"name": 3}, {"unit": 3})),
    ],
)
def test_what_is_said_of_it_is_checked(named: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {"name": "x", "unit": "1", "minimize": True, "bounds": (0.0, 1.0)}

    def use() -> None:
        mine = Objective.of(worst_error, **{**usual, **named})
        env = gym.make(OWN_ID, objectives=[mine], noise={"epsilon": 10})
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
    assert do_run(RunPlan(ID, kwargs, "random", 2, workers=3), tmp_path, print, print)
    [path] = tmp_path.rglob("*.jsonl")
    record = read_record(path)
    assert replay(record) is None
    truths = [record.steps[step.best_step - 1].true_objectives["val_loss"] for step in record.steps]
    trials = JudgedRun.of(record).trials
    assert trials.value[incumbents(trials)].tolist() == truths
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
