"""Laws of the ways from values to errors: bounded, monotone, a batch as each alone."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhpo_gym.core.errors import UnknownNameError
from fedhpo_gym.objectives import MAX_LOSS, OBJECTIVES, Objective
from fedhpo_gym.objectives.base import LARGEST, TRANSFORMS
from fedhpo_gym.wrappers import ScalarizePenalty

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
