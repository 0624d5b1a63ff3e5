"""What counts as a number: one rule for every argument that must be one."""

from __future__ import annotations

import operator

import numpy as np


def as_number(value: object) -> int | float | None:
    """Return the built-in number that a value is, None where it is none.

    Numbers are built-in and numpy integers and floats, also as arrays without axes. Truth values,
    complex numbers, strings, and integers too large for a float are none. Infinities and NaN are
    numbers: the range that the caller compares with decides on them (no comparison with NaN holds).
    A numpy float gives its shortest decimal: float32's 0.1 is 0.1.
    """
    if type(value) is float:
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, float):
        return float(value)
    if isinstance(value, np.floating):
        return float(str(value))
    number = as_integer(value)
    if number is None or not _fits_a_float(number):
        return None
    return number


def as_integer(value: object) -> int | None:
    """Return the built-in integer that a value is, of any size; None where it is none.

    Integers are what `operator.index` takes, numpy's included; 3.0 and truth values are none.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _fits_a_float(number: int) -> bool:
    try:
        float(number)
    except OverflowError:
        return False
    return True
