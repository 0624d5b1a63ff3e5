"""Objectives against hand computation, and laws of the ways from values to errors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhpo_gym import objectives as o
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.evaluation.records import Evaluation, Evaluations, Fidelity
from fedhpo_gym.objectives import MAX_LOSS, OBJECTIVES, Objective
from fedhpo_gym.objectives.base import LARGEST, TRANSFORMS
from fedhpo_gym.wrappers import ScalarizePenalty


def evaluation() -> Evaluation:
    """Two seeds, two clients; val weights 3 and 1, everything else weighs the same."""
    best = np.zeros((2, 2, 3, 3))
    best[:, :, 0] = [0.1, 0.9, 0.8]  # train
    best[:, :, 2] = [2.0, 0.25, 0.5]  # test
    best[0, 0, 1], best[0, 1, 1] = [1.0, 0.8, 0.7], [3.0, 0.4, 0.3]
    best[1, 0, 1], best[1, 1, 1] = [2.0, 0.6, 0.5], [2.0, 0.6, 0.5]
    samples = np.ones((2, 2, 3), dtype=int)
    samples[:, 0, 1] = 3
    return Evaluation(
        best=best,
        current=None,
        num_samples=samples,
        best_round=np.array([1, 2]),
        diverged=np.array([False, False]),
        seeds=(1, 2),
        fidelity=Fidelity(3, 1.0),
    )


def value_of(objective: o.Objective, one: Evaluation, spent: o.Spent) -> float:
    [value] = objective.compute(Evaluations.stack([one]), spent).tolist()
    return float(value)


def spent() -> o.Spending:
    """What an evaluation spent; every client has one training sample."""
    ledger = o.PrivacyLedger(3.0, 1e-5, (0.1, 0.2, 0.3))
    found = (90.0, 1600.0, 1700.0, 400.0, 250.0)
    return o.Spending(ledger, lambda: dict(zip(o.COST_NAMES, found, strict=True)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("val_loss", (1.5 + 2.0) / 2),
        ("val_error", (0.3 + 0.4) / 2),
        ("val_f1", (0.6 + 0.5) / 2),
        ("train_loss", 0.1),
        ("train_error", 0.1),
        ("train_f1", 0.8),
        ("test_loss", 2.0),
        ("test_error", 0.75),
        ("test_f1", 0.5),
        ("fairness_std", 0.2 / 2),
        ("fairness_p10", (0.44 + 0.6) / 2),
        ("fairness_p50", 0.6),
        ("fairness_p90", (0.76 + 0.6) / 2),
        ("fairness_worst", (0.4 + 0.6) / 2),
        ("fairness_jain", (1.44 / 1.6 + 1) / 2),
        ("epsilon", 3.0),
        ("delta", 1e-5),
        ("renyi_2", 0.1),
        ("renyi_8", 0.2),
        ("renyi_32", 0.3),
        ("time_s", 90.0),
        ("upload_bytes", 1600.0),
        ("download_bytes", 1700.0),
        ("flops", 6 * 400.0),
        ("energy_j", 250.0),
    ],
)
def test_registered_objectives_by_hand(name: str, expected: float) -> None:
    objective = o.get_objective(name)
    value = value_of(objective, evaluation(), spent())
    assert objective.name == name
    assert value == pytest.approx(expected)


def test_every_objective_is_tested_by_hand() -> None:
    mark = test_registered_objectives_by_hand.pytestmark[0]  # type: ignore[attr-defined]
    assert {name for name, _ in mark.args[1]} == set(o.OBJECTIVES)


def test_directions() -> None:
    risen = {name for name, objective in o.OBJECTIVES.items() if not objective.minimize}
    fair = {f"fairness_{name}" for name in o.FAIRNESS_NAMES} - {"fairness_std"}
    assert risen == fair | {f"{split}_f1" for split in ("train", "val", "test")}


def toy(minimize: bool) -> o.Objective:
    return o.Objective("toy", "1", minimize, (0.0, 10.0), lambda *_: 0.0)


@pytest.mark.parametrize(
    ("minimize", "value", "error"),
    [
        (True, 4.0, 4.0),
        (True, 12.0, 10.0),
        (True, -1.0, 0.0),
        (True, math.inf, 10.0),
        (True, math.nan, 10.0),
        (False, 4.0, -4.0),
        (False, 12.0, -10.0),
        (False, -math.inf, 0.0),
        (False, math.nan, 0.0),
    ],
)
def test_error_clips_and_flips(minimize: bool, value: float, error: float) -> None:
    assert toy(minimize).error(value) == error
    assert toy(minimize).score(value) == -error


def test_a_course_that_diverged_is_unfair_to_all() -> None:
    zeros = np.zeros((1, 3, 3, 3))
    failed = replace(
        evaluation(),
        best=zeros,
        num_samples=np.ones((1, 3, 3), int),
        best_round=np.array([1]),
        diverged=np.array([True]),
        seeds=(1,),
    )
    assert o.client_fairness(failed).tolist() == list(o.performance.WORST_FAIRNESS)
    assert o.client_fairness(Evaluations.stack([failed])).tolist() == [
        list(o.performance.WORST_FAIRNESS)
    ]
    # A model that predicts nothing right, although nothing diverged, is as even as any.
    alive = replace(failed, diverged=np.array([False]))
    assert o.client_fairness(alive).tolist() == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("bounds", [(1.0, 0.0), (0.0, 0.0), (0.0, math.inf), (math.nan, 1.0)])
def test_objective_refuses_bad_bounds(bounds: tuple[float, float]) -> None:
    words = "'bad': `bounds` must be two numbers, finite and increasing"
    with pytest.raises(InvalidArgumentError, match=words):
        o.Objective("bad", "1", True, bounds, lambda *_: 0.0)


def test_registry_is_read_only_and_suggests() -> None:
    with pytest.raises(TypeError):
        o.OBJECTIVES["mine"] = toy(True)  # type: ignore[index]
    with pytest.raises(UnknownNameError, match=r"Unknown objective 'val_los'. Did you mean 'val_l"):
        o.get_objective("val_los")


def test_makers_refuse_unknown_names() -> None:
    makers: list[tuple[Any, tuple[str, ...]]] = [
        (o.performance.performance_objective, ("valid", "loss")),
        (o.performance.performance_objective, ("val", "acc")),
        (o.performance.fairness_objective, ("median",)),
        (o.performance.privacy_objective, ("renyi_3",)),
    ]
    for maker, arguments in makers:
        with pytest.raises(UnknownNameError):
            maker(*arguments)


def test_fairness_of_zeros_and_single_clients() -> None:
    assert o.fairness_vector([[0.0, 0.0]]).tolist() == [0, 0, 0, 0, 0, 1]
    assert o.fairness_vector([[0.5]]) == pytest.approx([0, 0.5, 0.5, 0.5, 0.5, 1])


def test_fairness_leaves_out_clients_without_data() -> None:
    with_holes = [[0.2, np.nan, 0.4], [np.nan, 0.6, np.nan]]
    halves = o.fairness_vector([[0.2, 0.4]]) + o.fairness_vector([[0.6]])
    assert o.fairness_vector(with_holes) == pytest.approx(halves / 2)
    base = evaluation()
    samples = base.num_samples.copy()
    samples[:, 1, 1] = 0
    fields = {**base.__dict__, "num_samples": samples}
    assert o.client_fairness(Evaluation(**fields))[4] == pytest.approx((0.8 + 0.6) / 2)


@pytest.mark.parametrize("values", [[0.5], [[]], np.zeros((0, 3)), np.zeros((2, 0, 3))])
def test_fairness_refuses_bad_shapes(values: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`values` must have shape \(\.\.\., S, N\)"):
        o.fairness_vector(values)


def test_fairness_refuses_a_seed_without_clients() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one client per seed"):
        o.fairness_vector([[0.5], [np.nan]])


LOSS = OBJECTIVES["val_loss"]
SQUASHED = LOSS.with_transform("squash")
GAIN = Objective("gain", "1", False, (-10.0, 10.0), lambda *_: 0.0, open_ended=True)
OPEN = [objective for objective in (*OBJECTIVES.values(), GAIN) if objective.open_ended]
ANY = st.floats(allow_nan=True, allow_infinity=True)
transforms = pytest.mark.parametrize("name", list(TRANSFORMS))
EVERY = st.sampled_from([*OBJECTIVES.values(), GAIN])
often = settings(max_examples=250)
"""Every objective is drawn many times."""


@transforms
@often
@given(objective=EVERY, value=ANY)
def test_errors_and_scores_are_bounded(objective: Objective, name: str, value: float) -> None:
    transformed = objective.with_transform(name)
    low, high = transformed.error_bounds
    assert low <= transformed.error(value) <= high
    worst, best = transformed.score_bounds
    assert worst <= transformed.score(value) == -transformed.error(value) <= best
    assert np.float32(worst) <= np.float32(transformed.score(value)) <= np.float32(best)
    assert transformed.error(math.nan) == high


@transforms
@often
@given(
    objective=EVERY,
    one=ANY.filter(lambda v: not math.isnan(v)),
    two=ANY.filter(lambda v: not math.isnan(v)),
)
def test_errors_keep_the_order(objective: Objective, name: str, one: float, two: float) -> None:
    transformed = objective.with_transform(name)
    better, worse = sorted((one, two), reverse=not objective.minimize)
    assert np.float32(transformed.error(better)) <= np.float32(transformed.error(worse))


@given(loss=st.floats(1e-30, LARGEST / 2), more=st.floats(2**-9, 1.0))
def test_no_two_losses_that_a_table_can_hold_are_squashed_to_one(loss: float, more: float) -> None:
    first, second = SQUASHED.errors(np.array([loss, loss * (1 + more)])).astype(np.float32)
    assert first < second


@pytest.mark.parametrize("objective", OPEN, ids=lambda o: o.name)
def test_it_orders_what_a_clip_cannot(objective: Objective) -> None:
    sign = 1.0 if objective.minimize else -1.0
    values = sign * np.array([11.0, 12.0, 1e6, 1.01e6, 1e30, LARGEST])
    clipped, squashed = (
        np.unique(objective.with_transform(name).errors(values).astype(np.float32))
        for name in ("clip", "squash")
    )
    assert len(clipped) == 1
    assert len(squashed) == len(values)
    assert (np.diff(squashed) > 0).all()


def test_by_hand() -> None:
    assert SQUASHED.error(0.0) == 0.0
    assert SQUASHED.error(math.e - 1) == pytest.approx(1 / 2)
    assert SQUASHED.score(math.exp(3) - 1) == pytest.approx(-3 / 4)
    assert SQUASHED.error(math.inf) == SQUASHED.error(math.nan) == 1.0
    assert SQUASHED.error(-math.inf) == SQUASHED.error(-1.0) == 0.0
    assert GAIN.with_transform("squash").error(10.0 - (math.e - 1)) == pytest.approx(1 / 2)
    assert SQUASHED.error(SQUASHED.worst) < SQUASHED.error_bounds[1]
    assert LOSS.error_bounds == (0.0, MAX_LOSS)
    assert OBJECTIVES["val_f1"].score_bounds == (0.0, 1.0)


@transforms
@often
@given(objective=EVERY, values=st.lists(ANY, min_size=1, max_size=40), step=st.integers(1, 3))
def test_a_batch_has_the_bits_of_each(
    objective: Objective, name: str, values: list[float], step: int
) -> None:
    transformed = objective.with_transform(name)
    spread = np.zeros((len(values), step))
    spread[:, 0] = values
    errors = transformed.errors(spread[:, 0])
    assert errors.tolist() == [transformed.error(value) for value in values]


def test_what_a_clip_does_not_touch_stays_as_it_is() -> None:
    for objective in OBJECTIVES.values():
        transformed = objective.with_transform("squash")
        assert (transformed is objective) == (not objective.name.endswith("loss"))
        assert transformed.unclipped_error(20.0) == objective.unclipped_error(20.0)
        assert transformed.with_transform("clip") == objective


def test_an_unknown_transform_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"transform 'squish'.*'squash'"):
        LOSS.with_transform("squish")


class Scored(gym.Env[Any, Any]):
    """Rewards the squashed score of a loss, which is the action."""

    objectives = (SQUASHED,)

    def step(self, action: float) -> Any:
        return {}, np.array([SQUASHED.score(action)], np.float32), False, False, {}


def test_limits_of_constraints_stay_in_their_own_unit() -> None:
    env = ScalarizePenalty(Scored(), constraints={"val_loss": 20.0})
    for loss, violated in ((12.0, False), (19.9, False), (20.1, True), (1e6, True)):
        assert (env.step(loss)[-1]["penalty"] > 0) == violated
