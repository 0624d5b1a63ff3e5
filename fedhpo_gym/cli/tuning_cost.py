"""`fedhpo-gym tuning-cost`: which algorithm is best once its tuning is charged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np

from fedhpo_gym.analysis.tuning_cost import (
    WEIGHTS,
    Runs,
    expected_curve,
    omega_tunability,
    probability_of_best,
    read_library,
    relative_performance,
)
from fedhpo_gym.cli.console import Arg, say, say_table
from fedhpo_gym.core.errors import InvalidArgumentError

WORDS = ("cpe", "cpl")


def tuning_cost(
    runs: Annotated[
        Path, Arg("CSV: algorithm, problem, validation, and test, cost if known", "FILE")
    ],
    *,
    trials: Annotated[int, Arg("trials of the largest search (100)")] = 100,
) -> int:
    """Say what random search of each algorithm finds after k trials, and who is likely best."""
    if trials < 1:
        raise InvalidArgumentError(f"`--trials` must be at least 1, got {trials}")
    library = read_library(runs)
    shown = sorted({k for k in (1, 4, 16, 64) if k < trials} | {trials})
    heads = ("algorithm", *(f"k = {k}" for k in shown), "CPE", "CPL", f"best, k = {trials}")
    expected = []
    for problem in library.problems:
        one = {name: library.of(name, problem) for name in library.algorithms}
        curves = {name: expected_curve(found, range(1, trials + 1)) for name, found in one.items()}
        say(f"{problem}: expected test loss after k trials, chosen by validation")
        say_table(heads, _rows(one, curves, shown))
        expected.append([curve[[k - 1 for k in shown]] for curve in curves.values()])
    found = np.array(expected).swapaxes(0, 1)
    if np.all(found > 0):
        say("S(o, k): the best expected loss over that of the algorithm, mean over problems")
        shares = relative_performance(found)
        rows = [
            (name, *(f"{share:.3f}" for share in row))
            for name, row in zip(library.algorithms, shares, strict=True)
        ]
        say_table(heads[: 1 + len(shown)], rows)
    return 0


def _rows(
    runs: Mapping[str, Runs], curves: Mapping[str, np.ndarray], shown: list[int]
) -> list[tuple[str, ...]]:
    """Return a row per algorithm: expected losses, means with early and late weight, a chance."""
    chances = probability_of_best(runs, shown[-1])
    rows = []
    for name, curve in curves.items():
        means = [float(omega_tunability(curve, WEIGHTS[word](len(curve)))) for word in WORDS]
        numbers = [*(float(curve[k - 1]) for k in shown), *means]
        rows.append((name, *(f"{one:.4g}" for one in numbers), f"{100 * chances[name]:.0f} %"))
    return rows
