"""The wide grids of `choose_spaces.py`, and what is read off their learning curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.building.grid import GridDesign
from fedhpo_gym.building.provenance import client_samples
from fedhpo_gym.building.workers import compute_units
from fedhpo_gym.evaluation.best import best_rounds
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.tasks import Task, get_task
from fedhpo_gym.tasks.federated import STORED_ROUNDS

SEEDS = (1, 2)
RATES = (0.2, 1.0)
DATASETS = tuple(
    "BloodTransfusion BreastCancer Australian CreditG Car Vehicle KC1 Segment Digits".split()
)
"""From cheap to dear."""


@dataclass(frozen=True)
class Search:
    """A wide grid of one family.

    Attributes:
        model: the family.
        axes: values of the client-side hyperparameters, by name.
        rounds: rounds of a course.
        algorithm: FL algorithm; its own grid is searched, too.
        rates: client sample rates.
    """

    model: str
    axes: Mapping[str, tuple[Value, ...]]
    rounds: int
    algorithm: str = "fedavg"
    rates: tuple[float, ...] = RATES

    def task(self, dataset: str) -> Task:
        """Return the problem on a data set: standardized features, this space, few rounds seen."""
        found = get_task(f"{self.model}-{dataset}-v0")
        seen = tuple(r for r in STORED_ROUNDS if r <= self.rounds)
        fidelity = (
            dict(name="round", kind="int", values=seen),
            dict(name="client_sample_rate", kind="float", values=self.rates),
        )
        return found.variant(
            algorithm=self.algorithm,
            preprocessing="standardized",
            seeds=SEEDS,
            client_space=SearchSpace(tuple(itertools.starmap(_axis, self.axes.items()))),
            fidelity_space=SearchSpace(
                tuple(
                    Dimension(low=d["values"][0], high=d["values"][-1], scope="fidelity", **d)
                    for d in fidelity
                )
            ),
        )


def _axis(name: str, values: tuple[Value, ...]) -> Dimension:
    kind = "float" if isinstance(values[0], float) else "int"
    return Dimension(name, values[0], values[-1], kind, log=values[0] > 0, values=values)


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
            "learning_rate": decades(-3, 1, 1),
            "weight_decay": (1e-5, 1e-3, 1e-1),
            "batch_size": (16, 64, 256),
            "step_size": (1, 4),
            "model_depth": (1, 3),
            "model_width": (16, 64, 256),
        },
        100,
        "fedavg",
        (1.0,),
    ),
}


def compute(search: Search, dataset: str, folder: Path, workers: int) -> None:
    """Train what is missing of a search on a data set, with a progress bar."""
    design = GridDesign(search.task(dataset))
    parts = folder / design.parts_name
    parts.mkdir(parents=True, exist_ok=True)
    units = design.missing(parts)
    if units:
        compute_units(design, units, parts, workers)
