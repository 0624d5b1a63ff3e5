"""Cells of stored tables and courses of samples, trained again: how far do their numbers move?

Older numbers were computed by engines that add in another order, or on other processors. Where a
course is stable, only the last digits move. Where a learning rate far above the stable one
amplifies the last bit, a number is one draw from the noise of training. Of tables the lowest
validation loss up to the last round is compared, of samples the validation accuracy of the best
round up to `--rounds`.

    python benchmarks/tables/reproduce_cells.py --cells 2 --only "LR-B*" --samples
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fnmatch import filter as matching
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.backends.raw import Raw
from fedhpo_gym.backends.tabular import Tabular
from fedhpo_gym.core.errors import MissingDataError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.stored.catalogue import list_tables, open_sample, open_table
from fedhpo_gym.tasks import task_of

SAMPLES = ("GNN-Cora-fedavg", "MLP-Car-v1-fedavg-standardized", "CNN-FEMNIST-fedavg")
TOLERANCES = (2**-9, 0.01)
"""What rounding to a table's codes may change (`fedhpo_gym/stored/codec.py`), and what matters."""


def table_changes(name: str, count: int) -> NDArray[np.float64]:
    """Return (cells,) shares by which the lowest losses of drawn cells move."""
    table, rng = open_table(name), stream(0, "reproduce", *map(ord, name))
    task, changes = task_of(table.identity), []
    for _ in range(count):
        configuration = {d.name: d.grid[rng.integers(len(d.grid))] for d in table.space.dimensions}
        fidelity = Fidelity(table.rounds[-1], table.rates[rng.integers(len(table.rates))])
        seed = table.seeds[rng.integers(len(table.seeds))]
        stored, trained = (
            backend.evaluate(configuration, fidelity).mean("val", "loss")
            for backend in (Tabular(task, seed), Raw(task, seed))
        )
        changes.append(abs(trained - stored) / max(abs(stored), 1e-12))
    return np.array(changes)


def sample_changes(name: str, count: int, rounds: int) -> NDArray[np.float64]:
    """Return (courses,) differences of the accuracies of drawn courses after some rounds."""
    sample = open_sample(name)
    task, accuracies = task_of(sample.identity), sample.objective("val", "accuracy")
    place = max(i for i, stored in enumerate(sample.rounds) if stored <= rounds)
    drawn = stream(0, "reproduce", *map(ord, name)).permutation(len(sample))[:count]
    changes = []
    for course in drawn.tolist():
        seed = sample.seeds[int(sample.codes("seed")[course])]
        rate = float(sample.codes("client_sample_rate")[course])
        fidelity = Fidelity(sample.rounds[place], rate)
        trained = Raw(task, seed).evaluate(sample.configurations()[course], fidelity)
        changes.append(abs(trained.mean("val", "accuracy") - accuracies[course, place]))
    return np.array(changes)


def main(argv: Sequence[str] | None = None) -> str:
    """Train, compare, print the tables and write them to a file."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--cells", type=int, default=20, help="of every table (20)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of tables")
    parser.add_argument("--samples", nargs="*", default=SAMPLES, help="names of samples")
    parser.add_argument("--courses", type=int, default=5, help="of every sample (5)")
    parser.add_argument("--rounds", type=int, default=9, help="of courses of samples (9)")
    options = parser.parse_args(argv)
    tables, samples = [], []
    for name in tqdm(matching(list_tables(), options.only), disable=None):
        change = table_changes(name, options.cells)
        shares = [f"{(change > tolerance).mean():.0%}" for tolerance in TOLERANCES]
        tables.append([name, options.cells, f"{np.median(change):.1e}", *shares])
    for name in options.samples:
        try:
            change = sample_changes(name, options.courses, options.rounds)
            samples.append([name, len(change), ", ".join(f"{x:.4f}" for x in np.sort(change))])
        except MissingDataError:
            samples.append([name, 0, "no data here"])
    head = ("table", "cells", "median relative change of the lowest validation loss")
    return measuring.write_report(
        options,
        "Cells trained again",
        measuring.table((*head, *(f"changed by more than {t:.1%}" for t in TOLERANCES)), tables),
        f"Courses of samples, up to round {options.rounds}:",
        measuring.table(("sample", "courses", "validation accuracy differs by"), samples),
    )


if __name__ == "__main__":
    measuring.run(main)
