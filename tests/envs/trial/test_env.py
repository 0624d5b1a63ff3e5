"""The trial environment: its laws, its clock, its budget, and what it refuses."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.backends import StoredBackend, make_backend
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError, OffGridError
from fedhpo_gym.envs import TrialEnv
from fedhpo_gym.envs.trial.process import PACKED
from fedhpo_gym.envs.trial.setup import DEFAULT_OBJECTIVES, TrialSetup
from fedhpo_gym.evaluation.records import Evaluation, Evaluations, Fidelity
from fedhpo_gym.objectives import CAP, MAX_LOSS, Objective
from fedhpo_gym.objectives.performance import WORST_FAIRNESS
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.systems import CROSS_SILO, Work
from fedhpo_gym.tasks import Task, get_task
from fedhpo_gym.testing import Analytic, make_env, plain
from fedhpo_gym.wrappers import BudgetTermination, NamedAction
from stored_files import TINY_ID, tiny  # noqa: F401 - a fixture

HUGE = Objective.of(lambda _: 0.0, name="huge", unit="1", minimize=True, bounds=(0.0, 1e35))
CONFIGURATION = {"learning_rate": 0.01, "weight_decay": 0.001, "batch_size": 64, "step_size": 2}


def named(**arguments: Any) -> gym.Env[Any, Any]:
    env = NamedAction(make_env(grid=True, **arguments))
    env.reset(seed=0)
    return env


def ask(env: gym.Env[Any, Any], rounds: int, **changes: Any) -> Any:
    return env.step({**CONFIGURATION, "round": rounds, "client_sample_rate": 1.0, **changes})


# ----------------------------------------------------------------------------- what it says


def test_the_reward_and_the_observation_by_hand() -> None:
    env = named(vector_reward=True)
    observation, reward, terminated, truncated, info = ask(env, 9)
    task = get_task("LR-CreditG-v0")
    answer = Analytic(task).evaluate(CONFIGURATION, Fidelity(9, 1.0))
    val_loss = answer.mean("val", "loss")
    spread = np.std(answer.clients("val", "accuracy"), axis=1).mean()
    assert info["objectives"] == {
        "val_loss": val_loss,
        "fairness_std": pytest.approx(spread),
        "epsilon": 1e4,
    }
    np.testing.assert_allclose(reward, [-val_loss, -spread, -1e4], rtol=1e-6)
    assert reward.dtype == np.float32
    for key in ("loss", "accuracy", "f1"):
        expected = [answer.mean(split, key) for split in ("train", "val")]
        np.testing.assert_allclose(observation[key], expected, rtol=1e-6)
    assert (terminated, truncated) == (False, False)
    assert info["test"]["loss"] == answer.mean("test", "loss")
    cost = CROSS_SILO.cost(Work.of_course(task.num_parameters, task.num_clients, Fidelity(9, 1.0)))
    assert info["cost"]["time_s"] == info["elapsed_s"] == cost.time_s
    left = 1 - cost.time_s / task.budget_s
    np.testing.assert_allclose(observation["remaining_budget"], [left], rtol=1e-6)


def test_the_incumbent_is_the_argmin_and_the_first_of_equals() -> None:
    env = make_env()
    env.reset(seed=0)
    env.action_space.seed(3)
    actions = [env.action_space.sample() for _ in range(12)]
    actions = actions + actions  # every value twice: the first of equals stays
    losses: list[float] = []
    for number, action in enumerate(actions, start=1):
        observation, *_, info = env.step(action)
        losses.append(info["objectives"]["val_loss"])
        best = int(np.argmin(losses))
        assert info["trial"] == number
        assert info["incumbent"]["trial"] == best + 1
        assert info["incumbent"]["val_loss"] == losses[best]
        np.testing.assert_array_equal(observation["incumbent"], actions[best])
        np.testing.assert_allclose(observation["incumbent_value"], [losses[best]], rtol=1e-6)
    assert len(set(losses)) == 12


def test_the_incumbent_of_a_maximised_objective_is_the_largest() -> None:
    env = make_env(objectives=["val_f1"])
    env.reset(seed=0)
    env.action_space.seed(3)
    values = []
    for _ in range(10):
        *_, info = env.step(env.action_space.sample())
        values.append(info["objectives"]["val_f1"])
        assert info["incumbent"]["val_f1"] == max(values)


def test_the_first_observation_promises_nothing() -> None:
    observation, info = make_env().reset(seed=0)
    assert (observation["loss"] == 10).all()
    assert (observation["accuracy"] == 0).all()
    assert observation["incumbent_value"] == 10
    assert observation["trials"] == 0
    assert observation["remaining_budget"] == 1
    assert info == {
        "task": "LR-CreditG",
        "backend": "analytic",
        "fingerprint": "analytic-1",
        "seeds": [1, 2, 3],
        "objective_names": list(DEFAULT_OBJECTIVES),
    }


class OtherTestData(Analytic):
    """The same train and validation data, other test data."""

    def _answer(self, configuration: Any, fidelity: Fidelity) -> Evaluation:
        answer = super()._answer(configuration, fidelity)
        answer.best[:, :, 2] = 0.5
        return answer


def test_test_data_never_enter_an_observation() -> None:
    task = get_task("LR-CreditG-v0")
    envs = [TrialEnv(TrialSetup.of(task, backend(task))) for backend in (Analytic, OtherTestData)]
    for env in envs:
        env.reset(seed=0)
    envs[0].action_space.seed(0)
    for _ in range(5):
        action = envs[0].action_space.sample()
        one, two = (env.step(action) for env in envs)
        assert plain(one[:2]) == plain(two[:2])
        assert one[4]["test"] != two[4]["test"]


def test_what_it_returns_belongs_to_who_asked() -> None:
    def trace(spoil: bool) -> list[Any]:
        env = make_env()
        env.reset(seed=0)
        env.action_space.seed(0)
        seen = []
        for _ in range(5):
            action = env.action_space.sample()
            observation, reward, *_, info = env.step(action)
            seen.append(plain([observation, reward, info]))
            if spoil:
                action[:] = 9
                for part in ("configuration", "objectives", "fidelity"):
                    for name in info[part]:
                        info[part][name] = -1
                for name in info["incumbent"]:
                    info["incumbent"][name] = -1
                for array in observation.values():
                    array[:] = 0
        return seen

    assert trace(spoil=True) == trace(spoil=False)


# ---------------------------------------------------------------------------------- actions


def test_a_uniform_action_is_a_uniform_configuration() -> None:
    env = make_env(grid=True, budget_trials=10_000)
    env.reset(seed=0)
    env.action_space.seed(0)
    infos = [env.step(env.action_space.sample())[-1] for _ in range(420)]
    sizes = np.array([info["configuration"]["batch_size"] for info in infos])
    values, counts = np.unique(sizes, return_counts=True)
    assert values.tolist() == [4, 8, 16, 32, 64, 128, 256]
    assert (counts > 35).all(), counts  # 60 expected, standard deviation 7


# ---------------------------------------------------------------------- the clock, the budget


def test_freeze_thaw_tells_configurations_rates_and_episodes_apart() -> None:
    env = named(freeze_thaw=True, budget_trials=99)
    ask(env, 81)
    assert ask(env, 81)[-1]["cost"]["rounds"] == 0
    assert ask(env, 81, batch_size=32)[-1]["cost"]["rounds"] == 81
    assert ask(env, 81, client_sample_rate=0.4)[-1]["cost"]["rounds"] == 81
    env.reset(seed=0)
    assert ask(env, 81)[-1]["cost"]["rounds"] == 81


def test_the_system_decides_the_time() -> None:
    task = get_task("LR-CreditG-v0").variant(system=CROSS_SILO)
    slow = task.variant(system=type(CROSS_SILO)(server_compute_s=10.0))
    times = []
    for one in (task, slow):
        env = TrialEnv(TrialSetup.of(one, Analytic(one)))
        env.reset(seed=0)
        times.append(env.step(np.zeros(6, np.float32))[-1])
    rounds = times[0]["fidelity"]["round"]
    assert times[1]["elapsed_s"] - times[0]["elapsed_s"] == pytest.approx(10.0 * rounds)


# ---------------------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"objectives": ["val_los"]}, ["Unknown", "objective", "val_los", "'val_loss'"]),
        ({"objectives": []}, ["`objectives`", "at least one"]),
        ({"objectives": "val_loss"}, ["`objectives`", "list", "'val_loss'"]),
        ({"render_mode": "ascii"}, ["`render_mode`", "human", "'ascii'"]),
        ({"fidelity": {"rounds": 3}}, ["Unknown", "dimension", "rounds", "'round'"]),
        ({"fidelity": {"round": 501}}, ["fidelity['round']", "500", "501"]),
        ({"fidelity": {"round": 2.5}}, ["fidelity['round']", "whole", "2.5"]),
        (
            {"fidelity": {"client_sample_rate": 0.0}},
            ["fidelity['client_sample_rate']", "0.2", "0.0"],
        ),
        ({"fidelity": {"round": 10}, "grid": True}, ["fidelity['round']", "grid", "10", "9, 13"]),
        ({"budget_s": 0.0}, ["`budget_s`", "positive", "0.0"]),
        ({"budget_s": float("inf")}, ["`budget_s`", "finite", "inf"]),
        ({"budget_s": "1h"}, ["`budget_s`", "positive", "'1h'"]),
        ({"budget_trials": -3}, ["`budget_trials`", "positive", "-3"]),
        ({"budget_rounds": True}, ["`budget_rounds`", "positive", "True"]),
        ({"constraints": {"val_f1": 0.3}}, ["Unknown", "constraint", "val_f1", "val_loss"]),
        ({"constraints": {"epsilon": "x"}}, ["limit", "epsilon", "'x'"]),
        ({"constraints": {"epsilon": None}}, ["limit", "epsilon", "None"]),
        ({"constraints": {"epsilon": {"limit": 1.0, "weight": -2}}}, ["weight", "epsilon", "-2"]),
        ({"constraints": {"epsilon": {"limit": 1.0, "weight": 0}}}, ["weight", "epsilon", "0"]),
        ({"constraints": {"epsilon": {"limits": 1.0}}}, ["'epsilon'", "limit", "limits"]),
        ({"constraints": {"val_loss": {"limit": 0.1, "weight": 1e308}}}, ["weight", "1e+06"]),
        (
            {
                "objectives": ["val_loss", HUGE],
                "constraints": {"huge": {"limit": 1, "weight": 1e6}},
            },
            ["finite as float32"],
        ),
        ({"constraints": {"val_loss": -1}}, ["one that can be met and violated: values are in"]),
        ({"constraints": {"fairness_std": 5}}, ["met and violated", "[0, 0.5]", "got 5"]),
        ({"constraints": [1]}, ["`constraints`"]),
    ],
)
def test_errors_name_the_argument_the_rule_and_the_value(
    arguments: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(FedHPOError) as caught:
        make_env(**arguments)
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"seed": 7}, ["seed", "(1, 2, 3)", "7"]),
        ({"seed": -1}, ["`seed`", "non-negative", "-1"]),
        ({"seed": "one"}, ["`seed`", "integer", "'one'"]),
        ({"seed": 1.5}, ["`seed`", "integer", "1.5"]),
        ({"seed": True}, ["`seed`", "integer", "True"]),
        ({"fidelity": {"round": 5}}, ["fidelity['round']", "grid", "5", "4, 6"]),
        ({"seed": -1, "backend": "raw"}, ["`seed`", "non-negative", "-1"]),
        ({"device": "abacus", "backend": "raw"}, ["`device`", "abacus"]),
    ],
)
@pytest.mark.usefixtures("tiny")
def test_a_backend_refuses_what_it_cannot_honour(
    arguments: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        gym.make(TINY_ID, **arguments)
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.usefixtures("tiny")
def test_one_seed_or_the_mean_of_all() -> None:
    losses = {}
    for seed in (1, 2, 3, None):
        env = gym.make(TINY_ID, seed=seed)
        _, info = env.reset(seed=0)
        assert info["seeds"] == ([1, 2, 3] if seed is None else [seed])
        action = np.full(env.action_space.shape, 0.9, np.float32)
        losses[seed] = env.step(action)[-1]["objectives"]["val_loss"]
    assert losses[1] != losses[2]
    assert losses[None] == pytest.approx((losses[1] + losses[2] + losses[3]) / 3, rel=1e-6)


def test_a_step_needs_a_reset_before_it() -> None:
    task = get_task("LR-CreditG-v1")
    env = TrialEnv(TrialSetup.of(task, make_backend("tabular", task), objectives=["val_loss"]))
    with pytest.raises(gym.error.ResetNeeded, match="call `reset` before `step`"):
        env.step(np.zeros(env.action_space.shape, np.float32))
    env.reset()
    env.step(np.zeros(env.action_space.shape, np.float32))
    env.use_backend("surrogate")
    with pytest.raises(gym.error.ResetNeeded, match="call `reset` before `step`"):
        env.step(np.zeros(env.action_space.shape, np.float32))
    env.reset()
    assert env.step(np.zeros(env.action_space.shape, np.float32))[-1]["trial"] == 1


# ------------------------------------------------------------------------- what is remembered


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tabular", "analytic"])
def test_the_trials_of_a_long_episode_are_all_there(backend: str) -> None:
    long = 2 * PACKED + 3
    task = get_task("LR-CreditG-v0")
    found = make_backend("tabular", task) if backend == "tabular" else Analytic(task)
    env = TrialEnv(TrialSetup.of(task, found, grid=True))
    env.reset(seed=0)
    env.action_space.seed(0)
    said: list[Any] = []
    for number in range(long):
        action = env.action_space.sample()
        info = env.step(action)[-1]
        said.append((action.tolist(), info["configuration"], info["objectives"], info["elapsed_s"]))
        if number in (PACKED - 2, PACKED, PACKED + 1):
            assert len(env.trials) == number + 1
    trials = env.trials
    assert [one.number for one in trials] == list(range(1, long + 1))
    told = [(t.action.tolist(), dict(t.configuration), dict(t.values), t.elapsed_s) for t in trials]
    assert told == said
    first = [one.values["val_loss"] for one in trials]
    assert [one.incumbent for one in trials] == [
        first.index(min(first[:end])) + 1 for end in range(1, long + 1)
    ]


def test_a_trial_without_end_takes_few_bytes() -> None:
    env = TrialEnv(
        TrialSetup.of(get_task("LR-CreditG-v0"), make_backend("tabular", get_task("LR-CreditG-v0")))
    )
    env.reset(seed=0)
    history, size = env._steps, 20 * PACKED
    action, values = np.zeros(6, np.float32), np.zeros(3)
    tracemalloc.start()
    for number in range(size):
        history.add((np.intp(number), action.copy(), values.copy(), float(number), number))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 100 * size
    assert [one[0] for one in history.since(size - 2)] == [size - 2, size - 1]


TASK = get_task("LR-CreditG")


class Fragile(Analytic):
    """The best of all models, which diverges after 100 rounds under the second of three seeds.

    Other configurations are as bad as 10^5 nats.
    """

    def _answer(self, configuration: Mapping[str, Value], fidelity: Fidelity) -> Evaluation:
        found = super()._answer(configuration, fidelity)
        if configuration["learning_rate"] < 0.1:
            found.best[..., 0] = 1e5
            return found
        found.best[:] = [0.01, 1.0, 1.0]
        failed = (np.array(self.seeds) == self.seeds[1]) & (fidelity.round > 100)
        return replace(found, diverged=failed)


def make(objectives: tuple[str, ...] = ("val_loss", "fairness_std", "epsilon")) -> Any:
    return BudgetTermination(
        TrialEnv(TrialSetup.of(TASK, Fragile(TASK), objectives=objectives)), budget_trials=9
    )


def action(learning_rate: float, rounds: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the action with the highest or lowest learning rate and rounds, -1 or 1."""
    names = make().unwrapped.search_space.names
    chosen = {"learning_rate": learning_rate, "round": rounds}
    return np.array([chosen.get(name, 1.0) for name in names], np.float32)


def test_it_is_seen_and_rewarded_as_worst() -> None:
    env = make(("val_loss", "val_f1", "fairness_std", "fairness_jain", "epsilon"))
    env.reset(seed=0)
    seen, reward, _, _, info = env.step(action(1.0, 1.0))
    assert info["diverged"]
    assert reward.tolist() == [-MAX_LOSS, 0.0, -0.5, 0.0, -CAP]
    assert seen["loss"].tolist() == [MAX_LOSS, MAX_LOSS]
    assert seen["accuracy"].tolist() == seen["f1"].tolist() == [0.0, 0.0]
    assert seen["fairness"].tolist() == list(WORST_FAIRNESS)
    assert env.observation_space.contains(seen)
    assert np.isfinite(list(info["objectives"].values())).all()


def test_fewer_rounds_of_the_same_configuration_count() -> None:
    env = make()
    env.reset(seed=0)
    _, reward, _, _, info = env.step(action(1.0, -1.0))
    assert not info["diverged"]
    assert reward[0] == pytest.approx(-0.01)


def test_the_worst_finite_model_is_a_better_incumbent() -> None:
    env = make()
    env.reset(seed=0)
    trials = [action(1.0, 1.0), action(-1.0, 1.0), action(1.0, 1.0), action(1.0, -1.0)]
    incumbents = [env.step(one)[-1]["incumbent"]["trial"] for one in trials]
    assert incumbents == [1, 2, 2, 4]


class StoresLittle(Analytic, StoredBackend):
    """Stores three batch sizes only."""

    def __init__(self, task: Task, seed: int | None = None) -> None:
        super().__init__(task, seed)
        sizes = replace(task.space["batch_size"], values=(4, 64, 256))
        few = (sizes if d.name == sizes.name else d for d in task.space.dimensions)
        self.space = SearchSpace(tuple(few))

    def look_up(self, columns: Mapping[str, NDArray[Any]], reads: Any = None) -> Evaluations:
        raise AssertionError("not needed")


def test_a_backend_that_lacks_cells_of_the_grid_is_refused() -> None:
    task = get_task("LR-CreditG")
    with pytest.raises(OffGridError, match="nearest legal values are 4, 64"):
        TrialEnv(TrialSetup.of(task, StoresLittle(task), grid=True))
