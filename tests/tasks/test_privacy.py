"""The privacy that evaluations of a task spend, by hand and through every kind of environment."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.algorithms import ALGORITHMS
from fedhpo_gym.backends import make_backend
from fedhpo_gym.envs import TrialEnv
from fedhpo_gym.envs.trial.env import TrialVectorEnv
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.objectives import NO_PRIVACY, PRIVACY_NAMES, PrivacyLedger, poisson_curve
from fedhpo_gym.objectives.privacy import ORDERS
from fedhpo_gym.stored.catalogue import ENV_VAR
from fedhpo_gym.tasks import Task, get_task
from fedhpo_gym.tasks.privacy import DELTA, is_private, privacy_spent, renyi_spent
from fedhpo_gym.testing.analytic import Analytic
from fedhpo_gym.wrappers import BudgetTermination, ScalarizePenalty
from fedhpo_gym.wrappers.budget import Budget
from stored_files import tiny_task


def private(epsilon: float = 20.0, **settings: float) -> Task:
    task = get_task("LR-BloodTransfusion").variant(algorithm="nbafl")
    return task.fix({"epsilon": epsilon, **settings})


def spent(task: Task, rounds: int = 100, rate: float = 1.0) -> PrivacyLedger:
    return spent_on(task, {}, rounds, rate)


def spent_on(task: Task, given: dict[str, Any], rounds: int, rate: float) -> PrivacyLedger:
    asked = {**given, "round": rounds, "client_sample_rate": rate}
    found = privacy_spent(task, {name: np.array([value]) for name, value in asked.items()})
    if isinstance(found, PrivacyLedger):
        return found
    [[epsilon, delta, *renyi]] = found.vector().tolist()
    return PrivacyLedger(epsilon, delta, tuple(renyi))


def test_the_ledger_by_hand() -> None:
    task = private(10.0, constant=3.0)
    assert (task.max_round, task.num_parameters) == (500, 10)
    multiplier = 500 * 3 / 10 / (2 * math.sqrt(10))
    ledger = spent(task, 100)
    # A Gaussian mechanism of multiplier z has the divergence a / (2 z^2) at order a.
    expected = [100 * order / (2 * multiplier**2) for order in ORDERS]
    assert ledger.renyi == pytest.approx(expected)
    assert ledger.delta == DELTA
    # Zero-concentrated privacy rho is at most (rho + 2 sqrt(rho log(1 / delta)), delta)-private.
    rho = 100 / (2 * multiplier**2)
    assert 0.8 * rho < ledger.epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / DELTA))


def test_what_noise_cannot_depend_on_costs_nothing() -> None:
    assert spent(private(w_clip=0.5, mu=1.0)) == spent(private())


def test_privacy_is_spent_monotonously() -> None:
    by_rounds = [spent(private(), rounds).vector() for rounds in (0, 1, 10, 100, 500)]
    by_rate = [spent(private(), rate=rate).vector() for rate in (0.2, 0.4, 0.6, 0.8, 1.0)]
    by_epsilon = [spent(private(epsilon)).vector() for epsilon in (1, 10, 20, 100)]
    for ledgers in (by_rounds, by_rate, by_epsilon):
        for less, more in itertools.pairwise(ledgers):
            assert (less <= more).all()
            assert less[0] < more[0] or ledgers is by_rate
    # From a rate of about 1/2 on, sampling proves nothing.
    assert by_rate[0][0] < by_rate[1][0] < by_rate[-1][0]
    assert by_rounds[0][0] == 0.0


def test_no_noise_is_no_privacy() -> None:
    assert spent(private(constant=0.0)) == NO_PRIVACY
    assert spent(private(1e12)) == NO_PRIVACY


def test_other_algorithms_promise_nothing() -> None:
    for algorithm in ("fedavg", "fedopt", "local"):
        task = get_task("LR-Car").variant(algorithm=algorithm)
        assert spent(task) is NO_PRIVACY
        assert privacy_spent(task, {}) is NO_PRIVACY
    assert {name for name in ALGORITHMS if is_private(name)} == {"nbafl", "dpfedavg"}


def test_dpfedavg_spends_its_noise_by_poisson_sampling() -> None:
    task = get_task("LR-Car").variant(algorithm="dpfedavg").fix({"noise_multiplier": 3.0})
    curve = poisson_curve(3.0, 50, 0.4)
    found = spent(task, 50, 0.4)
    assert found.renyi == tuple(curve[order - 2] for order in ORDERS)
    np.testing.assert_array_equal(renyi_spent(task, {}, 1, 0.4), poisson_curve(3.0, 1, 0.4))
    assert spent(task.fix({"noise_multiplier": 0.0})) == NO_PRIVACY
    assert spent(task.fix({"clip_rate": 0.2})) == spent(task)


@pytest.mark.parametrize("epsilon", [1.0, 8.3])
@pytest.mark.parametrize("rate", [0.4, 1.0])
def test_dpfedavg_keeps_the_epsilon_that_is_asked(epsilon: float, rate: float) -> None:
    task = get_task("LR-Car").variant(algorithm="dpfedavg").fix({"epsilon": epsilon})
    found = spent(task, task.max_round, rate).epsilon
    # Training reads epsilon and delta in single precision.
    assert 0.999 * epsilon < found <= epsilon * (1 + 1e-6)
    assert spent(task, task.max_round // 2, rate).epsilon < found
    columns = {"round": np.array([9, task.max_round]), "client_sample_rate": np.full(2, rate)}
    assert privacy_spent(task, columns).vector()[1, 0] == found


def test_many_ledgers_are_those_of_each() -> None:
    task = private()
    columns = {
        "round": np.array([1, 500, 1, 3]),
        "client_sample_rate": np.array([0.2, 1.0, 0.2, 0.4]),
        "epsilon": np.array([20.0, 5.0, 5.0, 20.0]),
    }
    found = privacy_spent(task, columns).vector()
    rows = zip(*(columns[name].tolist() for name in columns), strict=True)
    for row, (rounds, rate, epsilon) in zip(found, rows, strict=True):
        expected = spent_on(task, {"epsilon": epsilon}, rounds, rate)
        np.testing.assert_array_equal(row, expected.vector())


def test_a_larger_model_is_protected_less() -> None:
    task = get_task("MLP-Car").variant(algorithm="nbafl").fix({"epsilon": 0.1})
    shapes = {"model_depth": np.array([1, 3, 1]), "model_width": np.array([16, 64, 1024])}
    rows = [dict(zip(shapes, values, strict=True)) for values in zip(*shapes.values(), strict=True)]
    ledgers = [spent_on(task, row, 9, 0.4).vector() for row in rows]
    assert all(less[0] < more[0] for less, more in itertools.pairwise(ledgers))
    columns = {"round": np.full(3, 9), "client_sample_rate": np.full(3, 0.4), **shapes}
    np.testing.assert_array_equal(privacy_spent(task, columns).vector(), ledgers)


OBJECTIVES = ("val_loss", "epsilon", "renyi_8")


def env_of(task: Task, backend: Any) -> BudgetTermination:
    return BudgetTermination(
        TrialEnv(TrialSetup.of(task, backend, objectives=OBJECTIVES)), budget_trials=9
    )


def many_of(task: Task, backend: Any) -> TrialVectorEnv:
    setup = TrialSetup.of(task, backend, objectives=OBJECTIVES)
    return TrialVectorEnv(3, setup, Budget(budget_trials=9))


def check_step(env: gym.Env[Any, Any], task: Task, action: Any) -> None:
    seen, _, _, _, info = env.step(action)
    expected = spent(task, *info["fidelity"].values())
    np.testing.assert_array_equal(seen["privacy"], expected.vector().astype(np.float32))
    assert info["objectives"]["epsilon"] == expected.epsilon < NO_PRIVACY.epsilon
    assert info["objectives"]["renyi_8"] == expected.vector()[PRIVACY_NAMES.index("renyi_8")]


def test_a_constraint_on_epsilon_is_kept_or_paid_for() -> None:
    task = private()
    limits = [{"epsilon": spent(task, 500).epsilon + 1}, {"epsilon": 1.0}]
    penalties = []
    for limit in limits:
        env = ScalarizePenalty(env_of(task, Analytic(task)), constraints=limit)
        env.reset(seed=0)
        *_, info = env.step(np.ones(env.action_space.shape or (), np.float32))
        penalties.append(info["penalty"])
    assert penalties[0] == 0.0 < penalties[1]


def follow(single: gym.Env[Any, Any], many: TrialVectorEnv) -> None:
    """Step one environment and several through the same actions."""
    many.action_space.seed(0)
    many.reset(seed=0)
    single.reset(seed=0)
    for _ in range(3):
        actions = many.action_space.sample()
        seen, _, _, _, info = many.step(actions)
        for index, action in enumerate(actions):
            alone, _, _, _, said = single.step(action)
            np.testing.assert_array_equal(seen["privacy"][index], alone["privacy"])
            for name in OBJECTIVES:
                assert info["objectives"][name][index] == said["objectives"][name]
    assert len(np.unique(seen["privacy"][:, 0])) > 1


@pytest.mark.raw
def test_tables_and_training_show_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from fedhpo_gym.building.build import build_table, compute_unit
    from fedhpo_gym.building.design import GridDesign

    task = tiny_task(rounds=3, seeds=(1,)).variant(algorithm="nbafl").fix({"epsilon": 1.0})
    design = GridDesign(task)
    parts = tmp_path / "parts" / design.parts_name
    parts.mkdir(parents=True)
    for unit in design.units():
        compute_unit(design, unit, parts)
    build_table(task, tmp_path, workers=1)
    monkeypatch.setenv(ENV_VAR, str(tmp_path))
    for backend in ("tabular", "raw"):
        env = env_of(task, make_backend(backend, task))
        env.reset(seed=0)
        for high in (-1.0, 1.0):
            check_step(env, task, np.full(env.action_space.shape or (), high, np.float32))
    follow(
        env_of(task, make_backend("tabular", task)), many_of(task, make_backend("tabular", task))
    )
