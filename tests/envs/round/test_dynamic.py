"""Laws of the problems of dynamic configuration: what is rewarded is what is judged."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("sklearn")

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents.training import make_vector
from fedhpo_gym.agents.training import play as episodes
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, MissingDependencyError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data import load_dataset
from fedhpo_gym.objectives import MAX_LOSS, SEARCH_ORDERS, poisson_curve
from fedhpo_gym.objectives.privacy import epsilon_from_renyi
from fedhpo_gym.studies.suites import suite
from fedhpo_gym.tasks import get_task, make_instances
from fedhpo_gym.tasks.dynamic import DYNAMIC
from fedhpo_gym.tasks.federated import SETS

PRIVATE = {
    "algorithm": "dpfedavg",
    "tune": {"noise_multiplier": (0.5, 4.0)},
    "dynamic": ("learning_rate", "noise_multiplier"),
    "rounds_per_step": 2,
    "horizon": 40,
    "time_price": 0.0,
    "epsilon": 3.0,
    "client_sample_rate": 0.2,
}


def play(env_id: str, actions: Any) -> tuple[float, float, dict[str, Any]]:
    """Return what a sequence of actions returns on the first test instance.

    And by how many decades the loss that is shown fell, and the last info. Ids outside the suite
    pay for time, unless they are told not to.
    """
    free = {} if env_id in suite("dac") else {"time_price": 0.0}
    with gym.make(env_id, instances="test", **free) as env:
        first, _ = env.reset(options={"instance": 0})
        total, steps, over = 0.0, 0, False
        while not over:
            action = np.resize(actions[steps % len(actions)], env.action_space.shape)
            last, reward, over, _, info = env.step(action.astype(np.float32))
            total, steps = total + reward, steps + 1
    return total, 3.0 * float(first["val_loss"][-1] - last["val_loss"][-1]), info


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [*suite("dac"), "FedHPO-DAC-LR-BreastCancer-v1"])
def test_order_by_return_is_order_by_the_last_loss(env_id: str) -> None:
    try:
        task = get_task(env_id)
        if task.has_data:
            load_dataset(task.dataset)
    except (MissingDataError, MissingDependencyError) as error:
        pytest.skip(str(error))
    rng = stream(0, "test_dynamic")
    made = [np.full((1, 1), 0.999), *(rng.uniform(-1, 1, (20, 4)) for _ in range(3))]
    played = [play(env_id, actions) for actions in made]
    judged = [info["val_loss"] for *_, info in played]
    order = np.argsort(judged, kind="stable")
    returns = np.array([one for one, *_ in played])[order]
    assert (np.diff(returns) <= 1e-9).all()
    for total, decades, info in played:
        improved = 1.0 - min(info["val_loss"], MAX_LOSS) if "Quadratic" in env_id else decades
        assert info["diverged"] or total == pytest.approx(improved, abs=1e-5)
        assert "loss" in info["test"]


@pytest.mark.parametrize("name", DYNAMIC)
def test_sets_of_instances_are_disjoint_and_large(name: str) -> None:
    seeds = [{one.seed for one in make_instances(get_task(f"{name}-v1"), s)} for s in SETS][:3]
    assert min(map(len, seeds)) >= 16
    assert len(set.union(*seeds)) == sum(map(len, seeds))


def test_an_epsilon_is_never_overspent_and_what_it_refuses_is_not_released() -> None:
    env = gym.make("FedHPO-DAC-LR-BreastCancer-v1", **PRIVATE)
    shown, _ = env.reset(seed=0)
    assert shown["remaining_privacy"] == 1.0
    losses, epsilons, over = [], [], False
    while not over:
        shown, reward, over, _, info = env.step(np.zeros(2, np.float32))
        losses.append(info["val_loss"])
        epsilons.append(info["epsilon"])
    assert info["ended_by"] == "privacy"
    assert epsilons == sorted(epsilons)
    assert epsilons[-2] == epsilons[-1] <= PRIVATE["epsilon"]
    assert losses[-2] == losses[-1]
    assert reward == 0.0
    assert shown["remaining_privacy"] == pytest.approx(1.0 - epsilons[-1] / 3.0)


def test_what_rounds_spend_is_composed_and_rounded_up() -> None:
    env = gym.make("FedHPO-DAC-LR-BreastCancer-v1", **PRIVATE)
    env.reset(seed=0)
    spent, names = np.zeros(len(SEARCH_ORDERS)), env.unwrapped.search_space.names
    for coordinate in (0.9, 0.3):
        action = np.zeros(2, np.float32)
        action[names.index("noise_multiplier")] = coordinate
        info = env.step(action)[-1]
        noise = info["configuration"]["noise_multiplier"]
        spent = spent + 2 * poisson_curve(noise, 1, 0.2)
        exact = epsilon_from_renyi(SEARCH_ORDERS, spent.tolist(), 1e-5)
        assert exact <= info["epsilon"] < 1.03 * exact


@pytest.mark.parametrize("horizon", [5, 20])
def test_what_is_planned_for_an_episode_is_spent_by_it(horizon: int) -> None:
    arguments: dict[str, Any] = {
        "algorithm": "dpfedavg",
        "settings": {"epsilon": 5.0},
        "epsilon": 6.0,
        "client_sample_rate": 0.2,
        "horizon": horizon,
        "rounds_per_step": 1,
        "dynamic": ("learning_rate",),
    }
    with gym.make("FedHPO-DAC-LR-BreastCancer-v1", **arguments) as env:
        env.reset(seed=0)
        rounds, over = 0, False
        while not over:
            _, _, over, _, info = env.step(np.zeros(1, np.float32))
            rounds += 1
    assert rounds == horizon
    assert 4.99 <= info["epsilon"] < 1.03 * 5.0


@pytest.mark.slow
def test_each_episode_in_company_has_a_budget_of_its_own_and_the_next_a_new_one() -> None:
    """One has little noise, and is refused before the other is."""
    env_id, actions = "FedHPO-DAC-LR-BreastCancer-v1", np.zeros((2, 2), np.float32)
    with gym.make(env_id, **PRIVATE) as env:
        names = env.unwrapped.search_space.names
        actions[:, names.index("noise_multiplier")] = (-0.2, 0.3)
        alone = []
        for action in actions:
            for _ in range(2):
                env.reset(options={"instance": 0})
                rewards, over = [], False
                while not over:
                    _, reward, over, _, info = env.step(action)
                    rewards.append(reward)
            alone.append((len(rewards), sum(rewards)))
            assert 0.8 * PRIVATE["epsilon"] < info["epsilon"] <= PRIVATE["epsilon"]
    assert alone[0][0] < alone[1][0]
    envs = make_vector(env_id, 2, PRIVATE)
    for _ in range(2):
        played = list(episodes(envs, lambda *_: actions, options={"instance": [0, 0]}))
        found = np.array([[alive, reward] for _, _, reward, alive in played]).sum(axis=0).T
        np.testing.assert_allclose(found, alone, rtol=1e-5)


def test_what_protects_nothing_has_no_epsilon() -> None:
    with pytest.raises(InvalidArgumentError, match="`epsilon` must be None for 'fedavg'"):
        gym.make("FedHPO-DAC-LR-BreastCancer-v1", epsilon=1.0)
    with pytest.raises(InvalidArgumentError, match="`epsilon` must be None with per_client=True"):
        gym.make("FedHPO-DAC-LR-BreastCancer-v1", **PRIVATE, per_client=True)
