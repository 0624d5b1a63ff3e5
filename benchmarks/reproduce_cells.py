"""Sampled cells of stored tables, trained again by today's engine: how far their losses move.

Tables were computed by the engine before compiled kernels, which adds in another order. Where a
course is stable, only the last digits move. Where a learning rate far above the stable one
amplifies the last bit within some hundred rounds, a number is one draw from the noise of training.
"""

from __future__ import annotations

from collections.abc import Sequence

import measuring
import numpy as np

from fedhpo_gym.backends.raw import Raw
from fedhpo_gym.backends.tabular import Tabular
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.seeding import stream
from fedhpo_gym.tables import Table, list_tables, open_table
from fedhpo_gym.tasks import task_of

TOLERANCES = (2**-9, 0.01)
"""What rounding to a table's codes may change (`fedhpo_gym/tables/codec.py`), and what matters."""
HEADER = (
    "| table | cells | median relative change of the best validation loss | "
    + " | ".join(f"changed by more than {one:.1%}" for one in TOLERANCES)
    + " |\n|---|---:|---:|---:|---:|"
)


def changes(table: Table, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return by which share of themselves the best losses of some cells move at the last round."""
    task, rng = task_of(table.identity), stream(0, "reproduce", *map(ord, table.name))
    found = []
    for _ in range(count):
        configuration = {d.name: d.grid[rng.integers(len(d.grid))] for d in table.space.dimensions}
        rate = table.rates[rng.integers(len(table.rates))]
        seed = table.seeds[rng.integers(len(table.seeds))]
        asked = configuration, Fidelity(table.rounds[-1], rate)
        stored, trained = (
            backend.evaluate(*asked).mean("val", "loss")
            for backend in (Tabular(task, seed), Raw(task, seed))
        )
        found.append(abs(trained - stored) / max(abs(stored), 1e-12))
    return np.array(found)


def row(name: str, count: int) -> str:
    """Return one line of the report."""
    change = changes(open_table(name), count)
    shares = " | ".join(f"{(change > one).mean():.0%}" for one in TOLERANCES)
    return f"| {name} | {count} | {np.median(change):.1e} | {shares} |"


def main(argv: Sequence[str] | None = None) -> str:
    """Print the table and write it to a file."""
    parser = measuring.parser(__file__, __doc__)
    parser.add_argument("--cells", type=int, default=20, help="sampled courses per table")
    parser.add_argument("--tables", nargs="*", help="names of tables; all by default")
    arguments = parser.parse_args(argv)
    load = measuring.load_average()
    text = "\n".join(
        [HEADER, *(row(n, arguments.cells) for n in arguments.tables or list_tables())]
    )
    command = ["python", "benchmarks/reproduce_cells.py", f"--cells {arguments.cells}"]
    if arguments.tables:
        command += ["--tables", *arguments.tables]
    title = "Cells of tables trained again"
    return measuring.write_report(arguments.out, title, command, load, [text])


if __name__ == "__main__":
    main()
