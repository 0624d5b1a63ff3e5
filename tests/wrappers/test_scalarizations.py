"""Scalarisations: formulas by hand, laws of the rewards, and one number in one or many."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedhpo_gym
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.objectives import get_objective
from fedhpo_gym.testing import WrapperConformance
from fedhpo_gym.wrappers import (
    Achievement,
    Chebyshev,
    EpsilonConstraint,
    HypervolumeImprovement,
    VectorScalarization,
    WeightedSum,
)
from fedhpo_gym.wrappers.scalarization import Episodes, Scalarization

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


# ------------------------------------------------------------------------------------ by hand


def rewards(kind: type[Scalarization], scores: list[list[float]], **arguments: Any) -> list[float]:
    episodes = Episodes(kind.rule(TWO, **arguments), 1)
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


# ---------------------------------------------------------------------------------------- laws

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
    whole = truth.hypervolume(truth.reference()) / np.prod(truth.reference() - truth.ideal())
    assert found / whole == pytest.approx(1.0 - truth.hypervolume_regret(values), rel=1e-5)


# ----------------------------------------------------------------------------- one and many


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


# ------------------------------------------------------------------------------------ refusals


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
