"""Numbers and picture of `workers_study.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies import cell, table

LABELS = {"random": "random search", "optuna-tpe": "TPE", "hyperband": "Hyperband", "bohb": "BOHB"}
Results = Mapping[tuple[str, str, int], Mapping[str, Any]]


def curves(result: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return (seeds, shares) validation losses; NaN before the first trial ends."""
    return np.array(result["curves"], dtype=np.float64)


def final_table(study: Any, found: Results, problem: str) -> str:
    """Return the validation losses at the end of the budget."""
    rows = [
        [LABELS[agent], *(cell(curves(found[problem, agent, w])[:, -1], 4) for w in study.workers)]
        for agent in study.agents
    ]
    return table(["validation loss", *(f"W = {w}" for w in study.workers)], rows)


def trials_table(study: Any, found: Results, problem: str) -> str:
    """Return how many trials ended in the budget, and how far workers shorten the way.

    The latter is the share of the budget after which the mean loss is what one worker has at the
    end.
    """
    rows = []
    for agent in study.agents:
        goal = curves(found[problem, agent, 1])[:, -1].mean()
        words = []
        for w in study.workers:
            result = found[problem, agent, w]
            reached = np.flatnonzero(curves(result).mean(axis=0) <= goal)
            share = f"{100 * (reached[0] + 1) / curves(result).shape[1]:.0f} %"
            words.append(f"{np.mean(result['trials']):.0f}; {share if len(reached) else 'never'}")
        rows.append([LABELS[agent], *words])
    return table(["trials; time to the loss of W = 1", *(f"W = {w}" for w in study.workers)], rows)


def report(study: Any, found: Results) -> str:
    """Return all tables as Markdown."""
    lines = [
        f"Validation loss of the incumbent, mean ± standard error over {study.seeds} seeds; "
        f"simulated time of {study.courses} full courses one after the other.\n"
    ]
    for problem in study.problems:
        lines += [f"**{problem}**\n", final_table(study, found, problem)]
        lines += [trials_table(study, found, problem)]
    return "\n".join(lines)


def draw(study: Any, shares: Sequence[float], found: Results, path: Path) -> None:
    """Draw the mean incumbent over simulated time for every number of workers."""
    import matplotlib.pyplot as plt

    rows, columns = len(study.problems), len(study.agents)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.2 * columns, 2.8 * rows), squeeze=False, sharex=True, sharey="row"
    )
    shades = plt.get_cmap("viridis")(np.linspace(0.9, 0.0, len(study.workers)))
    for row, problem in enumerate(study.problems):
        for column, agent in enumerate(study.agents):
            axis = axes[row][column]
            for shade, workers in zip(shades, study.workers, strict=True):
                mean = curves(found[problem, agent, workers]).mean(axis=0)
                axis.plot(shares, mean, color=shade, label=f"W = {workers}")
            axis.set_title(f"{problem}, {LABELS[agent]}", fontsize=9)
            axis.set_yscale("log")
            axis.grid(alpha=0.3)
        axes[row][0].set_ylabel("validation loss")
    for axis in axes[-1]:
        axis.set_xlabel("share of the simulated time")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
