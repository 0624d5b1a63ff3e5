"""Conditional spaces: what is not active changes nothing, and what is chosen is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import fedhpo_gym  # noqa: F401
from fedhpo_gym.agents import make_agent
from fedhpo_gym.agents.base import Step
from fedhpo_gym.backends import make_backend
from fedhpo_gym.backends.training import task_federation, task_label_frequencies
from fedhpo_gym.building.build import build_sample
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.natural import NATURAL
from fedhpo_gym.envs.round.settings import Controls
from fedhpo_gym.evaluation.records import Evaluation, Fidelity, query_columns
from fedhpo_gym.fl.models import get_model
from fedhpo_gym.fl.models.model import CompiledModel
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.stored.table import Sample
from fedhpo_gym.tasks import TRAINED, get_task
from fedhpo_gym.tasks.natural import REGIMES
from fedhpo_gym.tasks.privacy import privacy_spent
from fedhpo_gym.wrappers import NamedAction

pytestmark = pytest.mark.raw
TASK = get_task("Joint-ScotsSecondary")
LOCAL: dict[str, Any] = {"learning_rate": 0.1, "weight_decay": 0.001, "batch_size": 32}
LOCAL |= {"step_size": 2}
SHAPE = {"model_depth": 2, "model_width": 16}
END, TEN = Fidelity(5, 0.4), Fidelity(10, 1.0)


def bits(evaluation: Evaluation) -> bytes:
    return b"".join(np.asarray(part).tobytes() for part in (evaluation.best, evaluation.current))


def drawn(space: SearchSpace, count: int, **fixed: object) -> list[dict[str, Any]]:
    """Return quick random configurations, of all models and server optimizers."""
    rng = stream(0, "joint test")
    quick = {"batch_size": 64, "step_size": 1}
    found = [{**space.sample(rng), **quick, **fixed} for _ in range(count)]
    return [space.validate({n: v for n, v in one.items() if n in space.names}) for one in found]


def test_every_table_has_the_joint_problem_in_three_regimes() -> None:
    tasks = [t for t in TRAINED.values() if t.model in REGIMES]
    assert len(tasks) == 3 * len(NATURAL)
    assert {t.model: t.max_round for t in tasks} == dict(zip(REGIMES, (40, 5, 10), strict=True))
    cracker = [t.budget_s for t in tasks if t.name.endswith("Cracker")]  # 136 clients
    assert cracker == pytest.approx([43_200, 5 * 1.8 * 236, 10 * 1.8 * 236], abs=0.5)
    assert len(TASK.space) >= 12
    rates = TASK.space["learning_rate"]
    assert rates.high / rates.low == pytest.approx(1e4)
    for task in tasks:
        assert SearchSpace.from_dict(task.space.to_dict()) == task.space
    assert {t.space for t in tasks if t.model != "JointPrivate"} == {TASK.space}


def test_coordinates_that_are_not_active_change_no_bit() -> None:
    env = gym.make("FedHPO-JointFew-ScotsSecondary-v1", seed=1, fidelity={"round": 1})
    space: SearchSpace = env.get_wrapper_attr("search_space")
    rng, silent = np.random.default_rng(4), 0
    drawn = rng.uniform(-1, 1, (6, len(space))).astype(np.float32)
    drawn[:, space.names.index("batch_size")] = 0.5
    for action in drawn:
        seen = []
        inactive = [n not in space.decode(action) for n in space.names]
        silent += sum(inactive)
        for other in (-0.9, 0.7):
            env.reset(seed=1)
            changed = np.where(inactive, other, action).astype(np.float32)
            seen.append(env.step(changed))
        for name, value in seen[0][0].items():
            np.testing.assert_array_equal(value, seen[1][0][name])
        assert seen[0][1:4] == seen[1][1:4]
        assert str(seen[0][4]) == str(seen[1][4])
    assert silent >= 10


def test_named_actions_leave_out_what_is_not_active() -> None:
    env = NamedAction(gym.make("FedHPO-JointFew-ScotsSecondary-v1", seed=1, fidelity={"round": 1}))
    env.reset(seed=1)
    env.action_space.seed(3)
    for _ in range(20):
        one = env.action_space.sample()
        assert one in env.action_space
        assert ("model_depth" in one) == ("model_width" in one) == (one["model"] == "mlp")
        adapts = one["server_optimizer"] in ("adam", "yogi")
        assert ("second_decay" in one) == ("adaptivity" in one) == adapts
        assert ("server_momentum" in one) == (one["server_optimizer"] != "none")
        flat = gym.spaces.flatten(env.action_space, one)
        assert flat.shape == (len(env.action_space.spaces),)
        back = gym.spaces.unflatten(env.action_space, flat)
        asked = env.get_wrapper_attr("search_space").validate(back)
        assert asked == {name: one[name] for name in back if name in one}
    *_, info = env.step({**one, "batch_size": 64})
    assert set(info["configuration"]) == {n for n in TASK.space.names if n in one}


COSTS = {"objectives": ["val_loss", "time_s", "upload_bytes", "flops", "epsilon"]}
TRIAL = {**COSTS, "seed": 1, "fidelity": {"round": 1, "client_sample_rate": 0.1}}
ROUND = {"instances": [[0.5, 1]], "client_sample_rate": 0.1, "rounds_per_step": 1}


@pytest.mark.parametrize(
    ("regime", "given"), [*((regime, TRIAL) for regime in REGIMES), ("Joint", ROUND)]
)
def test_several_environments_say_what_each_says_alone(regime: str, given: dict[str, Any]) -> None:
    name = f"MO-FedHPO-{'DAC-' * (given is ROUND)}{regime}-ScotsSecondary-v1"
    several = gym.make_vec(name, 4, info_keys=["configuration"], **given)
    alone = [gym.make(name, **given) for _ in range(4)]
    several.reset(seed=1)
    for index, env in enumerate(alone):
        env.reset(seed=1 + index)
    told = set()
    for actions in np.random.default_rng(2).uniform(-1, 1, (3, *several.action_space.shape)):
        _, rewards, *_, info = several.step(actions.astype(np.float32))
        found = info["configuration"]
        for index, env in enumerate(alone):
            _, reward, *_, own = env.step(actions[index].astype(np.float32))
            np.testing.assert_array_equal(rewards[index], reward)
            said = {k[1:]: found[k[1:]][index] for k in found if k[0] == "_" and found[k][index]}
            assert said == own["configuration"]
            told.add(tuple(said))
    assert len(told) > 1


def test_what_is_wrong_with_a_configuration_is_said_of_all_hyperparameters() -> None:
    env = NamedAction(gym.make("FedHPO-JointFew-ScotsSecondary-v1", **TRIAL))
    env.reset(seed=1)
    usual = {d.name: d.decode(0.0) for d in TASK.space.dimensions} | {"model": "mlp"}
    for left_out in ("model_depth", "learning_rate"):
        less = {name: value for name, value in usual.items() if name != left_out}
        with pytest.raises(InvalidArgumentError, match=rf"active .* \['{left_out}'\] are missing"):
            env.step(less)
        with pytest.raises(InvalidArgumentError, match=r"\['lr'\]. Did you mean 'learning_rate'"):
            env.step({**less, "lr": 0.1})
    with pytest.raises(UnknownNameError, match=r"'lr'. Did you mean 'learning_rate'"):
        gym.make(TASK.round_id, configuration={"lr": 0.1})


def test_a_course_may_fix_one_side_of_a_condition_and_choose_the_other() -> None:
    fixed = Controls(TASK, dynamic=["adaptivity"])
    assert {"server_optimizer", "adaptivity"} <= {*fixed.decode(np.zeros(1))}
    chosen = Controls(TASK, dynamic=["server_optimizer"], configuration={"adaptivity": 0.01})
    adaptivity = [chosen.decode(np.array([u])).get("adaptivity") for u in (-0.9, -0.2, 0.2, 0.9)]
    assert adaptivity == [None, None, 0.01, 0.01]
    with pytest.raises(InvalidArgumentError, match=r"`dynamic`.* inactive .*'adaptivity'"):
        Controls(TASK, dynamic=["adaptivity"], configuration={"server_optimizer": "none"})


@pytest.mark.parametrize(("word", "kind"), [("lr", "LR"), ("mlp", "PlainMLP")])
def test_the_model_that_is_chosen_is_what_is_trained(word: str, kind: str) -> None:
    shape = SHAPE if word == "mlp" else {}
    joint = TASK.variant(algorithm="fedavg", seeds=(1, 2))
    fields = {"fidelity_space": joint.fidelity_space, "stored_rounds": joint.stored_rounds}
    same = get_task(f"{word.upper()}-ScotsSecondary").variant(**fields, model=kind, seeds=(1, 2))
    plain = {"rate_decay": 1.0, "momentum": 0.0, "model": word}
    found = make_backend("raw", joint).evaluate({**LOCAL, **shape, **plain}, END)
    expected = make_backend("raw", same).evaluate({**LOCAL, **shape}, END)
    assert bits(found) == bits(expected)
    family = get_model(kind)
    assert issubclass(family, CompiledModel)
    model = family.for_federation(task_federation(joint, 1), **shape)
    assert joint.parameters_of({**shape, **plain}) == model.num_parameters


@pytest.mark.parametrize("regime", ["Joint", "JointPrivate"])
def test_company_and_rest_change_no_bit(regime: str) -> None:
    task = get_task(f"{regime}-ScotsSecondary").variant(seeds=(1,))
    configurations = drawn(task.space, 6)
    assert {one["model"] for one in configurations} == {"lr", "mlp"}
    together = make_backend("raw", task)
    early = Fidelity(2, 0.4)
    for fidelity in (early, END):  # trained together, and on from there
        together.evaluate_many([(one, fidelity) for one in configurations])
    for one in configurations:
        alone = make_backend("raw", task)
        for fidelity in (END, early):
            assert bits(together.evaluate(one, fidelity)) == bits(alone.evaluate(one, fidelity))


@pytest.mark.parametrize("epsilon", [8.0, 0.3])
@pytest.mark.parametrize("clients_are_many", [False, True])
def test_the_private_regime_never_spends_more_than_its_epsilon(
    clients_are_many: bool, epsilon: float
) -> None:
    task = get_task("JointPrivate-Tuna" if clients_are_many else "JointPrivate-Ess9gb")
    assert task.all_settings["epsilon"] == 8.0
    rng = stream(1, "spent")
    for rate in (0.1, 0.37, 1.0):
        fixed = task.fix({"epsilon": epsilon})
        asked = [(fixed.space.sample(rng), Fidelity(n, rate)) for n in task.evaluated_rounds]
        spent = privacy_spent(fixed, query_columns(fixed.space, asked)).vector()[:, 0].tolist()
        assert spent == sorted(spent)
        assert 0.999 * epsilon < spent[-1] <= epsilon


def test_private_training_learns_and_its_noise_follows_epsilon() -> None:
    task = get_task("JointPrivate-ExamLondon").variant(seeds=(1,))
    given = {d.name: d.decode(0.0) for d in task.space.dimensions}
    given |= {"model": "lr", "learning_rate": 1.0, "update_clip": 1.0, "clip_rate": 0.0}
    rows = [make_backend("raw", task.fix({"epsilon": e})).evaluate(given, TEN) for e in (0.1, 8.0)]
    losses = [float(row.mean("val", "loss")) for row in rows]
    assert losses[1] < 0.8 * task_label_frequencies(task)[0]["val_loss"] < losses[0]


@pytest.mark.slow
def test_a_sample_of_the_space_extends_a_smaller_one_and_is_what_training_gives(
    tmp_path: Path,
) -> None:
    task = get_task("JointFew-ScotsSecondary")
    arguments: dict[str, Any] = {"rounds": 2, "rates": (0.1, 0.4), "workers": 1, "folder": tmp_path}
    small = Sample(build_sample(task, 3, **arguments)).configurations()
    sample = Sample(build_sample(task, 6, **arguments))
    configurations, rates = sample.configurations(), sample.codes("client_sample_rate")
    assert configurations[:3] == small
    assert {one["model"] for one in configurations} == {"lr", "mlp"}
    raw = make_backend("raw", task)
    for course, given in enumerate(configurations):
        truth = raw.evaluate(given, Fidelity(2, rates[course]))
        expected = truth.best[sample.codes("seed")[course], :, 1, 0]
        found = sample.values("best", "val", "loss")[course, -1]
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)  # stored rounded


ID = "FedHPO-LR-BreastCancer-v1"
ARGUMENTS: dict[str, Any] = {
    "backend": "raw",
    "algorithm": "serveropt",
    "fidelity": {"round": 2, "client_sample_rate": 1.0},
}


@pytest.mark.parametrize(
    "name", ["random", "optuna-tpe", "bo-gp", "bo-rf", "de", "cma-es", "bo-kde"]
)
def test_optimizers_search_trees(name: str) -> None:
    env = gym.make(ID, **ARGUMENTS)
    agent = make_agent(name, env, 0)
    observation, _ = env.reset(seed=0)
    for _ in range(6):
        action = agent.ask(observation)
        observation, reward, terminated, _, info = env.step(action)
        agent.tell(
            Step(action, float(reward), terminated=terminated, info=info, observation=observation)
        )
