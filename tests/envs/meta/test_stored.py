"""The ids of FedHPO-B on the numbers that travel in the second distribution."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.core.archive import second_folder
from fedhpo_gym.stored.health import difficulty_in_pool
from fedhpo_gym.stored.meta_data import MODEL_SUFFICES, REPEATED, open_meta_data
from fedhpo_gym.tasks.meta import META_IDS, META_SPACES, meta_tasks

pytestmark = pytest.mark.skipif(second_folder() is None, reason="fedhpo-gym-data is not here")


@pytest.mark.parametrize("space", META_SPACES)
def test_stored_are_the_tasks_of_the_catalogue(space: str) -> None:
    data, tasks = open_meta_data(space), meta_tasks(space)
    assert data.names == tuple(one.name for one in tasks)
    assert data.splits == tuple(one.split for one in tasks)
    assert data.surveys == tuple(one.survey for one in tasks)
    assert data.space == tasks[0].task.space
    assert data.rounds == tasks[0].task.evaluated_rounds
    assert data.label_entropy.tolist() == [one.task.label_entropy for one in tasks]
    assert min(data.tau) >= MODEL_SUFFICES
    assert (data.scores[:, :, -1, -1].max(axis=1) > 0.03).all()


@pytest.mark.parametrize("env_id", META_IDS)
def test_an_agent_tunes_from_the_surrogate(env_id: str) -> None:
    pytest.importorskip("scipy")
    env = gym.make(env_id, instances="test", continuous=True, trials=7, disable_env_checker=True)
    steps = list(run_episode(env, make_agent("gp", env, 0), seed=0))
    assert len({step.action.tobytes() for step in steps}) == 7
    assert "place" not in steps[0].info
    vector: Any = gym.make_vec(env_id, 2, instances="test", continuous=True, trials=7)
    vector.reset(seed=[0, 1])
    for step in steps:
        _, rewards, _, _, info = vector.step(np.stack([step.action, step.action]))
        assert rewards[0] == step.reward
        assert info["score"][0] == step.info["score"]


@pytest.mark.slow
@pytest.mark.parametrize("env_id", META_IDS)
def test_a_configuration_has_one_answer(env_id: str) -> None:
    asked: dict[str, Any] = {"instances": "Tuna", "continuous": True, "trials": 20}
    env, truth = gym.make(env_id, **asked), fedhpo_gym.truth(env_id, **asked)
    env.reset(seed=0)
    env.action_space.seed(0)
    data = open_meta_data(env_id.split("-")[-2])
    for _ in range(20):  # between what whole numbers and categories are encoded as
        action = env.action_space.sample()
        info = env.step(action)[4]
        (value,) = truth.values_at([info["configuration"]])
        assert value[0] == info["objectives"]["val_loss"]
        assert data.predicted_scores(data.index("Tuna"), action[None])[0] == info["score"]


ACTIONS = """
import gymnasium as gym, fedhpo_gym
from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.agents.transfer import ablr, cts, fsbo
from fedhpo_gym.stored.meta_data import MetaData
every = MetaData.where
MetaData.where = lambda data, split: every(data, split)[:8]  # all have the same to sum over
for module in (ablr, cts, fsbo):
    module.STEPS = 20
for name in ("rgpe", "cts", "ablr", "fsbo"):
    env = gym.make("FedHPO-B-Private-v1", instances="Tuna", actions="coordinates", trials=8)
    env.reset(seed=0)
    print(name, [s.info["place"] for s in run_episode(env, make_agent(name, env, 3), seed=0)])
"""


@pytest.mark.slow
def test_what_sources_taught_is_the_same_in_another_process(
    run_python: Callable[[str], str],
) -> None:
    for library in ("torch", "sklearn", "scipy"):
        pytest.importorskip(library)
    first, second = (run_python(ACTIONS) for _ in range(2))
    assert first == second
    assert len({line.partition(" ")[2] for line in first.splitlines()}) == 4


def test_what_a_seed_does_to_a_pool_is_no_error_of_a_mean() -> None:
    data = open_meta_data("LR")
    index, loss = data.where("test")[0], data.objectives.index("val_loss")
    first = data.arrays["values"][index, ::REPEATED, -1, -1, loss]
    others = data.arrays["repeats"][index, :, :, -1, -1, loss]
    seeds = np.stack([first, *others]).astype(float)
    best = seeds.T[np.argsort(seeds.mean(axis=0))[:6]]
    # Of two configurations, all that a seed does to one alone is in their difference.
    pairs = [np.var(one - other, ddof=1) / 2 for one, other in combinations(best, 2)]
    found = difficulty_in_pool(data, int(index)).seed
    assert found == pytest.approx(np.sqrt(np.mean(pairs)), rel=1e-6)
