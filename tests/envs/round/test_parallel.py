"""Clients as agents: PettingZoo's own tests, and what each agent is told."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("pettingzoo")

with warnings.catch_warnings():  # PettingZoo's tests import a game in a way it deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import parallel_api_test

import fedhpo_gym
from fedhpo_gym.core.errors import InvalidArgumentError

pytestmark = pytest.mark.raw

ID = "FedHPO-DAC-LR-BreastCancer-v0"
SMALL: dict[str, Any] = {"instances": [[0.7, 100]], "client_sample_rate": 0.6, "horizon": 6}


def make(**arguments: Any) -> Any:
    return fedhpo_gym.parallel_env(ID, **{**SMALL, **arguments})


def test_pettingzoo_accepts_rewards_of_their_own() -> None:
    parallel_api_test(make(reward="own"), num_cycles=10)


def test_agents_see_their_own_client_and_the_course() -> None:
    env = make()
    observations, infos = env.reset(seed=0)
    assert list(observations) == list(infos) == [f"client_{i}" for i in range(5)]
    sampled = [bool(observations[agent]["sampled"][0]) for agent in env.agents]
    assert sum(sampled) == 3
    env.step({agent: np.full(4, 0.1 * i, np.float32) for i, agent in enumerate(env.agents)})
    observations, *_ = env.step({agent: env.action_space(agent).sample() for agent in env.agents})
    for agent, seen in observations.items():
        assert seen in env.observation_space(agent)
    losses = {str(seen["val_loss"]) for seen in observations.values()}
    assert len(losses) == 1
    assert len({str(seen["last_action"]) for seen in observations.values()}) > 1


def test_the_team_shares_one_reward_and_own_rewards_are_gains_of_local_training() -> None:
    team, own = make(), make(reward="own")
    for env in (team, own):
        env.reset(seed=0)
    actions = {agent: np.zeros(4, np.float32) for agent in team.agents}
    assert len(set(team.step(actions)[1].values())) == 1
    _, rewards, *_, infos = own.step(actions)
    for agent, info in infos.items():
        before, after = info["val_loss_before"], info["val_loss_after"]
        gain = np.log10(before / after) if info["num_val_samples"] else 0.0
        assert rewards[agent] == pytest.approx(gain, abs=1e-5)


def test_an_agent_is_told_its_own_numbers_only() -> None:
    env, whole = make(), gym.make(ID, per_client=True, **SMALL)
    env.reset(seed=0)
    whole.reset(seed=0)
    rows = np.linspace(-0.5, 0.5, 20, dtype=np.float32).reshape(5, 4)
    infos = env.step(dict(zip(env.agents, rows, strict=True)))[-1]
    info = whole.step(rows)[-1]
    for i, agent in enumerate(env.possible_agents):
        told = infos[agent]
        for name in ("num_train_samples", "num_val_samples", "val_loss_before", "val_loss_after"):
            assert told[name] == info[name][i]
        expected = {
            name: info["configuration"].get(f"{name}@{i}", info["configuration"].get(name))
            for name in told["configuration"]
        }
        assert told["configuration"] == expected
        assert {"learning_rate", "client_sample_rate"} <= set(expected)
        assert set(told) == set(info)
        assert "@" not in str(told)
    infos["client_0"]["test"]["loss"] = -1.0
    infos["client_0"]["instance"].clear()
    assert infos["client_1"]["test"]["loss"] == info["test"]["loss"]
    assert infos["client_1"]["instance"] == info["instance"]


def test_it_refuses_what_it_cannot_be_made_of() -> None:
    with pytest.raises(InvalidArgumentError, match="`reward`"):
        make(reward="mine")
    with pytest.raises(InvalidArgumentError, match="MO-"):
        fedhpo_gym.parallel_env("MO-" + ID, **SMALL)
    env = make()
    env.reset(seed=0)
    with pytest.raises(InvalidArgumentError, match=r"lacks.*client_4"):
        env.step({agent: np.zeros(4, np.float32) for agent in env.agents[:4]})


@pytest.mark.parametrize(
    "env_id", ["FedHPO-LR-CreditG-v0", "MO-FedHPO-LR-CreditG-v0", "fedhpo_gym:FedHPO-LR-CreditG-v0"]
)
def test_trial_ids_are_refused(env_id: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`env_id` must be a FedHPO-DAC-\* id.*CreditG"):
        fedhpo_gym.parallel_env(env_id)


def test_unknown_ids_are_left_to_gymnasium() -> None:
    with pytest.raises(gym.error.NameNotFound):
        fedhpo_gym.parallel_env("FedHPO-DAC-LR-BreastCancers-v0")
