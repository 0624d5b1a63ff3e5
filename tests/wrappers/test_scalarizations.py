"""Rewards of the incumbent and scalarisations: by hand, their laws, and in one or many."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedhpo_gym
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.objectives import get_objective
from fedhpo_gym.objectives.base import LARGEST
from fedhpo_gym.testing import WrapperConformance, make_env
from fedhpo_gym.wrappers import (
    Achievement,
    Chebyshev,
    EpsilonConstraint,
    HypervolumeImprovement,
    IncumbentReward,
    SurrogateBackend,
    VectorScalarization,
    WeightedSum,
)
from fedhpo_gym.wrappers.scalarization import Scalarization, ScalarizedEpisodes

ID = "MO-FedHPO-LR-BreastCancer-v1"
FULL = {"round": 500, "client_sample_rate": 1.0}
TWO = (get_objective("val_loss"), get_objective("fairness_p10"))
UNIT = {"ideal": [0.0, 1.0], "nadir": [2.0, 0.0]}
CASES: list[tuple[type[Scalarization], dict[str, Any]]] = [
    (WeightedSum, {}),
    (WeightedSum, {"weights": [3, 1, 1], "points": "bounds"}),
    (Chebyshev, {"points": "truth"}),
    (Chebyshev, {"weights": [0, 1, 1], "rho": 0.0}),
    (Achievement, {"aspiration": {"val_loss": 0.1, "fairness_p10": 0.9, "time_s": 600.0}}),
    (EpsilonConstraint, {"limits": {"time_s": 500.0}}),
    (EpsilonConstraint, {"limits": {"val_loss": 0.2}, "objective": "time_s"}),
    (HypervolumeImprovement, {}),
    (HypervolumeImprovement, {"points": "truth"}),
]
NAMES = [f"{kind.__name__}-{'-'.join(map(str, given))}" for kind, given in CASES]


class ScalarizationConformance(WrapperConformance):
    def make(self) -> gym.Env[Any, Any]:
        spec = gym.envs.registration.EnvSpec(
            "FedHPO-Analytic-v0",
            "fedhpo_gym.testing.analytic:make_env",
            kwargs={"vector_reward": True, "objectives": ["val_loss", "fairness_p10"]},
        )
        return gym.make(spec, disable_env_checker=True)


class TestWeightedSum(ScalarizationConformance):
    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return WeightedSum(env, weights=[2.0, 1.0])


class TestChebyshev(ScalarizationConformance):
    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return Chebyshev(env, points="bounds")


class TestAchievement(ScalarizationConformance):
    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return Achievement(env, aspiration={"val_loss": 0.3, "fairness_p10": 0.7}, points=UNIT)


class TestEpsilonConstraint(ScalarizationConformance):
    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return EpsilonConstraint(env, limits={"fairness_p10": 0.6})


class TestHypervolumeImprovement(ScalarizationConformance):
    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return HypervolumeImprovement(env, points=UNIT)


def rewards(kind: type[Scalarization], scores: list[list[float]], **arguments: Any) -> list[float]:
    episodes = ScalarizedEpisodes(kind.rule_of(TWO, **arguments), 1)
    episodes.restart(0, None)
    return [episodes.value(0, one) for one in scores]


def test_formulas_by_hand() -> None:
    # Loss 0.5 of [0, 2] and accuracy 0.5 of [1, 0]: z = (0.25, 0.5).
    at = [[-0.5, 0.5]]
    assert rewards(WeightedSum, at, points=UNIT) == [-0.375]
    assert rewards(WeightedSum, at, weights=[1, 3], points=UNIT) == [-0.4375]
    assert rewards(Chebyshev, at, points=UNIT) == pytest.approx([-(0.25 + 0.05 * 0.375)])
    assert rewards(Chebyshev, at, weights=[3, 1], rho=0, points=UNIT) == [-0.1875]
    # Aspiration: loss 1, accuracy 0.75, so a = (0.5, 0.25) and z - a = (-0.25, 0.25).
    aspiration = {"val_loss": 1.0, "fairness_p10": 0.75}
    found = rewards(Achievement, at, aspiration=aspiration, points=UNIT, rho=2.0)
    assert found == pytest.approx([-(0.25 + 2.0 * 0.0)])
    # Bounds of the loss are 0 and 10, of the accuracy 0 and 1.
    assert rewards(EpsilonConstraint, at, limits={"fairness_p10": 0.4}) == [-0.05]
    assert rewards(EpsilonConstraint, at, limits={"fairness_p10": 0.6}) == pytest.approx([-1.1])
    found = rewards(EpsilonConstraint, at, limits={"val_loss": 0.5}, objective="fairness_p10")
    assert found == [-0.5]
    # Boxes between z and (1, 1): 0.75 * 0.5, then what (0.5, 0.25) adds: 0.5 * 0.25.
    found = rewards(HypervolumeImprovement, [*at, [-1.0, 0.75], [-1.5, 0.25]], points=UNIT)
    assert found == pytest.approx([0.375, 0.125, 0.0])


def test_points_are_learned_from_the_front() -> None:
    scores = [[-1.0, 0.5], [-3.0, 0.1], [-0.5, 0.25], [-0.5, 0.25]]
    found = rewards(WeightedSum, scores, points="learned")
    # The first is alone, so it is its own ideal point. The second is dominated by it: it lacks 2
    # and 0.4, in units of their own. The third is on the front, at (0, 1).
    assert found == pytest.approx([0.0, -1.2, -0.5, -0.5])


SCORES = st.tuples(st.floats(-10, 0), st.floats(0, 1))


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (WeightedSum, {"points": "bounds"}),
        (Chebyshev, {"points": UNIT}),
        (Achievement, {"aspiration": {"val_loss": 0.2, "fairness_p10": 0.9}, "points": "bounds"}),
        (EpsilonConstraint, {"limits": {"fairness_p10": 0.5}}),
    ],
)
@given(one=SCORES, other=SCORES)
def test_who_is_nowhere_worse_is_worth_no_less(
    kind: Any, arguments: Any, one: tuple[float, float], other: tuple[float, float]
) -> None:
    better = [max(pair) for pair in zip(one, other, strict=True)]
    [high], [low] = (rewards(kind, [list(s)], **arguments) for s in (better, one))
    assert high >= low


@given(st.lists(SCORES, min_size=1, max_size=8))
def test_improvements_add_up_and_never_fall(scores: list[tuple[float, float]]) -> None:
    listed = [list(one) for one in scores]
    forward = rewards(HypervolumeImprovement, listed)
    assert min(forward) >= -1e-12
    assert sum(forward) <= 1.0 + 1e-12
    assert sum(forward) == pytest.approx(sum(rewards(HypervolumeImprovement, listed[::-1])))


@given(one=SCORES, other=SCORES)
def test_who_exceeds_a_limit_is_below_who_does_not(
    one: tuple[float, float], other: tuple[float, float]
) -> None:
    limits = {"fairness_p10": 0.5}
    [first], [second] = (rewards(EpsilonConstraint, [list(s)], limits=limits) for s in (one, other))
    if one[1] >= 0.5 > other[1]:
        assert first > second or second == pytest.approx(-1.0)


@pytest.mark.slow
def test_with_the_truth_a_return_is_what_regret_lacks() -> None:
    """Two ways to the same volume: the wrapper adds up improvements, the truth counts the rest."""
    given: Any = {"objectives": ["val_loss", "time_s"], "fidelity": {"client_sample_rate": 0.6}}
    truth = fedhpo_gym.truth(ID, **given)
    env = HypervolumeImprovement(gym.make(ID, disable_env_checker=True, **given), points="truth")
    env.reset(seed=0)
    env.action_space.seed(0)
    steps = [env.step(env.action_space.sample()) for _ in range(10)]
    found = np.cumsum([step[1] for step in steps])
    values = [list(step[-1]["objectives"].values()) for step in steps]
    corner, unit = truth.reference(), np.prod(truth.reference() - truth.ideal())
    assert truth.hypervolume(corner, values=values) / unit == pytest.approx(found[-1], rel=1e-5)
    whole = truth.hypervolume(corner) / unit
    assert found / whole == pytest.approx(1.0 - truth.hypervolume_regret(values), rel=1e-5)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize(("kind", "given"), CASES, ids=NAMES)
def test_many_are_bit_for_bit_each_alone(kind: Any, given: Any, mode: str) -> None:
    options: Any = {"budget_trials": 3, "fidelity": FULL | {"round": 9}}
    del options["fidelity"]["client_sample_rate"]
    many = VectorScalarization(
        gym.make_vec(ID, num_envs=2, autoreset_mode=mode, **options), kind, **given
    )
    ones = [kind(gym.make(ID, disable_env_checker=True, **options), **given) for _ in range(2)]
    many.reset(seed=0)
    for one in ones:
        one.reset(seed=0)
    rng = np.random.default_rng(0)
    over = [False, False]
    for _ in range(9):
        actions = rng.uniform(-1, 1, many.action_space.shape).astype(np.float32)  # type: ignore[arg-type]
        _, found, terminated, _, info = many.step(actions)
        for index, one in enumerate(ones):
            if over[index]:
                one.reset()
                over[index] = False
                assert found[index] == 0.0
                assert not info["_score"][index]
                continue
            _, reward, done, _, alone = one.step(actions[index])
            assert found[index] == reward == alone["score"] == info["score"][index]
            assert type(reward) is float
            assert terminated[index] == done
            if done and mode == "SameStep":
                one.reset()
            over[index] = done and mode == "NextStep"


def test_instances_have_truths_of_their_own() -> None:
    given: Any = {"instances": [{"seed": 1}, {"seed": 2}], "fidelity": FULL}
    many = VectorScalarization(gym.make_vec(ID, num_envs=2, **given), Chebyshev, points="truth")
    many.reset(seed=0, options={"instance": [0, 1]})
    actions = np.zeros(many.action_space.shape, np.float32)  # type: ignore[arg-type]
    _, found, *_ = many.step(actions)
    for index in range(2):
        one = Chebyshev(gym.make(ID, disable_env_checker=True, **given), points="truth")
        one.reset(seed=0, options={"instance": index})
        assert one.step(actions[index])[1] == found[index]
    assert found[0] != found[1]


def test_agents_are_told_one_number() -> None:
    from fedhpo_gym.agents import make_agent, run_episode

    env = Chebyshev(gym.make(ID, disable_env_checker=True, budget_trials=4, fidelity=FULL))
    steps = list(run_episode(env, make_agent("random", env, seed=0), seed=0))
    assert [step.info["score"] for step in steps] == [step.reward for step in steps]


def test_what_is_not_meant_is_refused() -> None:
    env = gym.make(ID, disable_env_checker=True)
    with pytest.raises(InvalidArgumentError, match="use the MO- id"):
        WeightedSum(gym.make(ID.removeprefix("MO-")))
    with pytest.raises(InvalidArgumentError, match="3 finite numbers, one per objective"):
        WeightedSum(env, weights=[1.0])
    with pytest.raises(InvalidArgumentError, match="one must be positive"):
        Chebyshev(env, weights=[0, 0, 0])
    with pytest.raises(UnknownNameError, match="learned"):
        Chebyshev(env, points="learnt")
    with pytest.raises(InvalidArgumentError, match="nowhere better"):
        Chebyshev(env, points={"ideal": [1, 0.5, 9], "nadir": [2, 0.6, 10]})
    with pytest.raises(InvalidArgumentError, match="`weights` must be 3 finite numbers"):
        WeightedSum(env, {"val_loss": 1.0})  # type: ignore[arg-type]
    for kind, name in ((Achievement, "aspiration"), (EpsilonConstraint, "limits")):
        with pytest.raises(InvalidArgumentError, match=f"`{name}` must be a mapping"):
            kind(env)
    with pytest.raises(InvalidArgumentError, match="none of"):
        Achievement(env, aspiration={"val_loss": 0.1})
    with pytest.raises(UnknownNameError, match="fairness_p11"):
        EpsilonConstraint(env, limits={"fairness_p11": 0.1})
    with pytest.raises(InvalidArgumentError, match="other objectives"):
        EpsilonConstraint(env, limits={"val_loss": 0.1})
    with pytest.raises(InvalidArgumentError, match="ends would move"):
        HypervolumeImprovement(env, points="learned")
    with pytest.raises(InvalidArgumentError, match="make_vec"):
        VectorScalarization(env, WeightedSum)  # type: ignore[arg-type]


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


@pytest.mark.slow
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
