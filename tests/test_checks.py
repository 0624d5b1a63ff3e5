"""What counts as a number, and that every argument that must be one keeps the rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhpo_gym.core.checks import as_integer, as_number
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.envs.round.settings import RoundSettings
from fedhpo_gym.envs.vector import choose_instance
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.records.record import StepRecord
from fedhpo_gym.space import Dimension
from fedhpo_gym.systems import SystemModel, Work
from fedhpo_gym.tasks import get_task, make_instances
from fedhpo_gym.testing.analytic import Analytic, make_env
from fedhpo_gym.wrappers import BudgetTermination, ScalarizePenalty

HUGE = 10**400
"""An integer that no float can hold."""
NO_NUMBERS = (True, False, np.True_, None, "1", 1j, np.complex64(1), Fraction(1, 2), [1], HUGE)
NO_NUMBERS_EITHER = (np.array([1.0]), np.array(True), np.str_("1"), object())

FLOATS = (np.float16, np.float32, np.float64)
INTEGERS = (np.int8, np.uint8, np.int32, np.int64, np.uint64)


@pytest.mark.parametrize(
    "value", [*NO_NUMBERS, *NO_NUMBERS_EITHER, -HUGE], ids=lambda value: type(value).__name__
)
def test_what_is_no_number(value: object) -> None:
    assert as_number(value) is None


@pytest.mark.parametrize(
    "value", [True, np.False_, 3.0, np.float32(3), "3", None, math.nan], ids=repr
)
def test_what_is_no_integer(value: object) -> None:
    assert as_integer(value) is None


@given(st.floats())
def test_floats_are_numbers_whatever_they_say(value: float) -> None:
    found = as_number(value)
    assert type(found) is float
    assert found == value or (math.isnan(found) and math.isnan(value))
    assert as_integer(value) is None


@given(st.integers())
def test_integers_stay_as_they_are(value: int) -> None:
    assert as_integer(value) == value
    assert as_integer(HUGE * value) == HUGE * value
    assert type(as_number(value)) is int
    assert as_number(value) == value


@given(st.sampled_from(INTEGERS), st.integers(0, 127), st.booleans())
def test_numpy_integers_become_built_in(
    kind: Callable[[int], Any], value: int, boxed: bool
) -> None:
    given_value = np.array(kind(value)) if boxed else kind(value)
    assert type(as_integer(given_value)) is int
    assert as_integer(given_value) == as_number(given_value) == value


@given(st.sampled_from(FLOATS), st.floats(width=16), st.booleans())
def test_numpy_floats_become_built_in_and_the_same_again(
    kind: Callable[[float], Any], value: float, boxed: bool
) -> None:
    single = kind(value)
    found = as_number(np.array(single) if boxed else single)
    assert type(found) is float
    assert np.array_equal(kind(found), single, equal_nan=True)


def test_a_narrow_float_is_its_shortest_decimal() -> None:
    assert as_number(np.float32(0.1)) == 0.1
    assert Fidelity(1, np.float32(0.2)).client_sample_rate == 0.2  # type: ignore[arg-type]


def _scalarized(constraint: Any) -> object:
    return ScalarizePenalty(make_env().unwrapped, constraints={"val_loss": constraint})


def _budget(value: Any) -> object:
    return BudgetTermination(make_env(), budget_s=value)


ROUNDS = {"rounds_per_step": 1, "horizon": 5, "budget_s": 1.0}
CREDIT = get_task("LR-CreditG-v0")

NUMBERS: dict[str, Callable[[Any], object]] = {
    "client_sample_rate": lambda v: Fidelity(1, v),
    "alpha": lambda v: CREDIT.variant(alpha=v),
    "setting": lambda v: CREDIT.variant(algorithm="nbafl").fix({"epsilon": v}),
    "instance alpha": lambda v: make_instances(CREDIT, "train", v),
    "pair's alpha": lambda v: make_instances(CREDIT, [(v, 1)]),
    "system": lambda v: SystemModel(client_upload_bytes_per_s=v),
    "system, zero allowed": lambda v: SystemModel(server_compute_s=v),
    "budget": _budget,
    "limit": _scalarized,
    "weight": lambda v: _scalarized({"limit": 0.5, "weight": v}),
    "value": lambda v: Dimension("x", 0.0, 2.0, "float").validate(v),
    "time price": lambda v: RoundSettings(**{**ROUNDS, "time_price": v}),
}
WHOLE: dict[str, Callable[[Any], object]] = {
    "round": lambda v: Fidelity(v, 1.0),
    "stream": lambda v: stream(v, "x"),
    "seed": lambda v: Analytic(CREDIT, seed=v),
    "pair's seed": lambda v: make_instances(CREDIT, [(0.5, v)]),
    "bins": lambda v: Dimension("x", 0.0, 1.0, "float", bins=v),
    "parameters": lambda v: Work.of_course(v, 5, Fidelity(1, 1.0)),
    "horizon": lambda v: RoundSettings(**{**ROUNDS, "horizon": v}),
    "instance": lambda v: choose_instance(np.random.default_rng(0), 9, {"instance": v}),
}
BAD_NUMBERS = (True, np.True_, HUGE, math.nan, math.inf, -math.inf, 1j, "1", None, [0.5])


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=lambda v: repr(v)[:9])
@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_keeps_the_rule(name: str, value: object) -> None:
    if value is None and name in ("instance alpha", "budget"):
        return  # none is given
    with pytest.raises(InvalidArgumentError, match=r"got|must"):
        NUMBERS[name](value)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float64(0.5), 1, np.int64(1)], ids=repr)
@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_may_be_one_of_numpy(name: str, value: object) -> None:
    NUMBERS[name](value)


@pytest.mark.parametrize("value", [True, np.True_, 2.5, 3.0, math.nan, "3", 1j], ids=repr)
@pytest.mark.parametrize("name", WHOLE)
def test_every_integer_keeps_the_rule(name: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"integer|whole"):
        WHOLE[name](value)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)], ids=repr)
@pytest.mark.parametrize("name", WHOLE)
def test_every_integer_may_be_one_of_numpy(name: str, value: object) -> None:
    WHOLE[name](value)


def test_numbers_of_numpy_are_kept_as_built_in_ones() -> None:
    assert type(CREDIT.variant(alpha=np.float32(0.1)).alpha) is float
    assert CREDIT.variant(alpha=np.float32(0.1)).table_name == "LR-CreditG-fedavg-alpha0.1"
    assert CREDIT.variant(algorithm="nbafl").fix({"epsilon": np.float32(0.1)}).settings == (
        ("epsilon", 0.1),
    )
    assert type(SystemModel(server_compute_s=np.float32(0.1)).server_compute_s) is float  # type: ignore[arg-type]
    assert Analytic(CREDIT, seed=np.int64(2)).seeds == (2,)


@pytest.mark.parametrize(
    "value", [HUGE, math.nan, True, np.float64(1.0)], ids=lambda v: repr(v)[:9]
)
def test_records_hold_finite_built_in_numbers_only(value: object) -> None:
    step: dict[str, Any] = {
        "action": [0.0],
        "reward": 0.0,
        "terminated": True,
        "truncated": False,
        "configuration": {},
        "fidelity": {},
        "objectives": {},
        "cost": {"time_s": 1.0},
        "elapsed_s": 1.0,
        "incumbent": {"configuration": {}, "val_loss": 0.1, "trial": 1},
        "test": {"loss": 0.1, "accuracy": 0.5},
    }
    StepRecord(**step)
    with pytest.raises(InvalidArgumentError, match="`elapsed_s` must be a finite number"):
        StepRecord(**{**step, "elapsed_s": value})
