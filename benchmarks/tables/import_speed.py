"""What `fedhpo-gym import` takes of a table as large as FedHPO-Bench's of logistic regression.

The rows are made up, in the layout of the originals: 3,840 courses of 380 evaluations.
"""

from __future__ import annotations

import gzip
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[1])]
sys.path += [str(Path(__file__).resolve().parents[2] / "tests" / "support")]

import measuring

from fedhpo_bench import made_rows, result_of

GRID = {
    "sample_client": (0.2, 0.4, 0.6, 0.8, 1.0),
    "lr": (0.00001, 0.0001, 0.001, 0.01),
    "wd": (0.0, 0.001, 0.01, 0.1),
    "batch": (4.0, 8.0, 16.0, 32.0),
    "step": (1.0, 2.0, 3.0, 4.0),
    "seed": (1.0, 2.0, 3.0),
}


def write(path: Path, entries: int) -> tuple[int, float]:
    """Write a table; return its rows, and the characters of a row in thousands."""
    rows = 0
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
        file.write(",".join([*GRID, "result"]) + "\n")
        for rows, values in enumerate(itertools.product(*GRID.values()), start=1):
            point = {name: (value,) for name, value in zip(GRID, values, strict=True)}
            [row] = made_rows(point, entries, seed=rows)
            line = ",".join([*map(str, values), f'"{result_of(row)}"\n'])
            file.write(line)
    return rows, len(line) / 1000


def read(path: Path, folder: Path) -> tuple[float, float]:
    """Import a table; return the seconds, and the megabytes above the interpreter."""
    from fedhpo_gym.building.fedhpo_bench import find_archives, import_archive

    [archive] = find_archives(path)
    before = measuring.peak_rss_mb()
    with measuring.stopwatch() as spent:
        import_archive(archive, folder)
    return spent.cpu_s, measuring.peak_rss_mb() - before


def main(argv: Sequence[str] | None = None) -> str:
    """Measure and write the table."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--entries", type=int, default=380, help="evaluations of a course (380)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lr" / "31" / "avg" / "tabular.csv.gz"
        path.parent.mkdir(parents=True)
        rows, thousands = write(path, options.entries)
        (seconds, megabytes), _ = measuring.in_fresh_process(read, path, Path(folder))
    cells = [f"{rows:,}", f"{thousands:.0f}", f"{1000 * seconds / rows:.1f}", f"{megabytes:.0f}"]
    heads = ("rows", "thousand characters a row", "seconds per 1,000 rows", "MB above the packages")
    return measuring.write_report(options, "Importing a table", measuring.table(heads, [cells]))


if __name__ == "__main__":
    measuring.run(main)
