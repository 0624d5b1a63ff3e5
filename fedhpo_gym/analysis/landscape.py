"""Landscapes: how good configurations are over two hyperparameters, from run records alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.analysis.figures import Figure
from fedhpo_gym.analysis.page import Table
from fedhpo_gym.analysis.plot import SIZE, TALL, draw
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, require_known
from fedhpo_gym.records.record import RunRecord
from fedhpo_gym.records.runs import level_of, problem_of

BINS: Final = 8
"""Of a hyperparameter with more values than this: ranges with equally many trials."""
ALMOST_ALL: Final = 0.95
"""Share of the cells whose losses have colours of their own."""


@dataclass(frozen=True, eq=False)
class Landscape:
    """Median validation loss over two hyperparameters, of the trials of highest fidelity.

    Attributes:
        ticks: what the rows and columns are called: (X,) and (Y,).
        loss: (Y, X) medians over all other hyperparameters; NaN where nothing was tried.
        trials: (Y, X) how many trials each is of.
    """

    names: tuple[str, str]
    ticks: tuple[list[str], list[str]]
    loss: NDArray[np.float64]
    trials: NDArray[np.int64]
    problem: str
    fidelity: str


def landscape(records: Sequence[RunRecord], names: tuple[str, str]) -> Landscape:
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
    known = steps[0].configuration
    for name in names:
        require_known("hyperparameter", name, known)
        if isinstance(known[name], str):
            raise InvalidArgumentError(f"{name!r} must have numbers for values to be an axis")
    levels = np.array([level_of(step.fidelity) for step in steps])
    full = [step for step, level in zip(steps, levels, strict=True) if level == levels.max()]
    loss = np.array([step.true_objectives["val_loss"] for step in full])
    axes = [_cells(np.array([float(step.configuration[name]) for step in full])) for name in names]
    (x, across), (y, up) = axes
    medians = np.full((len(up), len(across)), np.nan)
    trials = np.zeros(medians.shape, dtype=np.int64)
    for row, column in np.ndindex(medians.shape):
        here = loss[(y == row) & (x == column)]
        trials[row, column] = len(here)
        if len(here):
            medians[row, column] = np.median(here)
    words = {", ".join(f"{k} {v:g}" for k, v in sorted(step.fidelity.items())) for step in full}
    return Landscape(names, (across, up), medians, trials, first.id, " or ".join(sorted(words)))


def landscape_figure(found: Landscape, title: str) -> Figure:
    """Draw a landscape."""
    caption = (
        f"{title}, of {found.problem}: median of the trials at the highest fidelity "
        f"({found.fidelity}), over all other hyperparameters, on a logarithmic scale; darker is "
        "better. A number says how many trials a cell is of. Blank: nothing was tried. Agents try "
        "more where it is good."
    )
    rows = [
        (across, up, loss, count)
        for up, losses, counts in zip(
            found.ticks[1], found.loss.tolist(), found.trials.tolist(), strict=True
        )
        for across, loss, count in zip(found.ticks[0], losses, counts, strict=True)
    ]
    head = (*found.names, "median validation loss", "trials")
    drawn = draw("landscape", lambda axes: _fill_landscape(axes, found), (SIZE[0], TALL))
    return Figure(drawn, Table.of_values("landscape", title, caption, head, rows))


def _fill_landscape(axes: Any, found: Landscape) -> None:
    # Diverged trials are worse by hundreds of decades: with them, all others would look alike.
    seen = found.loss[np.isfinite(found.loss)]
    best, worst = seen.min(), np.quantile(seen, ALMOST_ALL)
    scale = "log" if best > 0 and worst > best else "linear"
    image = axes.imshow(
        np.clip(found.loss, best, worst), origin="lower", aspect="auto", cmap="viridis", norm=scale
    )
    for (row, column), count in np.ndenumerate(found.trials):
        if count:
            dark = found.loss[row, column] <= np.sqrt(best * worst)
            colour = "white" if dark else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=7)
    for axis, ticks, name in zip((axes.xaxis, axes.yaxis), found.ticks, found.names, strict=True):
        axis.set_ticks(range(len(ticks)), ticks)
        axis.set_label_text(name)
    axes.tick_params(axis="x", rotation=60)
    axes.set_title(f"{found.problem}: {found.fidelity}", fontsize=9)
    axes.figure.colorbar(image, ax=axes, extend="max", label="validation loss")


def _cells(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], list[str]]:
    """Return the cell of each value, and what the cells are called."""
    distinct, cell = np.unique(values, return_inverse=True)
    if len(distinct) <= BINS:
        return cell, [f"{value:.3g}" for value in distinct]
    edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)))
    places = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return places.astype(np.int64), [f"{low:.2g} to {high:.2g}" for low, high in pairwise(edges)]
