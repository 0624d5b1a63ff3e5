"""Numbers and picture of `fedex_study.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents import agent_class
from studies import cell, table

LABELS = {"random": "random search", "optuna-tpe": "TPE", "hyperband": "Hyperband", "bohb": "BOHB"}
COLOURS = dict(zip(LABELS, ("#4878a8", "#c8602c", "#6a9a4a", "#8a5aa8"), strict=True))

Search: TypeAlias = Mapping[str, Any]
Found: TypeAlias = Mapping[tuple[str, str, int], Sequence[Search]]
Measure: TypeAlias = Callable[[Search], float]


def best(search: Search) -> Mapping[str, float]:
    """Return the course that X was told is the best one."""
    found: Mapping[str, float] = max(search["courses"], key=lambda course: course["score"])
    return found


def of_best(name: str, factor: float = 1.0) -> Measure:
    """Return what is measured of the best course of a search."""
    return lambda search: factor * best(search)[name]


def mean_validation_loss(search: Search) -> float:
    """Return the mean over all courses of a search, nats."""
    return float(np.mean([course["val_loss"] for course in search["courses"]]))


def measured(study: Any, found: Found, problem: str, measure: Measure) -> NDArray[np.float64]:
    """Return (X, arms, seeds) numbers of a problem."""
    return np.array(
        [
            [[measure(search) for search in found[problem, outer, arms]] for arms in study.arms]
            for outer in study.outer
        ]
    )


def comparison(study: Any, found: Found, measures: Mapping[str, tuple[Measure, int]]) -> str:
    """Return X beside X + FedEx; "all X" averages every seed over X before it counts as one."""
    rows = []
    for problem in study.problems:
        names = [*(LABELS[outer] for outer in study.outer), "all X"]
        added = [[f"{problem} (α {study.problems[problem]})", name] for name in names]
        for measure, digits in measures.values():
            numbers = measured(study, found, problem, measure)
            for row, (plain, wrapped) in zip(added, [*numbers, numbers.mean(axis=0)], strict=True):
                row += [cell(plain, digits), cell(wrapped, digits)]
                row += [cell(wrapped - plain, digits, sign=True)]
        rows += added
    head = ["problem", "X"]
    for name in measures:
        head += [f"{name}: X", "X + FedEx", "difference"]
    return table(head, rows)


def against_random(study: Any, found: Found, measure: Measure) -> str:
    """Return how much lower than those of a random search the losses of the other X are."""
    rows = []
    for problem in study.problems:
        numbers = measured(study, found, problem, measure)
        reference = numbers[study.outer.index("random")]
        for outer, values in zip(study.outer, numbers, strict=True):
            if outer != "random":
                differences = [cell(one, 4, sign=True) for one in values - reference]
                rows.append([problem, LABELS[outer], *differences])
    return table(["problem", "X", "X", "X + FedEx"], rows)


def lengths(study: Any, found: Found) -> str:
    """Return how many rounds the best courses had, seed by seed, where X chose them."""
    rows = []
    for problem, outer in product(study.problems, study.outer):
        if agent_class(outer).fidelity is not None:
            searches = [found[problem, outer, arms] for arms in study.arms]
            words = [", ".join(str(best(one)["rounds"]) for one in row) for row in searches]
            rows.append([problem, LABELS[outer], *words])
    return table(["problem", "X", "X", "X + FedEx"], rows)


def report(study: Any, found: Found) -> str:
    """Return the tables of the report."""
    told, validation = of_best("score", -1.0), of_best("val_loss")
    test, accuracy = of_best("test_loss"), of_best("test_accuracy", 100.0)
    cpu = sum(one["cpu_s"] for searches in found.values() for one in searches)
    total = sum(len(searches) for searches in found.values()) * study.rounds
    parts = [
        f"{', '.join(study.problems)}; {study.seeds} seeds; {study.rounds} rounds for every "
        f"search, with FedEx and without, in courses of {study.horizon} (Hyperband, BOHB: "
        f"{study.shortest} to {study.horizon}); {total // len(study.problems):,} rounds per "
        f"problem; {cpu:.0f} s of CPU time in all. Mean ± standard error over seeds; differences "
        "are paired by seed.\n",
        "**The best course of a search**\n",
        comparison(
            study,
            found,
            {"loss X was told, nats": (told, 4), "validation loss, nats": (validation, 4)},
        ),
        "**The best course of a search on test data**\n",
        comparison(study, found, {"test loss, nats": (test, 4), "test accuracy, %": (accuracy, 2)}),
        "**All courses of a search: mean validation loss of the aggregated model**\n",
        comparison(study, found, {"validation loss, nats": (mean_validation_loss, 4)}),
        "**Loss X was told of its best course, minus that of random search, nats**\n",
        against_random(study, found, told),
        "**Rounds of the best course, seed by seed**\n",
        lengths(study, found),
    ]
    return "\n".join(parts)


def incumbents(searches: Sequence[Search]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return (courses,) rounds spent and (seeds, courses) lowest losses that X was told so far."""
    spent = np.array([course["spent"] for course in searches[0]["courses"]])
    losses = [[-course["score"] for course in one["courses"]] for one in searches]
    return spent, np.minimum.accumulate(np.array(losses), axis=1)


def draw(study: Any, found: Found, path: Path) -> None:
    """Draw the incumbents against the rounds spent."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shape = (len(study.problems), len(study.outer))
    figure, axes = plt.subplots(
        *shape, figsize=(11, 1 + 2.5 * shape[0]), squeeze=False, sharex=True, sharey="row"
    )
    for (row, problem), (column, outer) in product(
        enumerate(study.problems), enumerate(study.outer)
    ):
        axis = axes[row, column]
        for arms in study.arms:
            rounds, curves = incumbents(found[problem, outer, arms])
            middle = curves.mean(axis=0)
            error = curves.std(axis=0, ddof=min(1, len(curves) - 1)) / np.sqrt(len(curves))
            style, name = ("-", "X + FedEx") if arms > 1 else ("--", "X")
            colour = COLOURS[outer]
            axis.step(rounds, middle, style, where="post", color=colour, label=name)
            axis.fill_between(
                rounds, middle - error, middle + error, step="post", color=colour, alpha=0.12
            )
        axis.set_yscale("log")
        axis.legend(frameon=False)
        axis.set_title(LABELS[outer] if row == 0 else "")
        axis.set_xlabel("communication rounds" if row == shape[0] - 1 else "")
        axis.set_ylabel(f"{problem}: lowest loss\nX was told, nats" if column == 0 else "")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
