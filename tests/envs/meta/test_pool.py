"""Environments of FedHPO-B: one is the case N = 1 of many, and a return is 1 minus the regret."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.stored.meta_data import open_meta_data
from made_meta_data import OWN, SHARED
from vector_parity import check_vector

ID = "FedHPO-B-LR-v1"
POOL = SHARED + OWN


pytestmark = pytest.mark.usefixtures("only_made_meta_data")


def _make(env_id: str = ID, **arguments: Any) -> Any:
    return gym.make(env_id, disable_env_checker=True, **{"trials": 8, **arguments}).unwrapped


@pytest.mark.parametrize("actions", ["index", "coordinates"])
def test_gymnasium_accepts_it(actions: str) -> None:
    check_env(_make(actions=actions), skip_render_check=True)


@pytest.mark.parametrize("kind", [ID, f"MO-{ID}"])
@pytest.mark.parametrize("actions", ["index", "coordinates"])
def test_a_vector_is_bit_for_bit_its_environments(kind: str, actions: str) -> None:
    check_vector(kind, {"actions": actions, "trials": 5})


def test_a_seed_is_a_task_for_ever() -> None:
    env = _make(instances="train")
    drawn = [env.reset(seed=seed)[1]["task"] for seed in range(12)]
    assert drawn == [env.reset(seed=seed)[1]["task"] for seed in range(12)]
    # Written down once: who changes the draws breaks what seeds stand for.
    assert [env.instances.index(task) for task in drawn] == [1, 2, 0, 1, 0, 0, 2, 2, 1, 2, 0, 2]
    assert env.reset(options={"instance": 2})[1]["task"] == env.instances[2]


def test_instances_are_a_split_or_tasks_by_name() -> None:
    data = open_meta_data("LR")
    for split in ("train", "validation", "test"):
        names = _make(instances=split).instances
        assert names == tuple(data.names[i] for i in data.where(split))
    assert _make(instances="Tuna").instances == ("Tuna",)
    assert _make(instances=["Tuna", "MplsStops"]).instances == ("Tuna", "MplsStops")
    assert _make(instances=["test", "Tuna"]).instances == _make(instances="test").instances


def test_what_shares_data_with_the_task_of_an_episode_is_no_source() -> None:
    data = open_meta_data("LR")
    train = {data.names[i] for i in data.where("train")}
    assert {one.name for one in _make(instances="Tuna").source_tasks} == train
    env = _make(instances="train")
    assert env.source_tasks == ()
    for seed in range(4):
        task = env.reset(seed=seed)[1]["task"]
        assert {one.name for one in env.source_tasks} == train - {task}


def test_a_copy_made_in_mid_episode_goes_on_alike() -> None:
    env = _make(instances="test", actions="coordinates")
    env.reset(seed=1)
    env.step(np.zeros(12))
    copies = copy.deepcopy(env), pickle.loads(pickle.dumps(env))
    own, (expected, _) = env.step(np.zeros(12))[4]["place"], env.reset(seed=2)
    for again in copies:
        assert again.step(np.zeros(12))[4]["place"] == own
        seen, _ = again.reset(seed=2)
        for name, value in expected.items():
            np.testing.assert_array_equal(seen[name], value, err_msg=name)


def test_a_return_is_one_minus_the_normalised_regret() -> None:
    env = _make(instances="Tuna", trials=POOL)
    scores = open_meta_data("LR").scores[open_meta_data("LR").index("Tuna"), :, -1, -1]
    for order in (range(POOL), reversed(range(POOL))):
        env.reset(seed=0)
        total, best = 0.0, 0.0
        for place in order:
            _, reward, over, _, info = env.step(place)
            total, best = total + reward, max(best, scores[place])
            expected = 1.0 - (best - scores.min()) / np.ptp(scores)
            assert info["score"] == scores[place]
            assert info["normalised_regret"] == pytest.approx(expected, abs=1e-12)
            assert total == pytest.approx(1.0 - info["normalised_regret"], abs=1e-12)
        assert over
        assert total == pytest.approx(1.0)


def test_an_observation_holds_the_history_and_what_is_left() -> None:
    env = _make(instances="Tuna")
    first, _ = env.reset(seed=0)
    data = open_meta_data("LR")
    task, width = data.index("Tuna"), data.features.shape[2]
    np.testing.assert_array_equal(first["pool"].reshape(POOL, width), data.features[task])
    assert not first["history"].any()
    assert first["mask"].all()
    tried = [3, 7, 3]
    for place in tried:
        seen, *_ = env.step(place)
    history = seen["history"].reshape(8, width)
    np.testing.assert_array_equal(history[:3], data.features[task][tried])
    assert not history[3:].any()
    expected = data.scores[task, tried, -1, -1].astype(np.float32)
    np.testing.assert_array_equal(seen["scores"][:3], expected)
    assert np.flatnonzero(seen["mask"] == 0).tolist() == [3, 7]
    assert seen["mask"].astype(bool).tolist() == env.action_masks().tolist()
    assert (seen["trials"].tolist(), seen["remaining_budget"].tolist()) == ([3.0], [0.625])


def test_coordinates_take_the_nearest_untried_place() -> None:
    env = _make(instances="Tuna", actions="coordinates")
    data = open_meta_data("LR")
    env.reset(seed=0)
    known = data.actions[data.index("Tuna")]
    assert env.step(known[5])[4]["place"] == 5
    again = env.step(known[5])[4]["place"]
    features = data.features[data.index("Tuna")]
    distance = ((features - features[5]) ** 2).sum(axis=1)
    assert again == np.argsort(distance)[1] != 5
    assert len(env.candidates()) == POOL - 2
    assert not (env.candidates() == known[5]).all(axis=1).any()


def test_a_lower_fidelity_costs_less_and_scores_less() -> None:
    full, low = _make(), _make(fidelity={"round": 3, "client_sample_rate": 0.2})
    for env in (full, low):
        env.reset(seed=1)
    for place in (0, 5, 9):
        better, worse = (env.step(place)[4] for env in (full, low))
        assert better["configuration"] == worse["configuration"]
        assert better["score"] >= worse["score"]
        assert better["cost"]["time_s"] > worse["cost"]["time_s"]
    assert low.setup.fixed == {"round": 3, "client_sample_rate": 0.2}


def test_a_vector_reward_is_the_scores_of_the_objectives() -> None:
    env = _make(f"MO-{ID}", instances="Tuna", objectives=["val_loss", "time_s"])
    env.reset(seed=0)
    _, reward, _, _, info = env.step(2)
    expected = [-info["objectives"]["val_loss"], -info["objectives"]["time_s"]]
    assert reward.tolist() == np.float32(expected).tolist()
    assert env.reward_space.contains(reward)
    assert env.reward_dim == 2


def test_agents_for_coordinates_run_an_episode() -> None:
    with pytest.raises(InvalidArgumentError, match="actions='coordinates'"):
        make_agent("random", _make(), 0)
    env = gym.make(ID, disable_env_checker=True, actions="coordinates", trials=6)
    steps = list(run_episode(env, make_agent("random", env, 0), seed=0))
    assert len(steps) == 6
    assert len({step.info["place"] for step in steps}) == 6
    for before, after in itertools.pairwise(steps):
        assert after.info["incumbent"]["score"] >= before.info["incumbent"]["score"]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"instances": "everything"}, UnknownNameError, "instance"),
        ({"instances": []}, InvalidArgumentError, "leave a task"),
        ({"actions": "words"}, UnknownNameError, "kind of actions"),
        ({"trials": 0}, InvalidArgumentError, "`trials`.*1 to 20.*0"),
        ({"trials": POOL + 1}, InvalidArgumentError, "`trials`"),
        ({"fidelity": {"round": 9}}, InvalidArgumentError, "one of .*1, 2, 3, 4.*got 9"),
        ({"fidelity": {"rounds": 3}}, UnknownNameError, "Did you mean 'round'"),
        ({"objectives": ["speed"]}, UnknownNameError, "objective"),
        ({"objectives": []}, InvalidArgumentError, "different names"),
        ({"trial": 5}, InvalidArgumentError, "trial"),
        ({"continuous": True}, InvalidArgumentError, "tau of 0.6"),
    ],
)
def test_bad_arguments_are_named(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        _make(**arguments)


@pytest.mark.parametrize("action", [-1, POOL, 1.5, "a", None, np.array([1, 2])])
def test_bad_actions_are_refused_and_change_nothing(action: Any) -> None:
    env = _make(instances="Tuna")
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(InvalidArgumentError, match=r"`action` must be an integer from 0 to 19"):
        env.step(action)
    assert env.step(np.array([4]))[4]["trial"] == 1
    vector: Any = gym.make_vec(ID, num_envs=2, trials=8)
    vector.reset(seed=0)
    with pytest.raises(InvalidArgumentError, match="`actions"):
        vector.step([0, action])
