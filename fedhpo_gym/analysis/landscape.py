"""Landscapes: how good configurations are over two hyperparameters, from run records alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.analysis.figures import Figure
from fedhpo_gym.analysis.page import ReportTable
from fedhpo_gym.analysis.plot import SIZE, TALL, draw
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, require_known
from fedhpo_gym.records.record import RunRecord
from fedhpo_gym.records.runs import level_of, problem_of

BINS: Final = 8
"""Most values of an axis; with more, it is divided into ranges with equally many trials."""
ALMOST_ALL: Final = 0.95
"""Share of the cells whose losses have colours of their own."""


@dataclass(frozen=True, eq=False)
class LossLandscape:
    """Median validation loss over two hyperparameters, of the trials of highest fidelity.

    Attributes:
        ticks: labels of the two axes: (X,) and (Y,).
        loss: (Y, X) medians over all other hyperparameters; NaN where nothing was tried.
        trials: (Y, X) how many trials each is of.
    """

    names: tuple[str, str]
    ticks: tuple[list[str], list[str]]
    loss: NDArray[np.float64]
    trials: NDArray[np.int64]
    problem: str
    fidelity: str


def landscape(records: Sequence[RunRecord], names: tuple[str, str]) -> LossLandscape:
    """Return the landscape of one problem, as figures 8 and 10 of Wang et al. (2022) show them."""
    if not records:
        raise MissingDataError("there is nothing to draw; make records with `fedhpo-gym run`")
    first = records[0].header
    for record in records:
        header = record.header
        if (header.id, problem_of(header)) != (first.id, problem_of(first)):
            raise InvalidArgumentError(
                f"records must be of one problem, got {first.id} and {header.id}, or variants of "
                "it; name the folder of one"
            )
    steps = [step for record in records for step in record.steps]
    first_configuration = steps[0].configuration
    for name in names:
        require_known("hyperparameter", name, first_configuration)
        if isinstance(first_configuration[name], str):
            raise InvalidArgumentError(f"{name!r} must have numbers for values to be an axis")
    levels = np.array([level_of(step.fidelity) for step in steps])
    steps_at_highest = [
        step for step, level in zip(steps, levels, strict=True) if level == levels.max()
    ]
    loss = np.array([step.true_objectives["val_loss"] for step in steps_at_highest])
    axes = [
        _bin_values(np.array([float(step.configuration[name]) for step in steps_at_highest]))
        for name in names
    ]
    (x, x_ticks), (y, y_ticks) = axes
    medians = np.full((len(y_ticks), len(x_ticks)), np.nan)
    trials = np.zeros(medians.shape, dtype=np.int64)
    for row, column in np.ndindex(medians.shape):
        losses = loss[(y == row) & (x == column)]
        trials[row, column] = len(losses)
        if len(losses):
            medians[row, column] = np.median(losses)
    fidelities = {
        ", ".join(f"{k} {v:g}" for k, v in sorted(step.fidelity.items()))
        for step in steps_at_highest
    }
    return LossLandscape(
        names, (x_ticks, y_ticks), medians, trials, first.id, " or ".join(sorted(fidelities))
    )


def landscape_figure(landscape: LossLandscape, title: str) -> Figure:
    """Draw a landscape."""
    caption = (
        f"{title}, of {landscape.problem}: median of the trials at the highest fidelity "
        f"({landscape.fidelity}), over all other hyperparameters, on a logarithmic scale; darker "
        "is better. A number says how many trials a cell is of. Blank: nothing was tried. Agents "
        "try more where it is good."
    )
    rows = [
        (across, up, loss, count)
        for up, losses, counts in zip(
            landscape.ticks[1], landscape.loss.tolist(), landscape.trials.tolist(), strict=True
        )
        for across, loss, count in zip(landscape.ticks[0], losses, counts, strict=True)
    ]
    head = (*landscape.names, "median validation loss", "trials")
    picture = draw("landscape", lambda axes: _fill_landscape(axes, landscape), (SIZE[0], TALL))
    return Figure(picture, ReportTable.of_values("landscape", title, caption, head, rows))


def _fill_landscape(axes: Any, landscape: LossLandscape) -> None:
    # Diverged trials are worse by hundreds of decades: with them, all others would look alike.
    finite_losses = landscape.loss[np.isfinite(landscape.loss)]
    best, worst = finite_losses.min(), np.quantile(finite_losses, ALMOST_ALL)
    scale = "log" if best > 0 and worst > best else "linear"
    image = axes.imshow(
        np.clip(landscape.loss, best, worst),
        origin="lower",
        aspect="auto",
        cmap="viridis",
        norm=scale,
    )
    for (row, column), count in np.ndenumerate(landscape.trials):
        if count:
            dark = landscape.loss[row, column] <= np.sqrt(best * worst)
            colour = "white" if dark else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=7)
    for axis, ticks, name in zip(
        (axes.xaxis, axes.yaxis), landscape.ticks, landscape.names, strict=True
    ):
        axis.set_ticks(range(len(ticks)), ticks)
        axis.set_label_text(name)
    axes.tick_params(axis="x", rotation=60)
    axes.set_title(f"{landscape.problem}: {landscape.fidelity}", fontsize=9)
    axes.figure.colorbar(image, ax=axes, extend="max", label="validation loss")


def _bin_values(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], list[str]]:
    """Return the bin of each value, and the labels of the bins."""
    distinct, cell = np.unique(values, return_inverse=True)
    if len(distinct) <= BINS:
        return cell, [f"{value:.3g}" for value in distinct]
    edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)))
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return bins.astype(np.int64), [f"{low:.2g} to {high:.2g}" for low, high in pairwise(edges)]
