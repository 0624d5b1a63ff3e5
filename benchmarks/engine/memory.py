"""How much memory a worker of `fedhpo-gym build` needs: peak resident set of one unit.

A unit is all courses of one batch size and one seed; it is computed exactly as a build with one
worker does, in a fresh process, and its result file is thrown away.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring

from fedhpo_gym.backends.training import task_federation
from fedhpo_gym.building.build import compute_unit
from fedhpo_gym.building.design import GridDesign, GridUnit
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.tasks import Task, get_task

SIZES = (4, 256)


def shortened(task: Task, rounds: int) -> Task:
    """Return the task with fewer rounds per course."""
    full = task.fidelity_space["round"]
    kept = replace(full, high=rounds, bins=rounds)
    return task.variant(
        fidelity_space=SearchSpace((kept, task.fidelity_space["client_sample_rate"]))
    )


def unit_of(task: Task, size: int) -> GridUnit:
    """Return the unit of the first seed and one batch size."""
    return GridUnit(task.seeds[0], (("batch_size", size),))


def build_unit(task: Task, size: int) -> tuple[float, int]:
    """Compute one unit: the peak before it in MB, and the bytes of its result."""
    unit = unit_of(task, size)
    task_federation(task, unit.seed)
    before = measuring.peak_rss_mb()
    with tempfile.TemporaryDirectory() as folder:
        compute_unit(GridDesign(task), unit, Path(folder))
        return before, (Path(folder) / f"{unit.name}.npz").stat().st_size


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the table and write it to a file."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--task", default="LR-CreditG-v0")
    parser.add_argument("--rounds", type=int, default=500, help="rounds of a course")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args(argv)
    task = get_task(options.task)
    if options.rounds < task.max_round:
        task = shortened(task, options.rounds)
    rows = []
    for size in options.batch_sizes:
        (before, written), peak = measuring.in_fresh_process(build_unit, task, size)
        count = len(GridDesign(task).courses(unit_of(task, size)))
        megabytes = (f"{before:.0f}", f"{peak:.0f}", f"{written / 1e6:.1f}")
        rows.append([f"batch size {size}", count, *megabytes])
    header = ("unit", "courses", "peak RSS before, MB", "peak RSS, MB", "result, MB")
    return measuring.write_report(
        options,
        "Memory of a build",
        f"Table {task.table_name}, {task.max_round} rounds, seed {task.seeds[0]}. MB are 10^6 "
        "bytes. The peak before is that of the interpreter with torch and the data loaded.",
        measuring.table(header, rows),
    )


if __name__ == "__main__":
    measuring.run(main)
