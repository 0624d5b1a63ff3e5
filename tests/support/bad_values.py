"""Values that no caller should give, for calls that must answer with a documented error."""

from __future__ import annotations

import random
from collections import UserDict, deque
from pathlib import Path
from typing import Any

import numpy as np


class Hostile:
    """An object whose every reading fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no name")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no array")

    def __index__(self) -> int:
        raise TypeError("no index")


def deep(levels: int = 20_000) -> list[Any]:
    """Return lists in lists, deeper than any recursion goes."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


def circle() -> list[Any]:
    """Return a list that holds itself."""
    found: list[Any] = []
    found.append(found)
    return found


NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 2**31, 2**62, 2**63, -(2**63) - 1, 10**400, 10**5000, 0.0, -0.0, 0.5, 1.5, -2.5,
    1e-300, 5e-324, 1e300, 1e308, float("inf"), float("-inf"), float("nan"), 1j, 0.5 + 0j,
    np.float16(0.1), np.float32("nan"), np.float64(1e308), np.longdouble("1e400"), np.int8(-3),
    np.uint64(2**64 - 1), np.complex64(1), True, False, np.True_, np.False_,
)  # fmt: skip
TEXTS: tuple[Any, ...] = (
    "", " ", "no", "False", "true", "5", "nan", "os:system", "cpu", "cuda:99", "meta", "raw",
    "train", "val_loss", "clip", "../../x", "\0", "é" * 3, "x" * 10_000, b"raw", np.str_("raw"),
    Path("raw"),
)  # fmt: skip
CONTAINERS: tuple[Any, ...] = (
    [], (), {}, set(), [1], ["val_loss", "val_loss"], ["val_loss", 3], [None], [[0.5, 1]], [[0.5]],
    [["a", "b"]], [[1e-300, 0]], [[0.5, 2**70]], {1: 1}, {"round": 1}, {"round": [1]},
    {"round": 10**400}, {"round": None}, {"mode": "x"}, {"compute": 3}, {"epsilon": "x"},
    {"epsilon": 1e308}, {"val_loss": {"limit": 1, "weight": 1e308}}, {"val_loss": -1e308},
    {"val_loss": {}}, {"val_loss": {"limit": {"limit": 1}}}, {"learning_rate": 1j}, {None: 1},
    {"client_upload_bytes_per_s": 1e-320}, {"max_connections": -5}, UserDict(round=1), deque([1]),
    range(3), np.zeros(0), np.zeros(2), np.zeros((2, 2), complex), np.array(["a"]), np.array(None),
    np.array([10**400], object), deep(), circle(), {"round": deep()}, {"epsilon": circle()},
)  # fmt: skip
OBJECTS: tuple[Any, ...] = (None, object(), Hostile(), int, len, ..., NotImplemented, iter([1]))


def bad_values(seed: int, number: int = 200) -> list[Any]:
    """Return all of the above, and mixtures of them, as many as asked for."""
    found = [*NUMBERS, *TEXTS, *CONTAINERS, *OBJECTS]
    rng = random.Random(seed)  # noqa: S311 - nothing secret
    single = [*NUMBERS, *TEXTS, *OBJECTS]
    names = ["round", "val_loss", "limit", "weight", "mode", "learning_rate", "epsilon", "mu", ""]
    while len(found) < number:
        parts = [rng.choice(single) for _ in range(rng.randrange(1, 4))]
        kind = rng.randrange(3)
        if kind == 0:
            found.append(parts)
        elif kind == 1:
            found.append({rng.choice(names): part for part in parts})
        else:
            found.append({rng.choice(names): {rng.choice(names): part} for part in parts})
    return found
