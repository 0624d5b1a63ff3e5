"""Raw mode, alone, against sampled cells of the tables: here bitwise, elsewhere within a tolerance.

Trains sampled courses one by one, encodes their metrics as tables do and compares the codes. Then
trains the same courses with other vector instructions (what another machine would use) and
reports how many cells differ by more than the tolerance: the chaotic ones, where large steps on
unscaled features amplify the last bit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import measuring
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.raw import Raw
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Fidelity
from fedhpo_gym.seeding import stream
from fedhpo_gym.tables import Table, codec, list_tables, open_table
from fedhpo_gym.tasks import task_of

TOLERANCE = 0.01
OTHER_MACHINE = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def sampled_cells(table: Table, count: int) -> list[tuple[int, ...]]:
    """Return (configuration grid.., rate, seed) positions, the same for every process."""
    rng = stream(0, "reproduce", *map(ord, table.name))
    shape = (*table.space.grid_shape, len(table.rates), len(table.seeds))
    return [tuple(int(rng.integers(n)) for n in shape) for _ in range(count)]


def train(table: Table, cell: tuple[int, ...]) -> tuple[dict[str, NDArray[np.generic]], float]:
    """Train one course alone; return its codes at all stored rounds, and its best loss."""
    seed = table.seeds[cell[-1]]
    backend = Raw(task_of(table.identity), seed)
    values = zip(table.space.dimensions, cell, strict=False)
    configuration = {dimension.name: dimension.grid[i] for dimension, i in values}
    samples = table.num_samples[cell[-1]]
    codes: dict[str, list[NDArray[np.generic]]] = {}
    for rounds in table.rounds:
        found = backend.evaluate(configuration, Fidelity(rounds, table.rates[cell[-2]]))
        assert found.current is not None  # noqa: S101 - raw always knows the current values
        for which, metrics in (("best", found.best[0]), ("current", found.current[0])):
            for s, split in enumerate(SPLITS):
                for m, metric in enumerate(METRICS):
                    code = codec.encode(metric, metrics[:, s, m], samples[:, s])
                    codes.setdefault(f"{which}_{split}_{metric}", []).append(code)
    return {name: np.stack(parts) for name, parts in codes.items()}, found.mean("val", "loss")


def equal_cells(table: Table, count: int) -> tuple[int, list[float]]:
    """Return how many sampled courses equal the table bit by bit, and all final best losses."""
    equal, losses = 0, []
    for cell in sampled_cells(table, count):
        codes, loss = train(table, cell)
        equal += all(
            np.array_equal(table.codes(name)[(slice(None), *cell)], found)
            for name, found in codes.items()
        )
        losses.append(loss)
    return equal, losses


def losses_elsewhere(name: str, count: int) -> NDArray[np.float64]:
    """Return the final best losses as other vector instructions compute them."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "losses.npy"
        command = [sys.executable, __file__, "--cells", str(count), "--losses", name, str(out)]
        subprocess.run(command, check=True, env={**os.environ, **OTHER_MACHINE})
        return np.asarray(np.load(out, allow_pickle=False))


def row(name: str, count: int) -> str:
    """Return one line of the report."""
    table = open_table(name)
    equal, losses = equal_cells(table, count)
    elsewhere = losses_elsewhere(name, count)
    change = np.abs(elsewhere - losses) / np.maximum(np.abs(losses), 1e-12)
    chaotic = (change > TOLERANCE).mean()
    return (
        f"| {name} | {count} | {equal / count:.0%} | {(elsewhere == losses).mean():.0%} "
        f"| {np.median(change):.1e} | {chaotic:.0%} |"
    )


HEADER = (
    "| table | cells | bitwise equal here | equal with other instructions "
    "| median relative change "
    f"| changed by more than {TOLERANCE:.0%} |\n|---|---|---|---|---|---|"
)


def main(argv: Sequence[str] | None = None) -> str:
    """Print the table and write it to a file."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--cells", type=int, default=20, help="sampled courses per table")
    parser.add_argument("--tables", nargs="*", help="names of tables; all by default")
    parser.add_argument("--losses", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.losses:
        table = open_table(arguments.losses[0])
        losses = [train(table, cell)[1] for cell in sampled_cells(table, arguments.cells)]
        np.save(arguments.losses[1], np.array(losses))
        return ""
    load = measuring.load_average()
    names = arguments.tables or [name for name in list_tables() if name.startswith("LR-")]
    text = "\n".join([HEADER, *(row(name, arguments.cells) for name in names)])
    command = ["python", "benchmarks/reproduce_cells.py", f"--cells {arguments.cells}"]
    if arguments.tables:
        command += ["--tables", *arguments.tables]
    title = "Cells of tables trained again"
    return measuring.write_report(arguments.out, title, command, load, [text])


if __name__ == "__main__":
    main()
