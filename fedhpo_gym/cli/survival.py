"""Whether the best cells of a table survive a perturbation of the initial weights.

Where one far below any meaning moves the loss, the course is chaos, and its low loss is luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.training import CourseState, make_batch, make_course, task_federation
from fedhpo_gym.core.archive import add_to_card
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Fidelity, evaluation_of
from fedhpo_gym.space import Value
from fedhpo_gym.stored.health import SMALLEST_LOSS, SURVIVAL, SURVIVES
from fedhpo_gym.stored.lattice import Landscape, landscape_of
from fedhpo_gym.stored.table import FORMAT, Table
from fedhpo_gym.tasks import Task, task_of

CELLS = 5
PERTURBATIONS = 3
PERTURBATION = 1e-8
"""By which every initial weight moves, as a share of it or of 1 if that is more; by the distance to
its neighbour in float32 if that is more still."""
Cell = tuple[dict[str, Value], Fidelity]
Floats = NDArray[np.float64]


def write_survival(card: Path) -> dict[str, Any]:
    """Retrain the best cells of a table, and write what that says onto its card."""
    found = survival_of(Table(card))
    add_to_card(card, FORMAT, {SURVIVAL: found})
    return found


def survival_of(table: Table) -> dict[str, Any]:
    """Return how far the losses of the best cells move, as JSON data.

    Spreads are standard deviations of the logarithm of the loss, the root mean square over cells:
    `moved` over the draws, of the mean over seeds; `seeds` over the seeds, unmoved.
    """
    land = landscape_of(table)
    cells = best_cells(land, CELLS)
    task = task_of(table.identity)
    losses = np.stack(
        [trained(task, table.seeds, cells, draw) for draw in range(PERTURBATIONS + 1)]
    )
    means = losses.mean(axis=-1)
    claimed = np.array([_stated(land, cell) for cell in cells])
    away = np.abs(means[1:] / claimed - 1.0).max(axis=0)
    return {
        "of": table.digest,
        "perturbation": PERTURBATION,
        "draws": PERTURBATIONS,
        "cells": len(cells),
        "surviving": int((away <= SURVIVES).sum()),
        "optimum": {
            "stored": _short(claimed[0]),
            "trained": _short(means[0, 0]),
            "lowest": _short(means[1:, 0].min()),
            "highest": _short(means[1:, 0].max()),
        },
        "moved": _spread(means, axis=0),
        "seeds": _spread(losses[0], axis=-1) if len(table.seeds) > 1 else None,
    }


def best_cells(land: Landscape, count: int) -> list[Cell]:
    """Return the configurations with the lowest means, each at its best fidelity; best first."""
    by_configuration = land.means.swapaxes(0, 1).reshape(land.means.shape[1], -1)
    order = np.argsort(by_configuration.min(axis=1), kind="stable")[:count]
    cells = []
    for one in order.tolist():
        at, rate = divmod(int(by_configuration[one].argmin()), len(land.rates))
        cells.append((dict(land.configurations[one]), Fidelity(land.rounds[at], land.rates[rate])))
    return cells


def trained(task: Task, seeds: Sequence[int], cells: Sequence[Cell], draw: int) -> Floats:
    """Return the (cells, seeds) validation losses that training reaches."""
    courses = [
        make_course(task, configuration, fidelity.client_sample_rate, seed)
        for configuration, fidelity in cells
        for seed in seeds
    ]
    batch = make_batch(task, courses)
    if draw:
        rng = stream(draw, "survival")
        batch.restore([_moved(state, rng) for state in batch.snapshot()])
    last = max(fidelity.round for _, fidelity in cells)
    curves = batch.advance(last, evaluated=[r for r in task.evaluated_rounds if r <= last])
    found = np.empty((len(cells), len(seeds)))
    for index, (cell, of_seed) in enumerate(np.ndindex(found.shape)):
        own = slice(index, index + 1)
        known = (curves.metrics[own], curves.rounds, curves.diverged_at[own])
        samples = task_federation(task, seeds[of_seed]).num_samples[None]
        answer = evaluation_of(*known, samples, (seeds[of_seed],), cells[cell][1])
        found[cell, of_seed] = answer.mean("val", "loss")
    return found


def _moved(state: CourseState | None, rng: np.random.Generator) -> CourseState | None:
    """Return a state at round 0 with other weights."""
    if state is None:
        return None
    parameters = {name: moved(weights, rng) for name, weights in state.parameters.items()}
    return replace(state, parameters=parameters)


def moved(weights: Any, rng: np.random.Generator) -> Any:
    """Return weights, an array or a tensor, each a little up or down."""
    values = weights if isinstance(weights, np.ndarray) else weights.detach().cpu().numpy()
    size = np.abs(values)
    step = np.maximum(PERTURBATION * np.maximum(size, 1.0), np.spacing(size)).astype(values.dtype)
    new = values + rng.choice(np.array([-1, 1], values.dtype), values.shape) * step
    return new if isinstance(weights, np.ndarray) else weights.new_tensor(new)


def _stated(land: Landscape, cell: Cell) -> float:
    configuration, fidelity = cell
    at = land.rounds.index(fidelity.round), land.configurations.index(configuration)
    return float(land.means[(*at, land.rates.index(fidelity.client_sample_rate))])


def _spread(losses: Floats, axis: int) -> float:
    logs = np.log(np.maximum(losses, SMALLEST_LOSS))
    return _short(np.sqrt(logs.var(axis=axis, ddof=1).mean()))


def _short(number: float | np.floating) -> float:
    return float(f"{number:.4g}")
