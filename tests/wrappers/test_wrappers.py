"""One behaviour per wrapper, the laws all of them keep, and the space of named actions."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.core.errors import InvalidArgumentError, OffGridError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.space import Dimension
from fedhpo_gym.testing import WrapperConformance, make_env
from fedhpo_gym.wrappers import (
    BudgetTermination,
    NamedAction,
    RawBackend,
    ScalarizePenalty,
    SurrogateBackend,
    TabularBackend,
)
from fedhpo_gym.wrappers.actions import DimensionSpace
from stored_files import TINY_ID, tiny  # noqa: F401 - a fixture

SHORT = {"round": 1, "client_sample_rate": 0.2}
CONFIGURATION = {"learning_rate": 0.01, "weight_decay": 0.001, "batch_size": 64, "step_size": 2}


class TestBudgetTermination(WrapperConformance):
    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return BudgetTermination(env, budget_trials=3)


class TestScalarizePenalty(WrapperConformance):
    def make(self) -> gym.Env[Any, Any]:
        spec = gym.envs.registration.EnvSpec(
            "FedHPO-Analytic-v0",
            "fedhpo_gym.testing.analytic:make_env",
            kwargs={"vector_reward": True},
        )
        return gym.make(spec, disable_env_checker=True)

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return ScalarizePenalty(env, constraints={"val_loss": {"limit": 0.5, "weight": 2.0}})


class TestNamedAction(WrapperConformance):
    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return NamedAction(env)


class BackendWrapperConformance(WrapperConformance):
    """Wrappers that exchange the backend are put around a registered environment."""

    def make(self) -> gym.Env[Any, Any]:
        env = gym.make(TINY_ID, fidelity=SHORT, seed=1)
        assert env.reset(seed=0)[1]["backend"] == "tabular"
        return env


@pytest.mark.usefixtures("tiny")
class TestTabularBackend(BackendWrapperConformance):
    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return TabularBackend(env, seed=2)


@pytest.mark.raw
@pytest.mark.usefixtures("tiny")
class TestRawBackend(BackendWrapperConformance):
    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return RawBackend(env, seed=1)


@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        ({"budget_trials": 3}, 3),
        ({"budget_rounds": 200}, 3),  # 81 + 81 < 200 <= 81 + 81 + 81
        ({"budget_rounds": 162}, 2),
        ({"budget_trials": 3, "budget_rounds": 100}, 2),
        ({"budget_s": 1e-9}, 1),
        ({"budget_s": 500.0}, 3),  # each takes 185.26 s
    ],
)
def test_the_step_that_crosses_the_budget_ends_the_episode_and_counts(
    budget: dict[str, Any], steps: int
) -> None:
    env = make_env(fidelity={"round": 81, "client_sample_rate": 1.0}, **budget)
    for _ in range(2):  # the second episode has the whole budget again
        observation, _ = env.reset(seed=0)
        left = [float(observation["remaining_budget"][0])]
        terminated, count = False, 0
        while not terminated:
            observation, _, terminated, truncated, info = env.step(env.action_space.sample())
            left.append(float(observation["remaining_budget"][0]))
            count += 1
            assert truncated is False
            assert type(terminated) is bool
        assert count == steps == info["trial"]
        assert info["cost"]["rounds"] == 81
        assert left[0] == 1.0
        assert left[-1] == 0.0
        assert (np.diff(left) < 0).all()


def test_a_budget_is_needed() -> None:
    with pytest.raises(InvalidArgumentError, match=r"budget_rounds.*budget_s.*got none"):
        BudgetTermination(make_env(vector_reward=True))


def test_flat_observations_are_refused_with_advice() -> None:
    flat = gym.wrappers.FlattenObservation(make_env())
    with pytest.raises(InvalidArgumentError, match=r"`env`.*dictionary.*Box.*before flattening"):
        BudgetTermination(flat, budget_trials=1)


def test_the_penalty_by_hand() -> None:
    constraints = {
        "val_loss": 0.3,
        "val_f1": {"limit": 0.99, "weight": 3.0},
        "fairness_std": {"limit": 0.5, "weight": 1e6},
    }
    objectives = ["val_loss", "val_f1", "fairness_std"]
    env = make_env(objectives=objectives, constraints=constraints)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(5):
        _, reward, *_, info = env.step(env.action_space.sample())
        values = info["objectives"]
        expected = max(0.0, values["val_loss"] - 0.3) + 3.0 * max(0.0, 0.99 - values["val_f1"])
        assert expected > 0
        assert info["penalty"] == pytest.approx(expected, rel=1e-5)
        assert reward == pytest.approx(-values["val_loss"] - expected, rel=1e-5)
        assert type(reward) is float


def test_without_constraints_the_reward_is_the_first_score() -> None:
    env = make_env(objectives=["val_f1", "val_loss"])
    env.reset(seed=0)
    _, reward, *_, info = env.step(env.action_space.sample())
    assert reward == pytest.approx(info["objectives"]["val_f1"], rel=1e-6)
    assert info["penalty"] == 0.0


def test_named_actions_are_what_is_evaluated() -> None:
    env = NamedAction(make_env(grid=True, budget_trials=100))
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(50):
        action = env.action_space.sample()
        assert action in env.action_space
        *_, info = env.step(action)
        assert {**info["configuration"], **info["fidelity"]} == action


def test_named_actions_of_an_interval_are_evaluated_up_to_float32() -> None:
    env = NamedAction(make_env())
    env.reset(seed=0)
    action = {**CONFIGURATION, "learning_rate": 0.0123, "round": 77, "client_sample_rate": 0.55}
    *_, info = env.step(action)
    assert info["configuration"]["learning_rate"] == pytest.approx(0.0123, rel=1e-5)
    assert info["fidelity"]["round"] == 77
    assert info["configuration"]["batch_size"] == 64


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"round": 80}, OffGridError, r"\['round'\].*on the grid.*80.*81"),
        ({"batch_size": 65}, OffGridError, r"\['batch_size'\].*65.*64, 128|32, 64"),
        ({"learning_rate": 0.02}, OffGridError, r"\['learning_rate'\].*0\.02.*0\.01"),
        ({"learning_rate": 2.0}, InvalidArgumentError, r"\['learning_rate'\].*1\.0.*2\.0"),
        ({"momentum": 0.9}, InvalidArgumentError, r"unknown.*momentum"),
    ],
)
def test_nothing_is_rounded(
    changes: dict[str, float], error: type[Exception], message: str
) -> None:
    env = NamedAction(make_env(grid=True))
    env.reset(seed=0)
    with pytest.raises(error, match=message):
        env.step({**CONFIGURATION, "round": 81, "client_sample_rate": 1.0, **changes})


def test_a_missing_name_is_an_error() -> None:
    env = NamedAction(make_env())
    env.reset(seed=0)
    with pytest.raises(InvalidArgumentError, match=r"round.*missing"):
        env.step({**CONFIGURATION, "client_sample_rate": 1.0, "learning_rate": 99.0})


# -------------------------------------------------------------------------------- backends


@pytest.mark.raw
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("names_inside", [False, True])
def test_names_mean_the_same_on_either_side_of_another_backend(names_inside: bool) -> None:
    env = gym.make(TINY_ID, seed=1)
    env = RawBackend(NamedAction(env), seed=1) if names_inside else NamedAction(RawBackend(env))
    _, info = env.reset(seed=0)
    assert info["backend"] == "raw"
    asked = {**CONFIGURATION, "batch_size": 100, "learning_rate": 0.003, "step_size": 1}
    *_, info = env.step({**asked, "round": 2, "client_sample_rate": 0.2})
    assert info["configuration"] == pytest.approx(asked, rel=1e-4)
    assert info["fidelity"] == {"round": 2, "client_sample_rate": pytest.approx(0.2)}


@pytest.mark.raw
@pytest.mark.usefixtures("tiny")
def test_exchanging_the_backend_equals_asking_for_it() -> None:
    wrapped = RawBackend(gym.make(TINY_ID, fidelity=SHORT, seed=1), seed=1)
    asked = gym.make(TINY_ID, backend="raw", fidelity=SHORT, seed=1)
    one, two = (env.reset(seed=0)[1] for env in (wrapped, asked))
    assert one == two
    action = np.full(4, 0.25, np.float32)
    assert wrapped.step(action)[-1] == asked.step(action)[-1]


@pytest.mark.usefixtures("tiny")
def test_a_backend_with_nothing_to_answer_from_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="fedhpo-gym surrogate"):
        SurrogateBackend(gym.make(TINY_ID, algorithm="fedopt", backend="raw"))


def test_a_step_after_the_end_is_refused() -> None:
    env = make_env(budget_trials=2)
    env.reset(seed=0)
    env.action_space.seed(0)
    assert [env.step(env.action_space.sample())[2] for _ in range(2)] == [False, True]
    with pytest.raises(gym.error.ResetNeeded, match="budget is spent"):
        env.step(env.action_space.sample())
    env.reset()
    assert not env.step(env.action_space.sample())[2]


@pytest.mark.parametrize("budget", [{"budget_trials": 2.5}, {"budget_rounds": 0.5}])
def test_rounds_and_trials_are_whole(budget: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match="must be a positive whole number, got"):
        make_env(**budget)


def test_of_two_budgets_the_closer_to_its_end_is_shown() -> None:
    env = BudgetTermination(make_env(budget_trials=2), budget_trials=10)
    env.reset(seed=0)
    env.action_space.seed(0)
    shown = [env.step(env.action_space.sample())[0]["remaining_budget"][0] for _ in range(2)]
    assert shown == [0.5, 0.0]


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
