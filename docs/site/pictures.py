"""Draws what a problem is like: its landscape, and its learning curves."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedhpo_gym.cli.problems import format_value
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.stored.health import labels_on
from fedhpo_gym.stored.lattice import StoredNumbers, asked_columns, asked_space, losses_at
from fedhpo_gym.stored.pool import Pool
from fedhpo_gym.stored.surrogate import Surrogate

DRAWS, MOST_CELLS = 256, 8
"""Random configurations that a surrogate is asked; values of an axis, which else become ranges."""
MANY_CLIENTS, FEW_DRAWS, FEW_CELLS = 200, 64, 4
"""What is asked of federations whose every answer takes milliseconds."""
SHARES = {"best": 0.0, "best tenth": 0.1, "median": 0.5}
"""Curves that are drawn, and which quantile of the configurations each is."""

mpl.rcParams.update({"font.size": 8, "svg.hashsalt": "fedhpo_gym", "svg.fonttype": "none"})


def draw(path: Path, stored: StoredNumbers, importance: Mapping[str, Any] | None) -> None:
    """Draw stored numbers at the highest client sample rate, of the mean over seeds."""
    many = stored.num_samples.shape[1] > MANY_CLIENTS
    draws, most = (FEW_DRAWS, FEW_CELLS) if many else (DRAWS, MOST_CELLS)
    columns = _asked(stored, draws)
    round_, rate = (stored.fidelity_space[name] for name in ("round", "client_sample_rate"))
    rounds = _some(round_.values or np.geomspace(round_.low, round_.high, most), most)
    losses = np.stack(
        [losses_at(stored, columns, Fidelity(int(r), float(rate.high))).mean(-1) for r in rounds]
    )
    figure = Figure((7.2, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = sorted(columns, key=lambda name: -(importance or {}).get(name, {"total": 0})["total"])
    _landscape(left, columns, losses[-1], names, most)
    _curves(right, rounds, losses, labels_on(stored))
    _save(figure, path)


def _asked(stored: StoredNumbers, draws: int) -> Mapping[str, Any]:
    """Return (n,) values of the configurations that are drawn, by name."""
    if isinstance(stored, Pool):
        return stored.columns
    return asked_columns(
        asked_space(stored) if isinstance(stored, Surrogate) else stored.space, draws, "site"
    )


def draw_family(path: Path, space: SearchSpace, rounds: Any, tasks: list[tuple[Any, Any]]) -> None:
    """Draw (n, d) actions and (rounds, n) losses of several tasks, each in its own best loss."""
    columns = space.decode_columns(np.concatenate([actions for actions, _ in tasks]))
    losses = np.concatenate([found / found[-1].min() for _, found in tasks], axis=1)
    figure = Figure((7.2, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    known = space.configurations_of(columns)  # without what is not active
    active = {name: np.array([name in one for one in known]) for name in space.names}
    spread = {n: _spread(columns[n][active[n]], losses[-1][active[n]]) for n in space.names}
    names = sorted(space.names, key=lambda name: -spread[name])[:2]
    both = active[names[0]] & active[names[1]]
    chosen = {name: columns[name][both] for name in names}
    _landscape(left, chosen, losses[-1][both], names, MOST_CELLS)
    _curves(right, np.array(rounds), losses, None)
    left.set_title("median loss, in multiples of the best")
    right.set(title="loss, in multiples of the best", xticks=rounds, xticklabels=rounds)
    right.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    _save(figure, path)


def _spread(values: Any, losses: Any) -> float:
    """Return how much the median of the logarithm of a loss varies over the cells of a column."""
    cell, names = _cells(values, MOST_CELLS)
    medians = [np.median(np.log(losses[cell == i])) for i in range(len(names)) if (cell == i).any()]
    return float(np.ptp(medians))


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _landscape(
    axes: Any, columns: Mapping[str, Any], losses: Any, names: list[str], most: int
) -> None:
    first, second = (names * 2)[:2]
    (x, across), (y, up) = _cells(columns[first], most), _cells(columns[second], most)
    medians = np.full((len(up), len(across)), np.nan)
    for row, column in np.ndindex(medians.shape):
        here = losses[(y == row) & (x == column)]
        if len(here):
            medians[row, column] = np.median(here)
    seen = medians[np.isfinite(medians)]
    best, worst = seen.min(), np.quantile(seen, 0.9)
    scale = "log" if best > 0 and worst > best else "linear"
    shown = np.where(np.isnan(medians), np.nan, np.clip(medians, best, worst))
    image = axes.imshow(shown, origin="lower", aspect="auto", cmap="viridis", norm=scale)
    axes.set_xticks(range(len(across)), across, rotation=45)
    axes.set_yticks(range(len(up)), up)
    axes.set(xlabel=first, ylabel=second, title="median loss over the other hyperparameters")
    bar = axes.figure.colorbar(image, ax=axes, extend="max")
    bar.set_ticks([best, worst] if worst > best else [best])
    bar.ax.set_yticklabels(
        [format_value(value) for value in ([best, worst] if worst > best else [best])]
    )
    bar.ax.minorticks_off()


def _curves(axes: Any, rounds: Any, losses: Any, labels: Mapping[str, float] | None) -> None:
    for name, share in SHARES.items():
        curve = np.quantile(losses, share, axis=1, method="lower")
        axes.plot(rounds, np.where(np.isfinite(curve), curve, np.nan), marker=".", label=name)
    if labels is not None:
        axes.axhline(labels["val_loss"], color="grey", linestyle=":", label="label frequencies")
    axes.set(xscale="log", yscale="log", xlabel="round", title="validation loss of configurations")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.legend(frameon=False)


def _cells(values: Any, most: int) -> tuple[Any, list[str]]:
    """Return the cell of each value, and what the cells are called."""
    values = np.asarray(values)
    distinct, cell = np.unique(values, return_inverse=True)
    if len(distinct) <= most or distinct.dtype.kind in "UO":
        return cell, [format_value(value) for value in distinct.tolist()]
    edges = np.unique(np.quantile(values, np.linspace(0, 1, most + 1)))
    places = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return places, [format_value((low + high) / 2) for low, high in pairwise(edges)]


def _some(values: Any, most: int) -> Any:
    """Return a few whole numbers of some in ascending order, the first and the last among them."""
    places = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    return np.unique(np.round(np.asarray(values)[places])).astype(int)
