"""Figure 3 of Wang et al. (2022) from stored numbers: how many configurations are good?

    python docs/studies/optimizers_landscapes.py --out DIR

Regret is what the paper's program computes: 1 - a / max(a), where a is the test accuracy of a
configuration at the round of its lowest validation loss. Every configuration of a grid is asked at
full fidelity; one that diverged has the accuracy 0. Written are `landscapes.png`, and
`landscapes.csv` with the share of configurations up to some regrets.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.analysis.plot import line_styles
from fedhpo_gym.evaluation.stats import ecdf, normalised_regret
from fedhpo_gym.stored.catalogue import open_table
from fedhpo_gym.stored.lattice import StoredNumbers
from fedhpo_gym.stored.surrogate import open_preferred
from fedhpo_gym.tasks import Task, get_task
from fedhpo_gym.tasks.logistic_regression import LR_TASKS

LR = tuple(dict.fromkeys(task.name for task in LR_TASKS))
PANELS: Mapping[str, Sequence[str]] = {
    "LR v0, tables": [f"{name}-v0" for name in LR],
    "LR v1, tables": [f"{name}-v1" for name in LR],
    "other families, surrogates": [
        "MLP-Car-v1", "MLP-BreastCancer-v1", "CNN-FEMNIST-v1", "CNN-CIFAR10-v1", "GNN-Cora-v1",
        "GNN-CiteSeer-v1",
    ],
}  # fmt: skip
"""What is stored of the paper's families; one panel each."""
THRESHOLDS = np.logspace(-3.0, 0.0, 301)
SHOWN = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Regrets of the table."""


def regrets(task: Task) -> NDArray[np.float64]:
    """Return the regret of every configuration of a task's grid: (C,), in [0, 1]."""
    stored: StoredNumbers
    try:
        stored = open_table(task.identity)
    except FileNotFoundError:
        stored = open_preferred(task.surrogate_identities)
    grids = [dimension.grid for dimension in task.space.dimensions]
    points = itertools.product(*grids)
    columns = {
        name: np.array(column)
        for name, column in zip(task.space.names, zip(*points, strict=True), strict=True)
    }
    full = {name: task.fidelity_space[name].grid[-1] for name in task.fidelity_space.names}
    columns |= {name: np.full(task.space.grid_size, value) for name, value in full.items()}
    answers = stored.look_up(columns, stored.seeds)
    accuracy = np.where(answers.has_diverged, 0.0, answers.mean("test", "accuracy"))
    return normalised_regret(-accuracy, -accuracy.max(), 0.0)


def draw(found: Mapping[str, Mapping[str, NDArray[np.float64]]], path: Path) -> None:
    """Draw a panel per family."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    size = {"figsize": (12, 5.4), "layout": "constrained"}
    figure, panels = plt.subplots(1, len(found), sharey=True, squeeze=False, **size)
    for axes, (title, curves) in zip(panels[0], found.items(), strict=True):
        for name, (colour, style) in line_styles(curves).items():
            axes.plot(THRESHOLDS, ecdf(curves[name], THRESHOLDS), c=colour, ls=style, label=name)
        axes.set(
            title=title, xscale="log", xlabel="normalised regret of test accuracy", ylim=(0, 1)
        )
        axes.grid(visible=True, color="#d9d9d9", lw=0.6)
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 2}
        axes.legend(fontsize=9, frameon=False, **below)
    panels[0, 0].set_ylabel("share of configurations")
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask all grids, draw, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for picture and table")
    out: Path = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    found = {
        title: {name: regrets(get_task(name)) for name in names} for title, names in PANELS.items()
    }
    draw(found, out / "landscapes.png")
    with (out / "landscapes.csv").open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["problem", "configurations", *(f"regret <= {at:g}" for at in SHOWN)])
        for name, values in (one for curves in found.values() for one in curves.items()):
            shares = ecdf(values, np.array(SHOWN))
            writer.writerow([name, len(values), *(f"{share:.4f}" for share in shares)])
    print((out / "landscapes.csv").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
