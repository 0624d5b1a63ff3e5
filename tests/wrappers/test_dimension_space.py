"""The action space of `NamedAction`: natural units, drawn with the priors of the search space."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.space import Dimension
from fedhpo_gym.testing import make_env
from fedhpo_gym.wrappers import NamedAction
from fedhpo_gym.wrappers.actions import DimensionSpace

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
DRAWS = 4000
RATE = Dimension("learning_rate", 1e-5, 1.0, "float", log=True)
SPACES = [
    DimensionSpace(RATE),
    DimensionSpace(Dimension("momentum", 0.0, 0.9, "float")),
    DimensionSpace(Dimension("round", 1, 500, "int", log=True)),
    DimensionSpace(Dimension("batch_size", 8, 64, "int", values=(8, 16, 64))),
    DimensionSpace(Dimension("client_sample_rate", 1.0, 1.0, "float", values=(1.0,))),
]


@pytest.mark.parametrize("env_id", ["FedHPO-GNN-Cora-v1", "grid"])
def test_samples_have_the_quantiles_of_the_search_space(env_id: str) -> None:
    env = NamedAction(make_env(grid=True) if env_id == "grid" else gym.make(env_id))
    space = env.get_wrapper_attr("search_space")
    env.action_space.seed(0)
    rng = stream(0, "quantiles")
    named = [env.action_space.sample() for _ in range(DRAWS)]
    plain = [space.sample(rng) for _ in range(DRAWS)]
    for d in space.dimensions:
        one, two = (
            np.array([d.encode(drawn[d.name]) for drawn in side]) for side in (named, plain)
        )
        assert all(type(drawn[d.name]) is type(plain[0][d.name]) for drawn in named)
        # A coordinate is uniform on [-1, 1]: a quantile of 4,000 has a deviation of 0.016.
        width = 0.0 if d.values is None else 2.0 / len(d.values)
        apart = np.abs(np.quantile(one, QUANTILES) - np.quantile(two, QUANTILES))
        assert apart.max() <= 0.08 + width, (d.name, apart)


def test_the_median_learning_rate_is_the_middle_of_its_logarithm() -> None:
    space = DimensionSpace(RATE, seed=1)
    drawn = [space.sample() for _ in range(DRAWS)]
    assert np.median(drawn) == pytest.approx(10**-2.5, rel=0.2)


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.dimension.name)
def test_it_is_a_space(space: DimensionSpace) -> None:
    space.seed(3)
    twins = copy.deepcopy(space), pickle.loads(pickle.dumps(space))
    drawn = [space.sample() for _ in range(20)]
    for twin in twins:
        assert twin == space
        assert [twin.sample() for _ in range(20)] == drawn
    space.seed(3)
    assert [space.sample() for _ in range(20)] == drawn
    flat = gym.spaces.flatten_space(space)
    for value in drawn:
        assert value in space
        coordinates = gym.spaces.flatten(space, value)
        assert coordinates in flat
        assert gym.spaces.unflatten(space, coordinates) == value
    assert flat.shape == (gym.spaces.flatdim(space),)
    assert space.from_jsonable(space.to_jsonable(drawn)) == drawn
    assert space != DimensionSpace(Dimension("other", 0.0, 1.0, "float"))
    assert space.dimension.name in repr(space)
    for foreign in (space.dimension.high + 1, "0.1", True, None):
        assert foreign not in space


def test_the_whole_action_space_is_flattened_and_back() -> None:
    space = NamedAction(make_env()).action_space
    space.seed(0)
    action = space.sample()
    assert space.is_np_flattenable
    flat = gym.spaces.flatten(space, action)
    assert flat in gym.spaces.flatten_space(space)
    assert gym.spaces.unflatten(space, flat) == action


def test_a_mask_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="`mask` and `probability` must be None"):
        DimensionSpace(RATE).sample(mask=np.ones(1, np.int8))


def test_several_environments_take_named_actions_with_the_same_priors() -> None:
    envs = SyncVectorEnv([lambda: NamedAction(make_env()) for _ in range(2)])
    envs.reset(seed=0)
    envs.action_space.seed(0)
    rates = np.array([envs.action_space.sample()["learning_rate"] for _ in range(500)])
    assert np.median(rates) < 0.02
    *_, info = envs.step(envs.action_space.sample())
    assert info["trial"].tolist() == [1, 1]


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_an_environment_without_a_search_space_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`env` must have a `search_space`.*got"):
        NamedAction(gym.make(name))


@pytest.mark.raw
def test_rows_of_clients_are_refused() -> None:
    pytest.importorskip("torch")
    env = gym.make("FedHPO-DAC-LR-BreastCancer-v0", per_client=True)
    with pytest.raises(InvalidArgumentError, match="without `per_client`"):
        NamedAction(env)
