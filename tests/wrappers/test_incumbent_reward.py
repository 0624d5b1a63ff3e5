"""The reward of the incumbent: what a return means, and what is refused."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.objectives.base import LARGEST
from fedhpo_gym.testing import WrapperConformance, make_env
from fedhpo_gym.wrappers import IncumbentReward, SurrogateBackend

OLD, NEW = "FedHPO-LR-CreditG-v0", "FedHPO-LR-CreditG-v1"
CONSTRAINED = {"constraints": {"fairness_std": {"limit": 0.05, "weight": 2.0}}}
ERRORS = st.floats(0.0, 1e6)
TRIALS = st.tuples(ERRORS, st.one_of(st.just(0.0), st.floats(1e-6, 1e3)))
"""Error and total violation."""


class TestIncumbentReward(WrapperConformance):
    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return IncumbentReward(env, discount=0.9, per_cost=True)


def play(number: int, seed: int = 0, name: str = OLD, **arguments: Any) -> list[Any]:
    """Return the steps of random trials; equal seeds do the same."""
    env = gym.make(name, **arguments)
    env.reset(seed=0)
    env.action_space.seed(seed)
    steps: list[Any] = []
    while len(steps) < number and not (steps and steps[-1][2]):
        steps.append(env.step(env.action_space.sample()))
    return steps


# -------------------------------------------------------------------------------- the return


@settings(max_examples=60, deadline=None)
@given(
    first=st.lists(TRIALS, min_size=1, max_size=30),
    second=st.lists(TRIALS, min_size=1, max_size=30),
    kind=st.sampled_from(["improvement"]),
)
def test_returns_order_episodes_of_any_errors_and_lengths(
    first: list[tuple[float, float]], second: list[tuple[float, float]], kind: str
) -> None:
    rule = IncumbentReward(make_env(), kind=kind).value

    def total(trials: list[tuple[float, float]]) -> float:
        best, found = np.zeros(1), 0.0
        for number in range(1, len(trials) + 1):
            violation, error = key(trials[:number])
            after = rule.potential(np.array([error]), np.array([violation]))
            [reward] = rule.rewards(best, after, np.ones(1), np.ones(1), optimum=1.0)
            assert number == 1 or reward >= 0.0
            found, best = found + reward, after
        return found

    def key(trials: list[tuple[float, float]]) -> tuple[float, float]:
        return min((violation, error) for error, violation in trials)

    mine, other = key(first), key(second)
    # Of trials that are not feasible, the violation alone counts; else phi rounds to the same.
    one, two = (pair[1] if pair[0] == 0 else pair[0] for pair in (mine, other))
    if abs(one - two) > 1e-9 * (1.0 + one + two) ** 2 or (mine[0] > 0) != (other[0] > 0):
        assert (total(first) > total(second)) == (mine < other)
    assert total([*first, *second]) == pytest.approx(
        max(total(first), total(second)), rel=1e-9, abs=1e-12
    )
    assert total(first * 2) == pytest.approx(total(first), rel=1e-9, abs=1e-12)
    assert -1.0 - 1e-12 <= total(first) <= 1.0 + 1e-12


def test_the_potential_falls_strictly_from_the_best_value_to_a_diverged_trial() -> None:
    rule = IncumbentReward(make_env()).value
    chance = make_env().get_wrapper_attr("task").chance_loss
    errors = np.array([0.0, 1e-6, 0.01, chance, 2.0, 9.0, 10.0, 11.0, 1e6, LARGEST, np.inf])
    found = rule.potential(errors, np.zeros(len(errors)))
    assert (np.diff(found) < 0).all()
    assert found[[0, 3, -1]].tolist() == [1.0, 0.5, 0.0]
    assert (np.diff(rule.potential(np.full(3, 0.4), np.array([0.0, 0.1, 5.0]))) < 0).all()


@pytest.mark.parametrize("name", ["val_f1", "val_error", "fairness_std", "fairness_jain"])
def test_every_objective_has_a_potential(name: str) -> None:
    env = make_env(objectives=[name])
    rule, [objective] = IncumbentReward(env).value, env.get_wrapper_attr("objectives")
    ends = objective.bounds if objective.minimize else objective.bounds[::-1]
    found = rule.potential(np.linspace(*ends, 5), np.zeros(5))
    assert found[0] == 1.0
    assert (np.diff(found) < 0).all()
    assert found[2] == pytest.approx(0.5)


# --------------------------------------------------------------------------------- the kinds


@pytest.mark.parametrize("arguments", [{}, {"name": NEW, "reward": "score"}])
def test_the_reward_score_is_the_score_that_info_says(arguments: dict[str, Any]) -> None:
    played = play(30, **arguments)
    assert [step[1] for step in played] == [step[-1]["score"] for step in played]


@pytest.mark.parametrize("arguments", [{}, CONSTRAINED])
def test_every_kind_is_made_of_the_potentials(arguments: dict[str, Any]) -> None:
    def rewards(**more: Any) -> Any:
        return np.array([step[1] for step in play(25, **arguments, **more)])

    best = rewards(reward="incumbent")
    before = np.concatenate([[0.0], best[:-1]])
    np.testing.assert_allclose(rewards(reward="improvement"), best - before, rtol=1e-12)
    discounted = rewards(reward="improvement", reward_discount=0.9)
    np.testing.assert_allclose(discounted, 0.9 * best - before, rtol=1e-12)
    weights = 0.9 ** np.arange(25)
    assert (weights * discounted).sum() == pytest.approx(0.9**25 * best[-1])
    times_s = [step[-1]["cost"]["time_s"] for step in play(25, **arguments)]
    per_cost = rewards(reward="improvement", reward_per_cost=True, budget_s=7200.0)
    np.testing.assert_allclose(per_cost, (best - before) / np.array(times_s) * 7200.0, rtol=1e-12)
    regret = rewards(reward="regret")
    np.testing.assert_allclose(np.diff(regret), np.diff(best), atol=1e-12)
    assert (regret <= 0).all()


def test_the_anytime_return_is_the_area_under_the_curve_of_the_incumbent() -> None:
    budget_s = 9000.0
    best = play(99, reward="incumbent", budget_s=budget_s)
    rewards = [step[1] for step in play(99, reward="anytime", budget_s=budget_s)]
    ends = np.array([0.0, *(step[-1]["elapsed_s"] for step in best)])
    found = np.array([0.0, *(step[1] for step in best)])
    assert len(rewards) == len(best) > 3
    assert ends[-1] > budget_s, "the last trial ends after the budget"
    times = np.linspace(0.0, budget_s, 200_001)[:-1]  # an integral by the rule of rectangles
    curve = found[np.searchsorted(ends, times, side="right") - 1]
    assert sum(rewards) == pytest.approx(curve.mean(), abs=1e-4)
    assert rewards[-1] == 0.0
    assert min(rewards) >= 0.0


def test_a_trial_that_costs_nothing_has_a_finite_reward() -> None:
    env = gym.make(NEW, reward_per_cost=True, freeze_thaw=True)
    env.reset(seed=0)
    action = np.zeros(env.action_space.shape or (), dtype=np.float32)
    first, second = env.step(action), env.step(action)
    assert (second[-1]["cost"]["time_s"], second[1]) == (0.0, 0.0)
    assert first[1] > 0.0


def test_regret_is_none_at_the_optimum_of_what_may_be_asked() -> None:
    fixed = {"fidelity": {"round": 81, "client_sample_rate": 0.4}, **CONSTRAINED}
    env = gym.make(OLD, reward="regret", budget_trials=700, **fixed)
    space = env.get_wrapper_attr("search_space")
    env.reset(seed=0)
    regrets = [
        env.step(space.encode(dict(zip(space.names, cell, strict=True))))[1]
        for cell in np.array(np.meshgrid(*(d.grid for d in space.dimensions), indexing="ij"))
        .reshape(len(space), -1)
        .T.tolist()
    ]
    assert regrets[-1] == 0.0
    assert regrets[0] < 0.0
    assert (np.diff(regrets) >= 0).all()


def test_regret_follows_a_backend_that_is_exchanged() -> None:
    env = SurrogateBackend(gym.make(NEW, reward="regret", backend="tabular"))
    with pytest.raises(InvalidArgumentError, match=r"'regret'.*'surrogate'.*reward='improvement'"):
        env.reset(seed=0)


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        (f"MO-{NEW}", {"reward": "score"}, "`reward` must not be given.*'score'.*without MO-"),
        (f"MO-{NEW}", {"reward_per_cost": True}, "`reward` must not be given"),
        (NEW, {"reward": "score", "reward_discount": 0.5}, "change reward='improvement' only"),
        (NEW, {"reward": "regret", "reward_per_cost": True}, "change reward='improvement' only"),
        (NEW, {"reward": "anytime", "reward_discount": 0.9}, "change reward='improvement' only"),
        (OLD, {"reward_discount": 0.9}, "change reward='improvement' only"),
        (NEW, {"reward_discount": 0.0}, r"`reward_discount` must be in \(0, 1\], got 0.0"),
        (NEW, {"reward_discount": float("nan")}, "`reward_discount`"),
        (NEW, {"reward": "regret", "backend": "surrogate"}, "'regret' needs a known optimum"),
    ],
)
def test_what_no_reward_can_be_is_refused(name: str, arguments: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        gym.make(name, **arguments)


def test_an_unknown_reward_is_refused_with_a_known_one() -> None:
    with pytest.raises(UnknownNameError, match=r"reward 'scored'.*'score'"):
        gym.make(NEW, reward="scored")
    with pytest.raises(UnknownNameError, match="reward 'score'"):
        IncumbentReward(make_env(), kind="score")


def test_it_needs_a_trial_environment_with_one_reward() -> None:
    with pytest.raises(InvalidArgumentError, match=r"`env` must have.*'penalty'"):
        IncumbentReward(make_env(vector_reward=True))
    with pytest.raises(InvalidArgumentError, match="`budget_s` must be above 0 and finite"):
        IncumbentReward(make_env(), budget_s=0.0)
