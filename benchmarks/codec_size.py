"""Bytes and reading time of stored curves: `python benchmarks/codec_size.py [FOLDER ...]`.

Every table and sample in the package, and in the folders named, is written in format 1 (arrays,
each packed by LZMA), in format 2 (curves predicted and entropy coded) and by
`numpy.savez_compressed`, read back, and compared number by number. "raw" is what the same numbers
take as they are used: losses and macro-F1 as float32 or float16, hits as they are stored.
Processor seconds of one core, the faster of two. It writes results/codec_size.md.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measuring import RESULTS, stopwatch

from fedhpo_gym.archive import write_archive
from fedhpo_gym.tables.locate import EMBEDDED
from fedhpo_gym.tables.packed import ENTRY
from fedhpo_gym.tables.sample import Sample, write_sample
from fedhpo_gym.tables.store import Table, write_table
from fedhpo_gym.tables.stored import PLAIN, StoredCurves

WRITTEN = {ENTRY, "format", "arrays", "sha256", "bytes", "card_sha256"}
REPEATS = 2
COLUMNS = (
    *("curves", "numbers", "float32", "float16", "npz", "format 1", "format 2", "2 / 1"),
    *("bits per number", "read 1", "read 2"),
)


def opened(card: Path) -> StoredCurves:
    """Return the table or sample of a card."""
    return Table(card) if card.name.endswith(".table.json") else Sample(card)


def arrays_of(stored: StoredCurves) -> dict[str, Any]:
    """Return all arrays."""
    return {name: stored.codes(name) for name in stored.names}


def seconds(work: Callable[[], object]) -> float:
    """Return processor seconds of the fastest of some repetitions."""
    found = []
    for _ in range(REPEATS):
        with stopwatch() as spent:
            work()
        found.append(spent.cpu_s)
    return min(found)


def measure(card: Path, folder: Path) -> list[float]:
    """Return numbers, five sizes in bytes, and two reading times.

    Raises:
        ValueError: what is read is not what was written.
    """
    stored = opened(card)
    arrays = arrays_of(stored)
    said = {name: value for name, value in stored.card.items() if name not in WRITTEN}
    stem = card.name.removesuffix(".json")
    plain = card
    if stored.card["format"] != PLAIN:
        plain = write_archive(folder / "1", stem, {**said, "format": PLAIN}, arrays)
    write = write_table if isinstance(stored, Table) else write_sample
    packed = write(folder / "2", said, arrays)
    np.savez_compressed(folder / "numpy.npz", **arrays)
    for path in (plain, packed):
        found = arrays_of(opened(path))
        if any(not np.array_equal(found[name], array) for name, array in arrays.items()):
            raise ValueError(f"{path} does not give back what was written")
    times = [seconds(lambda path=path: arrays_of(opened(path))) for path in (plain, packed)]
    rest = sum(a.nbytes for n, a in arrays.items() if not n.endswith(("_loss", "_f1")))
    floats = sum(a.size for n, a in arrays.items() if n.endswith(("_loss", "_f1")))
    sizes = [4 * floats + rest, 2 * floats + rest, (folder / "numpy.npz").stat().st_size]
    sizes += [opened(path).card["bytes"] for path in (plain, packed)]
    return [sum(array.size for array in arrays.values()), *sizes, *times]


def row(name: str, found: list[float]) -> str:
    """Return a line of the table."""
    numbers, *sizes, first, second = found
    cells = [name, f"{numbers:,.0f}", *(f"{size:,.0f}" for size in sizes)]
    cells += [f"{sizes[-1] / sizes[-2]:.2f}", f"{8 * sizes[-1] / numbers:.2f}"]
    return "| " + " | ".join([*cells, f"{first:.2f} s", f"{second:.2f} s"]) + " |\n"


def rows(folders: list[Path]) -> Iterator[str]:
    """Yield the lines of the table, then sums."""
    total = np.zeros(8)
    for kind in ("table", "sample"):
        for card in [path for f in folders for path in sorted(f.glob(f"*.{kind}.json"))]:
            with tempfile.TemporaryDirectory() as home:
                found = measure(card, Path(home))
            total += found
            yield row(card.name.removesuffix(".json"), found)
    yield row("all", total.tolist())


def main(arguments: list[str]) -> int:
    """Write and print the table."""
    text = f"# Bytes of stored curves\n\n{(__doc__ or '').split(chr(10), 2)[2]}\n"
    text += f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"
    sys.stdout.write(text)
    for line in rows([*(Path(argument) for argument in arguments), EMBEDDED]):
        sys.stdout.write(line)
        sys.stdout.flush()
        text += line
    (RESULTS / "codec_size.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
