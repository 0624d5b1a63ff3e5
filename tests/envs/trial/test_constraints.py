"""Constraints constrain the answer: every incumbent is the best trial that keeps them."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.multi_objective import read_constraints, violations
from fedhpo_gym.records.files import read_record
from fedhpo_gym.records.incumbents import Trials, incumbents
from fedhpo_gym.records.runs import JudgedRun
from fedhpo_gym.studies.plan import RunPlan
from fedhpo_gym.studies.run import do_run
from fedhpo_gym.testing import make_env
from fedhpo_gym.wrappers.budget import MAX_TRIALS, BudgetTermination

ID = "FedHPO-LR-CreditG-v1"
FAIR = {"id": "FedHPO-GNN-Cora-v1", "backend": "surrogate"}
"""A surrogate that answers the spread of clients."""
LIMITS: Any = {"fairness_std": {"limit": 0.08, "weight": 50}}
LOOSE: Any = {"fairness_std": {"limit": 0.12, "weight": 50}}
TIGHT: Any = {"fairness_std": 0.02, "val_loss": 0.55}
"""Few trials keep one of them, and hardly any both."""


def first_best(trials: list[dict[str, float]], limits: Any) -> int:
    """Return the number of the incumbent, found by sorting; of equals the first."""

    def key(number: int) -> tuple[float, float, int]:
        total, found = 0.0, trials[number]
        for name, limit in limits.items():
            limit = limit["limit"] if isinstance(limit, dict) else limit
            total += max(0.0, (found[name] - limit) / {"fairness_std": 0.5, "val_loss": 10.0}[name])
        return total, found["val_loss"] * (total == 0.0), number

    return 1 + min(range(len(trials)), key=key)


@pytest.mark.parametrize("limits", [LIMITS, TIGHT])
@pytest.mark.parametrize("more", [{}, {"noise": {"clients": 0.5}}, FAIR])
@pytest.mark.parametrize("prefix", ["", "MO-"])
def test_the_incumbent_is_the_best_feasible_trial(limits: Any, more: Any, prefix: str) -> None:
    arguments = {"id": ID, "constraints": limits, "budget_trials": 40, **more}
    arguments |= {"id": prefix + arguments["id"], "objectives": ["val_loss", "fairness_std"]}
    env = gym.make(disable_env_checker=True, **arguments)
    env.reset(seed=3)
    env.action_space.seed(3)
    told: list[dict[str, float]] = []
    for _ in range(40):
        *_, info = env.step(env.action_space.sample())
        told.append(info["objectives"])
        number = first_best(told, limits)
        assert info["incumbent"]["trial"] == number
        assert info["incumbent"]["val_loss"] == told[number - 1]["val_loss"]
        is_feasible = info["incumbent"]["violation"] == 0
        # Weights and bounds aside, feasible is what keeps every limit.
        assert is_feasible == any(first_best([one], {}) and _keeps(one, limits) for one in told)


def _keeps(trial: dict[str, float], limits: Any) -> bool:
    pairs = ((name, one["limit"] if isinstance(one, dict) else one) for name, one in limits.items())
    return all(trial[name] <= limit for name, limit in pairs)


def test_a_total_violation_has_no_unit_and_follows_the_weights() -> None:
    objectives = gym.make(ID).get_wrapper_attr("objectives")
    values = np.array([[0.5, 0.1, 20.0], [0.5, 0.05, 10.0], [0.5, np.nan, 0.0]])

    def total(weight: float) -> Any:
        fair = {"limit": 0.05, "weight": weight}
        limits = read_constraints(objectives, {"fairness_std": fair, "epsilon": 10.0})
        return violations(objectives, limits, values)

    assert total(1.0)[:2].tolist() == pytest.approx([0.05 / 0.5 + 10.0 / 1e4, 0.0], rel=1e-12)
    assert total(9.0)[:2].tolist() == pytest.approx([0.9 + 10.0 / 1e4, 0.0], rel=1e-12)
    assert np.isinf(total(1.0)[2])


@pytest.mark.parametrize("weights", [(1.0, 1.0), (5.0, 0.25)])
@pytest.mark.parametrize("vector", [False, True])
def test_the_reward_of_constrained_trials_by_hand(
    weights: tuple[float, float], vector: bool
) -> None:
    """Two limits and two weights: phi of the incumbent, from the values of trials alone."""
    limits = {"fairness_std": 0.12, "val_loss": 0.65}
    pairs = zip(limits.items(), weights, strict=True)
    constraints = {name: {"limit": x, "weight": w} for (name, x), w in pairs}
    ranges = {"fairness_std": 0.5, "val_loss": 10.0}
    make: Any = partial(gym.make_vec, num_envs=1) if vector else gym.make
    env = make(ID, constraints=constraints, budget_trials=60)
    env.reset(seed=1)
    rng = np.random.default_rng(1)
    worth, best, signs = 0.0, (math.inf, math.inf), set()
    for _ in range(60):
        action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        _, reward, *_, info = env.step(action)
        values = {name: np.ravel(info["objectives"][name])[0] for name in limits}
        excess = {name: max(0.0, values[name] - limit) for name, limit in limits.items()}
        told = {name: np.ravel(info["excess"][name])[0] for name in limits}
        assert told == pytest.approx(excess, rel=1e-12)
        v = sum(w * excess[name] / ranges[name] for name, w in zip(limits, weights, strict=True))
        assert np.ravel(info["violation"])[0] == pytest.approx(v, rel=1e-12)
        best = min(best, (v, values["val_loss"]))
        c = math.log(2)  # two classes
        phi = c / (c + best[1]) if best[0] == 0 else -best[0] / (1 + best[0])
        assert np.ravel(reward)[0] == pytest.approx(phi - worth, rel=1e-9, abs=1e-12)
        worth = phi
        signs.add(phi > 0)
    assert signs == {False, True}, "the trials must keep and break the limits"


def test_a_larger_weight_makes_a_trial_that_breaks_the_limit_worth_less() -> None:
    rewards = []
    for weight in (0.1, 1.0, 5.0, 100.0):
        limits = {"fairness_std": {"limit": 0.05, "weight": weight}}
        env = gym.make(ID, constraints=limits)
        env.reset(seed=0)
        env.action_space.seed(0)
        rewards.append(env.step(env.action_space.sample())[1])
    assert (np.diff(rewards) < -0.01).all()


def test_a_violation_is_worth_less_than_nothing_however_small_or_large() -> None:
    value = gym.make(ID).get_wrapper_attr("value")
    worth = value.potential(np.full(4, 0.5), np.array([1e-17, 2.0, 3.0, np.inf]))
    assert worth.tolist() == pytest.approx([-1e-17, -2 / 3, -3 / 4, -1.0], rel=1e-14, abs=0)


@pytest.mark.parametrize("vector", [False, True])
def test_of_equal_violations_the_first_stays_the_incumbent(vector: bool) -> None:
    """Nothing is protected, so every epsilon is alike: a lower loss is no progress."""
    make: Any = partial(gym.make_vec, num_envs=1) if vector else gym.make
    env = make(ID, constraints={"epsilon": 5.0}, budget_trials=6)
    env.reset(seed=0)
    rewards, losses = [], []
    for action in np.random.default_rng(0).uniform(-1, 1, (6, *env.action_space.shape)):
        _, reward, *_, info = env.step(action.astype(np.float32))
        rewards.append(float(np.ravel(reward)[0]))
        losses.append(float(np.ravel(info["objectives"]["val_loss"])[0]))
        assert np.ravel(info["incumbent"]["trial"])[0] == 1
    assert rewards[0] < -0.4
    assert rewards[1:] == [0.0] * 5
    assert min(losses) < losses[0], "the law says nothing where no later trial is better"
    ranked = Trials(np.arange(6.0), np.array(losses), violation=np.ones(6)).ranked
    assert len({*ranked}) == 1


@pytest.mark.parametrize("weight", [5e-324, 0.9e-6, 1.1e6, 1e30])
def test_a_weight_without_effect_is_refused(weight: float) -> None:
    limits = {"fairness_std": {"limit": 0.05, "weight": weight}}
    with pytest.raises(InvalidArgumentError, match=r"weight of constraint .*\[1e-06, 1e\+06\]"):
        gym.make(ID, constraints=limits)


def test_a_trial_at_the_limit_pays_no_penalty() -> None:
    env = gym.make(ID, reward="score")
    env.reset(seed=0)
    for action in np.linspace(-1, 1, 8 * 6, dtype=np.float32).reshape(8, 6):
        limit = env.step(action)[-1]["objectives"]["fairness_std"]
        limits = {"fairness_std": {"limit": limit, "weight": 1e6}}
        bound = gym.make(ID, reward="score", constraints=limits)
        bound.reset(seed=0)
        assert bound.step(action)[-1]["penalty"] == 0.0


@pytest.mark.parametrize("agent", ["optuna-tpe", "random"])
def test_records_and_judges_know_the_feasible_incumbent(agent: str, tmp_path: Path) -> None:
    for seed in range(2):
        kwargs = {"constraints": LOOSE, "budget_trials": 25, "fidelity": {"round": 500}}
        plan = RunPlan(ID, kwargs, agent, seed)
        do_run(plan, tmp_path, lambda _: None, lambda _: None)
    paths = [*tmp_path.rglob("*.jsonl")]
    assert len(paths) == 2
    for path in paths:
        record = read_record(path)
        trials = JudgedRun.of(record).trials
        assert trials.violation is not None
        assert (trials.violation == 0).any(), "the law below says nothing"
        best = record.final.best_step
        assert record.steps[best - 1].extra["violation"] == 0.0
        assert record.steps[best - 1].objectives["fairness_std"] <= 0.12
        assert int(incumbents(trials, "recommended")[-1]) == best - 1
        for rule in ("highest_fidelity", "full_fidelity"):
            assert trials.violation[incumbents(trials, rule)[-1]] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optuna-tpe", "nsga2", "motpe"])
def test_agents_of_optuna_hear_violations_as_such(name: str) -> None:
    prefix = "" if name == "optuna-tpe" else "MO-"
    env = gym.make(
        prefix + ID,
        objectives=["val_loss", "fairness_std"],
        constraints=LOOSE,
        fidelity={"round": 500},
        budget_trials=60,
        disable_env_checker=True,
    )
    agent: Any = make_agent(name, env, 0)
    steps = list(run_episode(env, agent, 0))
    told = [step.info["violation"] for step in steps]
    assert [agent.violations[number] for number in range(60)] == told
    assert [one.constraints["violation"] for one in agent._study.get_trials()] == told
    if name == "optuna-tpe":
        losses = [step.info["objectives"]["val_loss"] for step in steps]
        best = min((v, loss, n) for n, (v, loss) in enumerate(zip(told, losses, strict=True)))
        assert best[0] == 0.0, "the law below says nothing"
        assert agent._study.best_trial.number == best[2]
        assert [-one[0] for one in agent.results.values()] == pytest.approx(losses, rel=1e-6)
    again: Any = make_agent(name, env, 0)
    again.load_state_dict(agent.state_dict())
    assert again.violations == agent.violations


BOUND_ID = "FedHPO-LR-CreditG-v0"
FREE: dict[str, dict[str, Any]] = {
    "freeze-thaw": {"freeze_thaw": True},
    "no cost": {
        "system": {
            "client_upload_bytes_per_s": 1e300,
            "client_download_bytes_per_s": 1e300,
            "server_upload_bytes_per_s": 1e300,
            "client_compute_mean_s": 0,
        }
    },
    "endless time": {"budget_s": 1e300},
}


def length(env: gym.Env[Any, Any], limit: int) -> int:
    """Return the steps of an episode that repeats one trial."""
    env.reset(seed=0)
    action = np.zeros(env.action_space.shape or (), np.float32)
    for number in range(1, limit + 1):
        observation, _, terminated, truncated, _ = env.step(action)
        assert not truncated
        if terminated:
            assert observation["remaining_budget"] == 0.0
            return number
        assert observation["remaining_budget"] > 0.0
    return 0


@pytest.mark.parametrize("kind", FREE)
def test_an_episode_whose_budget_is_never_spent_ends(kind: str) -> None:
    env = gym.make(BOUND_ID, disable_env_checker=True, max_trials=40, **FREE[kind])
    assert length(env, 50) == 40


def test_by_default_it_ends_after_more_trials_than_any_run_makes() -> None:
    env = make_env(freeze_thaw=True)
    env = env if isinstance(env, BudgetTermination) else env.env  # type: ignore[attr-defined]
    assert isinstance(env, BudgetTermination)
    assert env.budget.left(0.0, 0, MAX_TRIALS - 1) == 1.0
    assert env.budget.left(0.0, 0, MAX_TRIALS) == 0.0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"budget_trials": 7}, 7), ({"budget_trials": 7, "max_trials": 3}, 3), ({"max_trials": 9}, 9)],
)
def test_budget_trials_takes_its_place(arguments: dict[str, Any], expected: int) -> None:
    env = gym.make(BOUND_ID, disable_env_checker=True, freeze_thaw=True, **arguments)
    assert length(env, 20) == expected


def test_budget_trials_may_be_above_the_default() -> None:
    env = BudgetTermination(make_env(vector_reward=True).unwrapped, budget_trials=2 * MAX_TRIALS)
    assert env.budget.left(0.0, 0, MAX_TRIALS) == 0.5


def test_a_spec_without_the_bound_is_made_again() -> None:
    env = gym.make(BOUND_ID)
    assert env.spec is not None
    assert all("max_trials" not in (w.kwargs or {}) for w in env.spec.additional_wrappers)
    bounded = gym.make(BOUND_ID, max_trials=4)
    assert bounded.spec is not None
    assert length(gym.make(bounded.spec), 6) == 4
