"""Round environments: rewards, costs and scales by hand, and what is refused."""

from __future__ import annotations

import math
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.envs.round.observation import client_means, log_norms, mean_and_spread
from fedhpo_gym.envs.round.settings import POTENTIALS, decades
from fedhpo_gym.tasks import get_task, make_instances
from fedhpo_gym.tasks.federated import TEST_SEEDS, TRAIN_SEEDS
from fedhpo_gym.testing import plain
from fedhpo_gym.testing.rollout import go_on

pytestmark = pytest.mark.raw

ID = "FedHPO-DAC-LR-BreastCancer-v0"
ONE = [[0.5, 7]]
SHORT: dict[str, Any] = {"instances": ONE, "rounds_per_step": 1, "horizon": 4}


# ------------------------------------------------------------------------ rewards, costs, scales


def test_the_reward_is_the_drop_of_the_log_loss_minus_the_price_of_time() -> None:
    env = gym.make(ID, **SHORT, time_price=0.3, reward_scale=2.0)
    env.reset(seed=0)
    env.action_space.seed(1)
    state: Any = env.unwrapped
    loss = float(state.process.episodes.loss[0, -1, 1])
    for _ in range(4):
        _, reward, _, _, info = env.step(env.action_space.sample())
        gain = math.log10(loss / info["val_loss"])
        time = info["cost"]["time_s"] / state.process.settings.budget_s
        assert reward == pytest.approx(2.0 * gain - 0.3 * time)
        loss = info["val_loss"]


def test_improvements_add_up_to_what_the_episode_gained() -> None:
    env = gym.make("MO-" + ID, **SHORT, potential="loss", rewards=["improvement"])
    env.reset(seed=0)
    env.action_space.seed(1)
    state: Any = env.unwrapped
    start = float(state.process.episodes.loss[0, -1, 1])
    total, over, info = 0.0, False, {}
    while not over:
        _, reward, over, _, info = env.step(env.action_space.sample())
        total += float(reward[0])  # type: ignore[index]
    assert total == pytest.approx(start - info["val_loss"], abs=1e-5)
    assert info["ended_by"] == "horizon"


def test_a_step_costs_its_local_epochs() -> None:
    """Eq. 1: 5 clients, H_5 = 137/60, c = 1 s per epoch, 62 parameters of 4 bytes."""
    env = gym.make(ID, **SHORT, dynamic=["step_size"])
    env.reset(seed=0)
    up = 62 * 4 / (0.25 * 2**20)
    for epochs in (1, 4):
        *_, info = env.step(_coordinate(env, {"step_size": epochs}))
        assert info["configuration"]["step_size"] == epochs
        assert info["cost"]["computation_s"] == pytest.approx(epochs * 137 / 60)
        assert info["cost"]["communication_s"] == pytest.approx(up + 5 * up)


def test_ratings_are_measured_against_a_constant_guess() -> None:
    """The loss is squared stars; who always says 3 is off by (4 + 1 + 0 + 1 + 4) / 5 of them."""
    env = gym.make("FedHPO-DAC-MF-MadeRatings-v0", instances=[[0.5, 100]], rounds_per_step=1)
    env.reset(seed=0)
    observation, *_, info = env.step(np.zeros(3, np.float32))
    assert observation["val_loss"][-1] == pytest.approx(math.log10(info["val_loss"] / 2.0) / 3.0)


def test_the_default_budget_is_what_the_horizon_can_cost() -> None:
    env = gym.make(ID, **SHORT)
    env.reset(seed=0)
    top = _coordinate(env, {"step_size": 4})
    terminated = False
    while not terminated:
        observation, _, terminated, _, info = env.step(top)
    assert info["fidelity"]["round"] == 4
    assert observation["remaining_budget"] == pytest.approx(0.0, abs=1e-6)


def test_a_smaller_budget_ends_the_episode_earlier() -> None:
    env = gym.make(ID, **SHORT, budget_s=12.0)
    env.reset(seed=0)
    steps = [env.step(_coordinate(env, {"step_size": 4})) for _ in range(2)]
    assert [step[2] for step in steps] == [False, True]
    assert [step[4]["ended_by"] for step in steps] == [None, "budget"]


def test_divergence_ends_the_episode_with_a_penalty() -> None:
    arguments = {**SHORT, "preprocessing": "label_encoded", "system": None}
    env = gym.make(ID, **arguments, time_price=0.2, divergence_penalty=0.7)
    env.reset(seed=0)
    state: Any = env.unwrapped
    before = float(state.process.episodes.potential[0])
    _freeze(state)
    observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert info["diverged"]
    assert info["ended_by"] == "divergence"
    assert terminated
    assert not truncated
    assert reward == pytest.approx(-3.0 - before - 0.7 - 0.2)
    assert all(np.isfinite(value).all() for value in observation.values())
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.step(env.action_space.sample())


@pytest.mark.parametrize("noise", [None, {"clients": 0.5}, {"epsilon": 50.0, "clients": 0.8}])
def test_a_course_that_diverged_has_the_worst_values(noise: dict[str, float] | None) -> None:
    arguments = {**SHORT, "preprocessing": "label_encoded", "noise": noise}
    env = gym.make("MO-" + ID, **arguments, rewards=["improvement", "val_error"])
    env.reset(seed=0)
    _freeze(env.unwrapped)
    observation, _, _, _, info = env.step(env.action_space.sample())
    largest = float(np.finfo(np.float32).max)
    assert info["objectives"] == {"val_loss": largest, "val_error": 1.0}
    assert info["truth"]["objectives"] == info["objectives"] if noise else "truth" not in info
    assert info["test"] == {"loss": largest, "accuracy": 0.0, "f1": 0.0}
    assert observation["val_loss"][-1] == 1.0
    assert observation["val_accuracy"][-1] == 0.0
    is_told = not (noise and "epsilon" in noise)
    assert observation["client_spread"] == [0.5 if is_told else 0.0]


def test_scales_by_hand() -> None:
    assert decades(np.array([0.5, 5.0, 0.0, np.inf]), 0.5).tolist() == [0.0, 1.0, -3.0, 3.0]
    assert log_norms(np.array([100.0, 0.0, 1e18])).tolist() == [2.0, -6.0, 6.0]
    chosen = np.array([[True, False, True], [False, False, False]])
    spread = mean_and_spread(np.array([[1.0, 50.0, 3.0], [1.0, 2.0, 3.0]]), chosen)
    assert spread.tolist() == [[2.0, 1.0], [0.0, 0.0]]
    metrics = np.arange(18.0).reshape(1, 2, 3, 3)
    samples = np.array([[[1, 3, 0], [3, 1, 4]]])
    expected = [[6.75, 7.75, 8.75], [5.25, 6.25, 7.25], [15.0, 16.0, 17.0]]
    assert client_means(metrics, samples)[0].tolist() == expected


@pytest.mark.parametrize("name", POTENTIALS)
def test_potentials_rise_with_quality_and_stay_inside(name: str) -> None:
    potential = POTENTIALS[name]
    losses, accuracies = np.array([1e9, 2.0, 0.5, 0.0]), np.array([0.0, 0.3, 0.9, 1.0])
    values = potential.measure(losses, accuracies, 0.7)
    assert (np.diff(values) > 0).all()
    assert values[0] == potential.low
    assert values[-1] == potential.high


# ------------------------------------------------------------------------ controls and instances


def test_what_is_held_still_stays() -> None:
    env = gym.make(ID, **SHORT, dynamic=["learning_rate"], configuration={"batch_size": 8})
    env.reset(seed=0)
    assert env.action_space.shape == (1,)
    *_, info = env.step(np.array([1.0], np.float32))
    expected = {"learning_rate": 1.0, "weight_decay": 0.0005, "batch_size": 8, "step_size": 3}
    assert info["configuration"] == {**expected, "client_sample_rate": 1.0}


def test_server_side_and_sampling_can_be_dynamic() -> None:
    names = ["server_learning_rate", "client_sample_rate"]
    env = gym.make(ID, **SHORT, algorithm="fedopt", dynamic=names)
    env.reset(seed=0)
    *_, info = env.step(np.array([-1.0, -1.0], np.float32))
    assert info["configuration"]["server_learning_rate"] == 0.1
    assert info["configuration"]["client_sample_rate"] == 0.2
    assert sum(n > 0 for n in info["num_train_samples"]) == 1
    assert gym.make(ID, **SHORT, algorithm="fedopt").action_space.shape == (6,)


def test_instances_are_the_pairs_of_their_set() -> None:
    task = get_task("LR-CreditG")
    train, held_out = make_instances(task, "train"), make_instances(task, "test")
    assert len(train) == 3 * len(TRAIN_SEEDS)
    assert len(held_out) == 3 * len(TEST_SEEDS)
    assert not {i.seed for i in train} & {i.seed for i in held_out}
    assert set(make_instances(task, "all")) == {*train, *held_out}
    assert {i.alpha for i in make_instances(task, "test", 0.7)} == {0.7}
    assert {i.alpha for i in make_instances(get_task("CNN-FEMNIST"))} == {0.5}


def test_equal_seeds_of_different_alpha_are_different_courses() -> None:
    env = gym.make(ID, instances=[[0.5, 7], [0.7, 7]], rounds_per_step=1, horizon=2)
    samples = []
    for index in (0, 1):
        _, info = env.reset(options={"instance": index})
        assert info["instance"]["seed"] == 7
        samples.append(env.step(env.action_space.sample())[-1]["num_train_samples"])
    assert samples[0] != samples[1]


def test_every_instance_is_drawn_at_some_time() -> None:
    env = gym.make(ID, instances=[[0.5, 7], [0.7, 7], [0.5, 8]])
    drawn = {env.reset(seed=seed)[1]["instance"]["index"] for seed in range(20)}
    assert drawn == {0, 1, 2}


def test_a_step_of_many_rounds_is_many_steps_of_one() -> None:
    ends = []
    for rounds in (1, 2, 4):
        env = gym.make(ID, **{**SHORT, "rounds_per_step": rounds})
        env.reset(seed=0)
        for _ in range(4 // rounds):
            *_, info = env.step(np.zeros(4, np.float32))
        ends.append(plain([info["test"], info["val_loss"]]))
    assert ends[0] == ends[1] == ends[2]


# -------------------------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"horizon": 7}, ["`horizon`", "multiple", "7"]),
        ({"rounds_per_step": 0}, ["`rounds_per_step`", "in [1, 100000]", "0"]),
        ({"history": True}, ["`history`", "integer", "True"]),
        ({"budget_s": 0}, ["`budget_s`", "in [1e-06", "0"]),
        ({"time_price": -1.0}, ["`time_price`", "in [0", "-1.0"]),
        ({"dynamic": []}, ["`dynamic`", "at least one", "[]"]),
        ({"dynamic": ["learning_rate"], "configuration": {"learning_rate": 0.1}}, ["leave out"]),
        ({"dynamic": ["client_sample_rate"], "per_client": True}, ["`dynamic`", "server"]),
        ({"configuration": {"step_size": 99}}, ["`configuration", "step_size"]),
        ({"instances": []}, ["`instances`", "at least one"]),
        ({"instances": [[0.5, -1]]}, ["`instances`", "(alpha, seed)", "-1"]),
        ({"instances": ONE, "alpha": 0.5}, ["`alpha`", "None"]),
        ({"alpha": -0.5}, ["`alpha`", "positive", "-0.5"]),
        ({"rounds_per_steps": 2}, ["unknown argument", "rounds_per_step"]),
        ({"number": 2}, ["unknown argument", "'number'"]),
        ({"rewards": []}, ["`rewards`", "at least one"]),
        ({"render_mode": "ascii"}, ["`render_mode`", "rgb_array", "ascii"]),
        ({"system": {"compute": "epoch"}}, ["`system['compute']` must be one of"]),
        ({"system": {"computes": "epochs"}}, ["unknown system parameter", "'compute'"]),
        ({"dynamic": ["lr"]}, ["Unknown", "lr"]),
        ({"potential": "f1"}, ["Unknown", "f1"]),
        ({"rewards": ["time_s"]}, ["Unknown reward", "time_s"]),
        ({"instances": "tests"}, ["Unknown", "tests"]),
        ({"algorithm": "fedsgd"}, ["Unknown algorithm", "fedsgd", "`module:Class`"]),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*render_mode='ascii'")  # Gymnasium says it, too
def test_it_refuses_what_cannot_be_made(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(FedHPOError) as caught:
        gym.make(ID, **arguments)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("instance", [1, -1, True, 0.0])
def test_an_instance_that_does_not_exist_is_refused(instance: Any) -> None:
    env = gym.make(ID, **SHORT)
    with pytest.raises(InvalidArgumentError, match=r"`options\['instance'\]`"):
        env.reset(options={"instance": instance})


@pytest.mark.parametrize("action", [np.full(4, 2.0), np.zeros(3), np.full(4, np.nan)])
def test_an_action_outside_the_space_changes_nothing(action: Any) -> None:
    env = gym.make(ID, **SHORT).unwrapped
    env.reset(seed=0)
    with pytest.raises(InvalidArgumentError, match="`action`"):
        env.step(action)
    assert env.step(np.zeros(4, np.float32))[-1]["step"] == 1


OTHERS: dict[str, dict[str, Any]] = {
    "task": {"task": "LR-CreditG-v0"},
    "algorithm": {"algorithm": "fedadam"},
    "preprocessing": {"preprocessing": "label_encoded"},
    "system": {"system": {"client_compute_mean_s": 9.0}},
    "instances": {"instances": [[0.5, 8]]},
    "per_client": {"per_client": True},
    "dynamic": {"dynamic": ["learning_rate"]},
    "configuration": {"client_sample_rate": 0.4},
    "rounds_per_step": {"rounds_per_step": 2},
    "horizon": {"horizon": 8},
    "budget_s": {"budget_s": 7.0},
    "history": {"history": 2},
    "potential": {"potential": "loss"},
    "rewards": {"rewards": ["improvement"]},
    "reward_scale": {"reward_scale": 3.0},
    "noise": {"noise": {"clients": 0.5}},
    "report_moves": {"report_moves": True},
}
"""What another environment was made with, by the name that the refusal says."""


@pytest.mark.parametrize("name", OTHERS)
def test_a_foreign_snapshot_is_refused_by_name_and_changes_nothing(name: str) -> None:
    action = np.full(4, 0.5, np.float32)
    env, twin = gym.make(ID, **SHORT), gym.make(ID, **SHORT)
    for one in (env, twin):
        one.reset(seed=0)
        one.step(action)
        one.action_space.seed(1)
    other: Any = gym.make(ID, **{**SHORT, **OTHERS[name]})
    other.reset(seed=3)
    other.action_space.seed(0)
    other.step(other.action_space.sample())
    course: Any = env.unwrapped
    with pytest.raises(InvalidArgumentError, match=rf"`snapshot` .* another '{name}'"):
        course.restore(other.unwrapped.snapshot())
    assert go_on(env, 2) == go_on(twin, 2)


def test_what_is_no_snapshot_is_refused() -> None:
    env: Any = gym.make(ID, **SHORT).unwrapped
    env.reset(seed=0)
    with pytest.raises(InvalidArgumentError, match="`snapshot` must be a Snapshot"):
        env.restore(env.process.snapshot(0))


def test_a_snapshot_can_be_pickled_and_taken_elsewhere() -> None:
    env, twin = gym.make(ID, **SHORT), gym.make(ID, **SHORT)
    for one in (env, twin):
        one.reset(seed=0)
        one.step(np.full(4, 0.5, np.float32))
    fresh: Any = gym.make(ID, **SHORT)
    fresh.reset(seed=9)
    for one in (twin, fresh):
        one.action_space.seed(1)
    state: Any = env.unwrapped
    fresh.unwrapped.restore(pickle.loads(pickle.dumps(state.snapshot())))
    assert go_on(fresh, 2) == go_on(twin, 2)


def _coordinate(env: gym.Env[Any, Any], values: dict[str, float]) -> Any:
    space = env.get_wrapper_attr("search_space")
    action = np.zeros(len(space), np.float32)
    for name, value in values.items():
        action[space.names.index(name)] = space[name].encode(value)
    return action


def _freeze(env: Any) -> None:
    """Make the course leave the finite numbers in its next round."""
    course = env.process.snapshot(0).course
    course.state.parameters["weight"][:] = 3e38
    env.process.courses.restore(0, course)


@pytest.mark.parametrize("names", [["learning_rate"], ["learning_rate", "batch_size"]], ids=str)
def test_every_step_trains_with_its_own_action(names: list[str]) -> None:
    env = gym.make(ID, **SHORT, dynamic=names)
    env.reset(seed=0)
    norms = []
    for rate in (0.1, 1e-5, 0.1):
        observation, *_ = env.step(_coordinate(env, {"learning_rate": rate}))
        norms.append(6.0 * observation["update_norm"][0])
    assert norms[0] - norms[1] > 2.0
    assert norms[2] - norms[1] > 2.0
