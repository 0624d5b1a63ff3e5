"""The picture of `femnist_runs.py`: loss and accuracy of both programs over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from femnist_courses import VARIANTS, Curve
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedhpo_gym.analysis.plot import COLOURS, SETTINGS

TEST = 2
TICKS = (1, 2, 5, 10, 20, 50, 100, 200)
Found = tuple[NDArray[np.float64], Mapping[str, Sequence[Curve]]]
"""(rounds, splits, 2) of theirs; curves of ours by variant."""


def draw(path: Path, runs: Mapping[str, Found]) -> None:
    """Write the test losses and accuracies of all runs; the suffix of the path says the format."""
    with mpl.rc_context({**SETTINGS, "svg.hashsalt": "femnist_runs", "font.size": 10}):
        figure = Figure(figsize=(4.4 * len(runs), 6.6), layout="constrained")
        axes: Any = figure.subplots(2, len(runs), sharex=True, sharey="row", squeeze=False)
        for column, (name, (theirs, courses)) in zip(axes.T, runs.items(), strict=True):
            column[0].set_title(name)
            column[1].set_xlabel("round")
            for metric, panel in enumerate(column):
                _fill(panel, theirs[:, TEST, metric], courses, metric)
        axes[0, 0].set_ylabel("test loss, nats")
        axes[1, 0].set_ylabel("test accuracy")
        handles, labels = axes[0, 0].get_legend_handles_labels()  # the first run has all variants
        figure.legend(handles, labels, loc="outside lower left", frameon=False, fontsize=9)
        metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {}
        figure.savefig(path, metadata=metadata)


def _fill(
    axes: Any, theirs: NDArray[np.float64], courses: Mapping[str, Sequence[Curve]], metric: int
) -> None:
    rounds = np.arange(1, len(theirs) + 1)
    axes.plot(rounds, theirs, color=COLOURS[-1], linewidth=1.5, label="FederatedScope")
    for name, curves in courses.items():
        colour = COLOURS[list(VARIANTS).index(name)]
        label = f"ours: {VARIANTS[name].text}"
        for curve in curves:
            values = [curve[index][TEST, metric] for index in curve]
            axes.plot(list(curve), values, "o-", color=colour, markersize=3, label=label)
            label = "_nolegend_"
    axes.set_xscale("log")
    axes.set_xticks(TICKS, map(str, TICKS))
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
