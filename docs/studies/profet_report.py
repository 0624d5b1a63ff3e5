"""Tables of `profet_study.py`: who is better in three scenarios, and how alike the tasks are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pieces import piece
from profet_assessment import average_ranks, runtimes, superiority
from profet_tasks import SCENARIOS, Array, Study, Task, family_of, functions, given
from scipy.stats import kendalltau, ks_2samp

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.stats import ecdf
from fedhpo_gym.profet import ProfetModel
from fedhpo_gym.profet.model import LINE, lowest, sobol_points
from studies import table

Found = Mapping[tuple[str, str], Array]
PAPER = {
    "real": """0.500 0.696 0.048 0.463 1.000 0.020  0.304 0.500 0.015 0.274 1.000 0.005
               0.952 0.985 0.500 0.943 1.000 0.345  0.537 0.726 0.057 0.500 1.000 0.025
               0.000 0.000 0.000 0.000 0.500 0.000  0.980 0.995 0.655 0.975 1.000 0.500""",
    "nine": """0.500 0.000 0.000 0.000 0.000 0.000  1.000 0.500 0.000 0.003 0.000 0.000
               1.000 1.000 0.500 1.000 0.000 0.000  1.000 0.997 0.000 0.500 0.000 0.000
               1.000 1.000 1.000 1.000 0.500 0.000  1.000 1.000 1.000 1.000 1.000 0.500""",
    "generated": """0.500 0.614 0.000 0.041 1.000 0.000  0.386 0.500 0.000 0.015 1.000 0.000
                    1.000 1.000 0.500 0.999 1.000 0.944  0.959 0.985 0.001 0.500 1.000 0.035
                    0.000 0.000 0.000 0.000 0.500 0.000  1.000 1.000 0.056 0.965 1.000 0.500""",
}
"""Figure 4: p-values by row and column, in the order of `METHODS`."""
TITLES = {"real": "real tasks", "nine": "nine real tasks", "generated": "generated tasks"}
RESAMPLES = 300
LEVEL = 0.05
ROUNDING = 1e-9
"""Errors below this share of a function's spread are none."""
AT = (10, 25, 50)
GRID = np.linspace(0.0, 1.0, 1001)[:, None]


def paper(scenario: str) -> Array:
    """Return the paper's (6, 6) p-values."""
    return np.array(PAPER[scenario].split(), dtype=np.float64).reshape(6, 6)


def shapes(some: list[Task]) -> dict[str, list[float]]:
    """Return what the tasks of a kind are like: spread, optimum, and targets on the Sobol grid."""
    found = [lowest(one, 1) for one in some]
    values = np.array([one(GRID) for one in some])
    sobol = sobol_points(100, LINE, 0)
    return {
        "spread": np.ptp(values, axis=1).tolist(),
        "optimum": [value for _, value in found],
        "where": [float(x[0]) for x, _ in found],
        "targets": np.array([one(sobol) for one in some]).tolist(),
    }


class Scenario:
    """The runs of one scenario: (M, I, R, N) values, and the optimum and targets of I tasks."""

    def __init__(self, study: Study, found: Found, name: str, of: Mapping[str, Any]) -> None:
        some = given(study) if name == "nine" else np.arange(study.tasks)
        self.optimum = np.array(of["optimum"])[some]
        self.targets = np.array(of["targets"])[some]
        rows = [found[name, method] for method in study.methods]
        self.values = np.array(rows).reshape(len(rows), len(some), -1, study.evaluations)
        best = self.values.min(axis=3) - self.optimum[:, None]
        best[best < ROUNDING * np.array(of["spread"])[some, None]] = 0.0
        # As in the paper, an error is a mean over some runs.
        self.errors = best.reshape(*best.shape[:2], -1, study.runs).mean(axis=3)

    def samples(self, some: NDArray[np.intp] | None = None) -> Array:
        """Return (M, S) errors of some tasks, drawn again or not."""
        errors = self.errors if some is None else self.errors[:, some]
        return errors.reshape(len(errors), -1)

    def drawn(self, name: str, some: NDArray[np.intp] | None = None) -> Array:
        """Return (resamples, M, S) errors of tasks that were drawn again."""
        of = np.arange(self.errors.shape[1]) if some is None else some
        again = stream(0, f"profet {name}").choice(of, (RESAMPLES, len(of)))
        return np.array([self.samples(one) for one in again])


def order(errors: Array) -> Array:
    """Return (..., M) how often a method's error is lower than another's, over (..., M, S)."""
    _, shares = superiority(errors)
    return np.asarray(shares.mean(axis=-2))


def agreement(one: Array, other: Array) -> str:
    """Return in how many pairs of methods two matrices of p-values have the same verdict."""
    off = ~np.eye(len(one), dtype=bool)
    same = (one < LEVEL) == (other < LEVEL)
    return f"{int(same[off].sum())} of {int(off.sum())}"


def taus(one: Scenario, held: NDArray[np.intp], other: Scenario, name: str) -> str:
    """Return Kendall's tau between the orders of methods, and its interval over tasks."""
    found = kendalltau(order(one.samples(held)), order(other.samples())).statistic
    again = zip(order(one.drawn("held", held)), order(other.drawn(name)), strict=True)
    drawn = [kendalltau(a, b).statistic for a, b in again]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return f"{found:.2f} [{low:.2f}, {high:.2f}]"


def matrix(methods: Any, cells: list[list[str]], corner: str) -> str:
    """Return a table of pairs of methods."""
    return table([corner, *methods], [[m, *row] for m, row in zip(methods, cells, strict=True)])


def report(study: Study, out: Path, found: Found) -> str:
    """Return all tables."""
    kinds = {
        name: piece(
            out / "shapes" / f"{study.family}-{name}.json",
            lambda name=name: shapes(functions(study, out, name)),
        )
        for name in ("real", "generated")
    }
    parts: list[str] = []
    scenarios = {
        name: Scenario(study, found, name, kinds["generated" if name == "generated" else "real"])
        for name in SCENARIOS
    }
    tests = {name: superiority(one.samples()) for name, one in scenarios.items()}
    complete = len(study.methods) == len(paper("real"))
    for name, one in scenarios.items():
        p, shares = tests[name]
        ends = np.quantile(superiority(one.drawn(name))[1], [0.025, 0.975], axis=0)
        beside = paper(name) if complete and study.family == "paper" else None
        cells = [
            [
                f"{p[i, j]:.3f}" + ("" if beside is None else f" ({beside[i, j]:.3f})")
                for j in range(len(p))
            ]
            for i in range(len(p))
        ]
        said = "p, ours" if beside is None else "p, ours (paper)"
        parts += [f"### {TITLES[name]}\n", matrix(study.methods, cells, said)]
        cells = [
            [
                f"{shares[i, j]:.2f} [{ends[0, i, j]:.2f}, {ends[1, i, j]:.2f}]"
                for j in range(len(p))
            ]
            for i in range(len(p))
        ]
        parts.append(matrix(study.methods, cells, "column is lower"))
    parts.append(_orders(study, scenarios, tests, study.family == "paper" and complete))
    parts.append(_progress(study, scenarios))
    parts.append(_likeness(study, kinds))
    parts.append(_fit(study, out))
    return "\n".join(parts)


def _fit(study: Study, out: Path) -> str:
    """Return how well networks know the few tasks at their places, and where these are."""
    model, family = ProfetModel.load(out / f"model-{study.family}"), family_of(study)
    mean = model.arrays["mean"]
    some = [model.task(i) for i in range(min(study.tasks, 20))]
    told = np.array(
        [[replace(task, features=place).value(family.x) for place in mean] for task in some]
    )
    left = ((told - family.values) ** 2).mean(axis=(0, 2)) / family.values.var(axis=1)
    whole = 1.0 - ((told - family.values) ** 2).mean() / family.values.var()
    rows = [
        ["variance that networks explain", f"{whole:.2f}"],
        ["tasks of which less than half is explained", f"{(left > 0.5).sum()} of {len(mean)}"],
        [
            "standard deviation of places, by dimension",
            " ".join(f"{s:.2g}" for s in mean.std(axis=0)),
        ],
    ]
    return table(["the nine", ""], rows)


def _orders(study: Study, scenarios: Mapping[str, Scenario], tests: Any, beside: bool) -> str:
    held = np.setdiff1d(np.arange(study.tasks), given(study))
    rows = []
    for name in ("nine", "generated"):
        row = [TITLES[name], agreement(tests[name][0], tests["real"][0])]
        row.append(agreement(paper(name), paper("real")) if beside else "–")
        row.append(taus(scenarios["real"], held, scenarios[name], name))
        rows.append(row)
    zero = [
        [TITLES[name], *(f"{share:.0%}" for share in (one.samples() == 0.0).mean(axis=1))]
        for name, one in scenarios.items()
    ]
    median = [
        [TITLES[name], *(f"{error:.1e}" for error in np.median(one.samples(), axis=1))]
        for name, one in scenarios.items()
    ]
    head = ["", "same verdicts as all real tasks", "the paper's", "tau with held-out real tasks"]
    return "\n".join([
        table(head, rows), table(["errors of exactly 0", *study.methods], zero),
        table(["median error", *study.methods], median),
    ])  # fmt: skip


def _progress(study: Study, scenarios: Mapping[str, Scenario]) -> str:
    at = [n for n in AT if n <= study.evaluations]
    rows = []
    for name in ("real", "generated"):
        one = scenarios[name]
        ranks = average_ranks(one.values)
        for i, method in enumerate(study.methods):
            met = ecdf(runtimes(one.values[i], one.targets), np.array(at, dtype=np.float64))
            cells = [*(f"{ranks[i, n - 1]:.2f}" for n in at), *(f"{share:.3f}" for share in met)]
            rows.append([TITLES[name], method, *cells])
    head = ["", "method", *(f"rank @{n}" for n in at), *(f"targets met @{n}" for n in at)]
    return table(head, rows)


def _likeness(study: Study, kinds: Mapping[str, Any]) -> str:
    held = np.setdiff1d(np.arange(study.tasks), given(study))
    rows = []
    for what in ("spread", "optimum", "where"):
        real, made = np.array(kinds["real"][what])[held], np.array(kinds["generated"][what])
        test = ks_2samp(real, made)
        middle = [
            "{:.3g} [{:.3g}, {:.3g}]".format(*np.quantile(one, [0.5, 0.1, 0.9]))
            for one in (real, made)
        ]
        rows.append([what, *middle, f"{test.statistic:.2f}", f"{test.pvalue:.2g}"])
    ends = np.array(kinds["real"]["where"])[held], np.array(kinds["generated"]["where"])
    at_end = [f"{np.mean(where > 0.999):.0%}" for where in ends]
    rows.append(["optimum at x = 1", *at_end, "", ""])
    head = ["median [10 %, 90 %]", "held-out real", "generated", "Kolmogorov-Smirnov", "p"]
    return table(head, rows)
