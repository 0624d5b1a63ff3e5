"""The wide grids of `choose_spaces.py`, and what is read off their learning curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.building.grid import GridDesign
from fedhpo_gym.building.provenance import client_samples
from fedhpo_gym.building.workers import compute_units
from fedhpo_gym.courses.training import task_federation
from fedhpo_gym.evaluation.best import best_rounds
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.space.dimension import Kind, Scope
from fedhpo_gym.tasks import Task, get_task
from fedhpo_gym.tasks.federated import STORED_ROUNDS

SEEDS = (1, 2)
RATES = (0.2, 1.0)
# fmt: off
DATASETS = (
    "BloodTransfusion", "BreastCancer", "Australian", "CreditG", "Car", "Vehicle", "KC1", "Segment",
    "Digits",
)
# fmt: on
"""From cheap to dear."""
DEAR = ("KC1", "Segment", "Digits")


@dataclass(frozen=True)
class Search:
    """A wide grid of one family.

    Attributes:
        model: the family.
        axes: values of the client-side hyperparameters, by name.
        of_dear: likewise, of those that have fewer values on `DEAR` data sets. Where it names
            some, these data sets are searched with rate 1.0 alone.
        rounds: rounds of a course.
        algorithm: FL algorithm; its own grid is searched, too.
        rates: client sample rates.
    """

    model: str
    axes: Mapping[str, tuple[Value, ...]]
    rounds: int
    algorithm: str = "fedavg"
    rates: tuple[float, ...] = RATES
    seeds: tuple[int, ...] = SEEDS
    of_dear: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    def task(self, dataset: str) -> Task:
        """Return the problem on a data set: standardized features, this space, few rounds seen."""
        found = get_task(f"{self.model}-{dataset}-v0")
        less = self.of_dear if dataset in DEAR else {}
        axes, rates = {**self.axes, **less}, (1.0,) if less else self.rates
        seen = tuple(r for r in STORED_ROUNDS if r <= self.rounds)
        return found.variant(
            algorithm=self.algorithm,
            preprocessing="standardized",
            seeds=self.seeds,
            client_space=SearchSpace(tuple(itertools.starmap(_axis, axes.items()))),
            fidelity_space=SearchSpace(
                (
                    _axis("round", seen, "fidelity"),
                    _axis("client_sample_rate", rates, "fidelity"),
                )
            ),
        )


def _axis(name: str, values: tuple[Value, ...], scope: Scope = "client") -> Dimension:
    kind: Kind = "float" if isinstance(values[0], float) else "int"
    log = scope == "client"
    return Dimension(name, values[0], values[-1], kind, log=log, values=values, scope=scope)


def decades(low: float, high: float, per_decade: int = 2) -> tuple[float, ...]:
    """Return evenly spaced powers of ten, ends included; the ends are exponents."""
    count = round((high - low) * per_decade) + 1
    return tuple(float(f"{x:.3g}") for x in np.logspace(low, high, count))


SEARCHES: Mapping[str, Search] = {
    "LR": Search(
        "LR",
        {
            "learning_rate": decades(-3, 2.5),
            "weight_decay": decades(-5, 0, 1),
            "batch_size": (4, 16, 64, 256),
            "step_size": (1, 4, 16),
        },
        250,
        of_dear={"learning_rate": decades(-1.5, 2), "step_size": (1, 4)},
    ),
    "LR-fedopt": Search(
        "LR",
        {
            "learning_rate": decades(-2, 1.5),
            "weight_decay": (1e-4, 1e-2, 1e-1),
            "batch_size": (16, 64),
            "step_size": (1, 4),
        },
        250,
        "fedopt",
        (1.0,),
    ),
    "MLP": Search(
        "MLP",
        {
            "learning_rate": (0.003, 0.03, 0.3, 3.0),
            "weight_decay": (1e-5, 1e-3, 1e-1),
            "batch_size": (16, 128),
            "step_size": (1, 4),
            "model_depth": (1, 3),
            "model_width": (16, 128),
        },
        27,
        rates=(1.0,),
        seeds=(1,),
    ),
}


def compute(task: Task, folder: Path, workers: int) -> None:
    """Train what is missing of a task's grid, with a progress bar."""
    design = GridDesign(task)
    parts = folder / design.parts_name
    parts.mkdir(parents=True, exist_ok=True)
    units = design.missing(parts)
    if units:
        compute_units(design, units, parts, workers)


def is_finished(task: Task, folder: Path) -> bool:
    """Return whether nothing is missing of a task's grid."""
    design = GridDesign(task)
    return not design.missing(folder / design.parts_name)


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found on a data set.

    Attributes:
        axes: values of the hyperparameters, by name.
        rounds: (R,) rounds after which models were evaluated.
        rates: client sample rates.
        loss: (*grid, rates, seeds, R) validation loss of the best round so far, mean over the
            samples of all clients; infinite once a course has diverged.
        reference: (seeds,) validation loss of the training data's label frequencies.
    """

    axes: Mapping[str, tuple[Value, ...]]
    rounds: tuple[int, ...]
    rates: tuple[float, ...]
    loss: NDArray[np.float64]
    reference: NDArray[np.float64]

    def within(self, space: Mapping[str, Sequence[Value]]) -> Found:
        """Return the part of the grid that a smaller space holds."""
        loss, axes = self.loss, dict(self.axes)
        for place, (name, values) in enumerate(axes.items()):
            kept = [i for i, value in enumerate(values) if value in space.get(name, values)]
            loss = loss.take(kept, axis=place)
            axes[name] = tuple(values[i] for i in kept)
        return Found(axes, self.rounds, self.rates, loss, self.reference)

    def at(self, round_: int, rate: float) -> NDArray[np.float64]:
        """Return the (*grid, seeds) losses at a fidelity."""
        found: NDArray[np.float64] = self.loss[
            ..., self.rates.index(rate), :, self.rounds.index(round_)
        ]
        return found


def read(task: Task, folder: Path) -> Found:
    """Read what was trained of a task's grid.

    Raises:
        DamagedDataError: a unit is missing or damaged.
    """
    design = GridDesign(task)
    space = design.space
    samples = client_samples(task)
    rates = tuple(float(rate) for rate in task.fidelity_space["client_sample_rate"].grid)
    shape = (*space.grid_shape, len(rates), len(task.seeds), len(task.evaluated_rounds))
    loss = np.empty(shape)
    for unit in design.units():
        grid = design.shape(unit)
        stored = design.read(folder / design.parts_name, unit.name, math.prod(grid))
        of_seed = samples[task.seeds.index(unit.seed)]
        loss[design.place(unit)] = _curves(stored, of_seed).reshape(*grid, -1)
    axes = {d.name: d.grid for d in space.dimensions}
    reference = np.array([_label_frequencies(task, seed) for seed in task.seeds])
    return Found(axes, task.evaluated_rounds, rates, loss, reference)


def _curves(
    stored: Mapping[str, NDArray[np.floating]], samples: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the (courses, rounds) validation losses of the best rounds so far."""
    weights = samples[:, 1] / samples[:, 1].sum()
    loss = stored["metrics"][:, :, :, 1, 0].astype(np.float64) @ weights
    best = np.take_along_axis(loss, best_rounds(stored["metrics"], samples), axis=1)
    at = stored["diverged_at"][:, None]
    return np.where((at > 0) & (stored["rounds"] >= at), np.inf, best)


def _label_frequencies(task: Task, seed: int) -> float:
    """Return the loss on the validation data of predicting how often labels are in training."""
    federation = task_federation(task, seed)
    train, val = (
        np.concatenate([federation.labels[client[split]] for client in federation.clients])
        for split in (0, 1)
    )
    shares = np.bincount(train, minlength=task.num_classes) / len(train)
    return float(-np.log(shares[val]).mean())
