"""How tables round: codes and values, for every code and every kind of value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhpo_gym.core.errors import UnknownNameError
from fedhpo_gym.stored import codec

ONE = np.array(1)
TOP = 0xFF00 - 1
LARGEST = codec.decode("loss", np.array([TOP], dtype=np.uint16), ONE)[0]
TINY = np.finfo(np.float32).tiny


def test_every_loss_code_comes_back() -> None:
    codes = np.arange(TOP + 1, dtype=np.uint16)
    values = codec.decode("loss", codes, ONE)
    assert values.dtype == np.float32
    assert np.isfinite(values).all()
    assert (np.diff(values) > 0).all(), "larger losses have larger codes"
    np.testing.assert_array_equal(codec.encode("loss", values, ONE), codes)


@given(st.integers(1, 5000))
def test_every_accuracy_code_comes_back_exactly(num_samples: int) -> None:
    samples = np.array(num_samples)
    codes = np.arange(num_samples + 1).astype(codec.dtype("accuracy", samples))
    values = codec.decode("accuracy", codes, samples)
    np.testing.assert_array_equal(codec.encode("accuracy", values, samples), codes)
    np.testing.assert_array_equal(values, (codes / num_samples).astype(np.float32))
    assert values[-1] == 1.0


def test_a_client_without_samples_has_no_hits() -> None:
    values = codec.decode("accuracy", np.zeros(2, np.uint8), np.array([0, 5]))
    assert values.tolist() == [0.0, 0.0]


def test_every_f1_code_comes_back() -> None:
    codes = np.arange(codec.F1_STEPS + 1, dtype=np.uint8)
    values = codec.decode("f1", codes, ONE)
    np.testing.assert_array_equal(codec.encode("f1", values, ONE), codes)
    assert (values[0], values[-1]) == (0.0, 1.0)


@given(st.floats(float(TINY), float(LARGEST), width=32))
def test_a_loss_keeps_nine_bits(loss: float) -> None:
    code = codec.encode("loss", np.array([loss]), ONE)
    stored = float(codec.decode("loss", code, ONE)[0])
    assert abs(stored - loss) <= 2.0**-9 * loss


@given(st.lists(st.floats(0.0, float(np.finfo(np.float32).max), width=32), min_size=2))
def test_rounding_keeps_the_order_of_losses(losses: list[float]) -> None:
    ordered = np.sort(np.array(losses, dtype=np.float32))
    assert (np.diff(codec.encode("loss", ordered, ONE).astype(int)) >= 0).all()


@pytest.mark.parametrize("huge", [np.finfo(np.float32).max, np.inf])
def test_a_loss_too_large_is_clipped_to_the_largest_finite_one(huge: float) -> None:
    code = codec.encode("loss", np.array([huge], dtype=np.float32), ONE)
    assert codec.decode("loss", code, ONE)[0] == LARGEST
    assert np.isfinite(LARGEST)


@given(st.floats(0.0, 1.0))
def test_an_f1_is_off_by_half_a_step_at_most(f1: float) -> None:
    stored = float(codec.decode("f1", codec.encode("f1", np.array([f1]), ONE), ONE)[0])
    assert abs(stored - f1) <= 0.5 / codec.F1_STEPS + 1e-7


@pytest.mark.parametrize(
    ("metric", "most", "expected"),
    [
        ("loss", 10, "uint16"),
        ("accuracy", 255, "uint8"),
        ("accuracy", 256, "uint16"),
        ("f1", 256, "uint8"),
    ],
)
def test_codes_take_the_smallest_type_that_holds_them(
    metric: str, most: int, expected: str
) -> None:
    assert codec.dtype(metric, np.array([3, most])) == np.dtype(expected)


def test_losses_worked_by_hand() -> None:
    # 1.0 is 0x3F800000 and its upper half without the sign 0x7F00; 1 + 2^-8 is the next code.
    values = np.array([0.0, 1.0, 1.0 + 2**-8, 1.0 + 2**-10])
    assert codec.encode("loss", values, ONE).tolist() == [0, 0x7F00, 0x7F01, 0x7F00]


def test_accuracies_use_the_samples_of_each_client() -> None:
    samples = np.array([4, 10])
    codes = codec.encode("accuracy", np.array([[0.75, 0.3], [1.0, 0.0]]), samples)
    assert codes.tolist() == [[3, 3], [4, 0]]


def test_a_metric_without_a_code_is_refused() -> None:
    samples = np.array([4])
    for use in (
        lambda: codec.dtype("stars", samples),
        lambda: codec.encode("stars", np.ones(1), samples),
        lambda: codec.decode("stars", np.ones(1, np.uint8), samples),
    ):
        with pytest.raises(UnknownNameError, match="stored metric 'stars'"):
            use()
