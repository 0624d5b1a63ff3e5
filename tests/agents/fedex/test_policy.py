"""FedEx's policy against the original's own numbers, hand computation, and its laws."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhpo_gym.agents.clients import ArmFeedback, Traces, discounted_mean
from fedhpo_gym.agents.fedex import FedExPolicy, FedExSettings, Schedule
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from golden import golden

SCHEDULES = get_args(Schedule)


def policy_of(case: dict[str, Any]) -> FedExPolicy:
    eta0 = None if case["eta0"] < 0 else case["eta0"]
    settings = FedExSettings(case["sched"], eta0, case["gamma"], case["diff"])
    return FedExPolicy(case["sizes"], settings)


def feedback_of(answers: list[dict[str, Any]]) -> list[ArmFeedback]:
    return [
        ArmFeedback(
            tuple(answer["arms"]),
            answer["val_avg_loss_before"],
            answer["val_avg_loss_after"],
            answer["val_total"],
        )
        for answer in answers
    ]


def on_simplex(policy: FedExPolicy) -> bool:
    return all((t >= 0).all() and t.sum() == pytest.approx(1.0, abs=1e-9) for t in policy.theta)


@pytest.mark.parametrize("sched", SCHEDULES)
def test_equals_the_original_wherever_it_is_finite(sched: str) -> None:
    cases = [case for case in golden("fedex") if case["sched"] == sched]
    assert len(golden("fedex")) == 80
    assert cases
    for case in cases:
        policy = policy_of(case)
        # Once a factor is NaN, the original's entropy leaves that factor out without a word.
        finite = next((r for r, mle in enumerate(case["mle"]) if not math.isfinite(mle)), 7)
        for answers in case["feedback"]:
            policy.update(feedback_of(answers))
            assert on_simplex(policy)
        traces = policy.traces
        np.testing.assert_allclose(traces.before, case["glob"], rtol=1e-12)
        np.testing.assert_allclose(traces.after, case["refine"], rtol=1e-12)
        np.testing.assert_allclose(traces.mle[:finite], case["mle"][:finite], atol=1e-12)
        np.testing.assert_allclose(traces.entropy[:finite], case["entropy"][:finite], atol=1e-12)
        for ours, original in zip(policy.theta, case["theta"], strict=True):
            if np.isfinite(original).all():
                np.testing.assert_allclose(ours, original, atol=1e-12)


def test_where_the_original_is_nan_vanished_arms_win_or_stay_vanished() -> None:
    # Arms 0 and 1 are driven to e^-1500, where the original's 1/theta is infinite.
    policy = FedExPolicy([3], FedExSettings("constant", eta0=3000.0, gamma=1.0))
    policy.update([ArmFeedback((0,), 1.0, 1 / 3), ArmFeedback((1,), 1.0, 1 / 3)])
    np.testing.assert_allclose(policy.theta[0], [0, 0, 1], atol=1e-200)

    def then(*outcomes: ArmFeedback) -> list[float]:
        resumed = FedExPolicy([3], policy.settings)
        resumed.restore(policy.to_dict())
        resumed.update(list(outcomes))
        assert on_simplex(resumed)
        return [float(p) for p in resumed.theta[0]]

    bad, good, better = (ArmFeedback((arm,), 1.0, s) for arm, s in ((0, 2.0), (0, 0.1), (1, 0.0)))
    assert then(bad) == [0, 0, 1]
    assert then(good) == [1, 0, 0]
    assert then(good, better) == [0, 1, 0]
    assert then(bad, better) == [0, 1, 0]


def test_the_original_ends_in_nan_in_23_golden_cases_and_ours_in_certainty() -> None:
    lost = [
        case for case in golden("fedex") if not np.isfinite(np.concatenate(case["theta"])).all()
    ]
    assert len(lost) == 23
    for case in lost:
        policy = policy_of(case)
        for answers in case["feedback"]:
            policy.update(feedback_of(answers))
        for ours, original in zip(policy.theta, case["theta"], strict=True):
            assert np.isfinite(original).all() or ours.max() == pytest.approx(1.0)


def test_one_round_by_hand() -> None:
    policy = FedExPolicy([2], FedExSettings("constant", eta0=0.1))
    policy.update(
        [ArmFeedback((0,), 5.0, 3.0, weight=3.0), ArmFeedback((1,), 5.0, 1.0, weight=1.0)]
    )
    # Gradients 3/4 * 3 / (1/2) = 4.5 and 1/4 * 1 / (1/2) = 0.5; the step is 0.1.
    odds = math.exp(-0.45 + 0.05)
    np.testing.assert_allclose(policy.theta[0], [odds / (1 + odds), 1 / (1 + odds)])
    assert policy.traces.after == [2.5]
    assert policy.mle() == (1,)


@pytest.mark.parametrize("sched", SCHEDULES)
def test_entropy_falls_while_one_arm_keeps_its_advantage(sched: Schedule) -> None:
    policy = FedExPolicy([4], FedExSettings(sched, eta0=0.02, gamma=1.0))
    for _ in range(25):
        policy.update([ArmFeedback((arm,), 2.0, 1.0 - 0.5 * (arm == 2)) for arm in range(4)])
    entropy = np.array(policy.traces.entropy)
    # In the first round the baseline is 0; from then on the advantage is the same every time.
    assert (np.diff(entropy) < 0).all()
    assert np.diff(policy.traces.mle).min() > 0
    assert policy.mle() == (2,)


@pytest.mark.parametrize(
    ("sched", "eta0"),
    [("adaptive", None), ("aggressive", None), ("auto", 0.5), ("constant", 0.2), ("scale", 0.1)],
)
def test_regret_on_a_noisy_bandit_is_half_that_of_uniform_play(
    sched: Schedule, eta0: float | None
) -> None:
    means = np.linspace(0.2, 1.0, 9)
    regret = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        policy = FedExPolicy([9], FedExSettings(sched, eta0))
        total = 0.0
        for _ in range(60):
            arms = policy.sample(rng, 10)[:, 0]
            losses = means[arms] + 0.1 * rng.standard_normal(10)
            policy.update(
                [ArmFeedback((int(a),), 2.0, float(s)) for a, s in zip(arms, losses, strict=True)]
            )
            total += float(np.mean(means[arms] - means.min()))
        regret.append(total / 60)
    assert np.mean(regret) < 0.5 * np.mean(means - means.min())


@pytest.mark.slow
@given(
    sched=st.sampled_from(SCHEDULES),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    gamma=st.sampled_from([0.0, 0.3, 1.0]),
    diff=st.booleans(),
    losses=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12),
    data=st.data(),
)
def test_any_feedback_leaves_a_distribution(
    sched: Schedule, sizes: list[int], gamma: float, diff: bool, losses: list[float], data: Any
) -> None:
    policy = FedExPolicy(sizes, FedExSettings(sched, None, gamma, diff))
    for loss in losses:
        arms = tuple(data.draw(st.integers(0, size - 1)) for size in sizes)
        policy.update([ArmFeedback(arms, 1.0, loss), ArmFeedback((0,) * len(sizes), 2.0, -loss)])
        assert on_simplex(policy)
        assert 0.0 <= policy.entropy() <= math.log(math.prod(sizes)) + 1e-9
        assert 0.0 < policy.certainty() <= 1.0 + 1e-12


def test_sampling_follows_theta_and_its_stream() -> None:
    policy = FedExPolicy([3, 2], FedExSettings("constant", eta0=0.3))
    policy.update([ArmFeedback((0, 1), 1.0, 1.0)])
    drawn = policy.sample(np.random.default_rng(0), 20_000)
    for factor, theta in enumerate(policy.theta):
        counts = np.bincount(drawn[:, factor], minlength=len(theta))
        np.testing.assert_allclose(counts / len(drawn), theta, atol=0.015)
    np.testing.assert_array_equal(policy.sample(np.random.default_rng(0), 20_000), drawn)


def test_below_the_cutoff_exploration_stops_for_good() -> None:
    policy = FedExPolicy([2], FedExSettings("constant", eta0=2.0, gamma=1.0, cutoff=0.5))
    policy.update([ArmFeedback((0,), 2.0, 1.0)])
    assert policy.stopped
    frozen = policy.theta[0]
    policy.update([ArmFeedback((1,), 2.0, 9.0)])
    np.testing.assert_array_equal(policy.theta[0], frozen)
    assert (policy.traces.entropy[-1], policy.traces.mle[-1]) == (0.0, 1.0)
    assert policy.traces.after == [1.0, 9.0]
    assert (policy.sample(np.random.default_rng(1), 500) == policy.mle()).all()


@pytest.mark.parametrize("sched", SCHEDULES)
def test_a_saved_policy_goes_on_as_if_never_interrupted(sched: Schedule) -> None:
    settings = FedExSettings(sched, None, 0.5, diff=True)
    rng = np.random.default_rng(3)
    whole = FedExPolicy([3, 4], settings)
    for turn in range(8):
        if turn == 4:
            resumed = FedExPolicy([3, 4], settings)
            resumed.restore(json.loads(json.dumps(whole.to_dict())))
        answers = [
            ArmFeedback((int(rng.integers(3)), 1), 1.0, float(rng.random())) for _ in range(3)
        ]
        whole.update(answers)
        if turn >= 4:
            resumed.update(answers)
    assert resumed.to_dict() == whole.to_dict()
    with pytest.raises(InvalidArgumentError, match="`log_theta` must have rows of"):
        FedExPolicy([3, 5]).restore(whole.to_dict())


def test_the_discounted_mean_by_hand() -> None:
    assert discounted_mean([1.0, 2.0, 4.0], 0.0) == 4.0
    assert discounted_mean([1.0, 2.0, 6.0], 1.0) == 3.0
    assert discounted_mean([1.0, 2.0, 4.0], 0.5) == pytest.approx((0.25 + 1 + 4) / 1.75)
    traces = Traces(before=[4.0, 3.0], after=[3.0, 1.0])
    assert traces.baseline(1.0, diff=False) == 2.0
    assert traces.baseline(1.0, diff=True) == -1.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedExPolicy([]), "`sizes`"),
        (lambda: FedExPolicy([2, 0]), "`sizes`"),
        (lambda: FedExSettings(gamma=1.5), "`gamma`"),
        (lambda: FedExSettings(eta0=0.0), "`eta0`"),
        (lambda: FedExSettings(cutoff=-1.0), "`cutoff`"),
        (lambda: ArmFeedback((0,), math.nan, 1.0), "`before`"),
        (lambda: ArmFeedback((0,), 1.0, math.inf), "`after`"),
        (lambda: ArmFeedback((0,), 1.0, 1.0, weight=0.0), "`weight`"),
        (lambda: discounted_mean([], 0.5), "`values`"),
        (lambda: FedExPolicy([2]).update([]), "`feedbacks`"),
        (lambda: FedExPolicy([2]).update([ArmFeedback((2,), 1.0, 1.0)]), "`arms`"),
        (lambda: FedExPolicy([2]).update([ArmFeedback((-1,), 1.0, 1.0)]), "`arms`"),
        (lambda: FedExPolicy([2]).update([ArmFeedback((0, 0), 1.0, 1.0)]), "`arms`"),
    ],
)
def test_wrong_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_an_unknown_schedule_is_named_with_its_neighbour() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'adaptive'"):
        FedExSettings("adaptiv")  # type: ignore[arg-type]
