"""What a user, a disk or a stranger's file can do to the package, tried thousands of times.

One table: how often an attack was tried, and what came of it. *Documented* is an error of this
package that says what is wrong. The last five columns are faults: another exception; a damaged file
that gives other answers; a result that is lost or torn; no end within the limit; more memory than
the limit. `--sample` tries a little of everything in under a minute.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
from attacks.calls import bad_calls
from attacks.cards import cards
from attacks.conversations import conversations
from attacks.elsewhere import KINDS as OTHERS
from attacks.elsewhere import small_files
from attacks.files import KINDS as OURS
from attacks.files import PAIRS
from attacks.machines import full_disks
from attacks.programs import programs
from attacks.readers import forge, fuzz
from attacks.signals import interrupts
from attacks.soak import soak, soaked
from attacks.users import users
from attacks.verdicts import KINDS, Tally
from attacks.writers import beside, kills, two_writers

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.append(str(CHECKOUT / "tests" / "support"))  # what tests make up is attacked, too

FILES = (*OURS, *OTHERS)
Job = Callable[..., list[Tally]]
MEMORY = Path("/dev/shm")  # noqa: S108 - folders in it have names that nobody can foresee
"""Files are kept in memory where the system allows: the disk is not what is tested."""
HEADER = (
    "attack", "tried", "as before", "documented error", "undocumented", "silent", "lost", "hung",
    "above memory",
)  # fmt: skip


def jobs(scale: float, seed: int, room: Path) -> list[tuple[Job, tuple[object, ...]]]:
    """Return the attacks; a scale of 1 is the whole run."""

    def some(whole: int, least: int) -> int:
        return max(least, int(whole * scale))

    made: list[tuple[Job, tuple[object, ...]]] = []
    for i, kind in enumerate(FILES):
        made.append((_fuzz, (i, some(1000, 8), seed, room)))
        if kind in PAIRS:
            made.append((_forge, (i, some(300, 6), seed, room)))
    made.append((small_files, (room,)))
    made.append((cards, (some(600, 3), seed, room)))
    made.append((conversations, (some(600, 6), seed, room)))
    made.append((programs, (some(200, 6), seed, room)))
    made.append((bad_calls, (some(6000, 34), seed)))
    made.append((kills, (some(60, 2), seed, room)))
    made.append((two_writers, (some(20, 1), room)))
    made.append((beside, (some(20, 1), room)))
    made.append((full_disks, (some(10, 1), seed)))
    made.append((interrupts, (some(30, 1), seed, room)))
    made.append((users, (64 if scale else 8, room)))
    return made


def _fuzz(kind: int, count: int, seed: int, room: Path) -> list[Tally]:
    return [fuzz(FILES[kind], kind, count, seed, room)]


def _forge(kind: int, count: int, seed: int, room: Path) -> list[Tally]:
    return [forge(FILES[kind], kind, count, seed, room)]


def _apart(job: Job, *arguments: object) -> list[Tally]:
    """Attack; folders that one attack sets, such as an empty cache, are not the next one's."""
    with patch.dict(os.environ):
        return job(*arguments)


def attack(
    scale: float, seed: int, workers: int, steps: int, only: Sequence[str] = ()
) -> tuple[list[Tally], list[list[str]]]:
    """Do everything, or `only` some; return the tallies, and the rows of the table of the soak."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        todo = jobs(scale, seed, Path(folder))
        names = {one[0].__name__.strip("_") for one in todo} | {"soak"}
        if unknown := {*only} - names:
            raise SystemExit(f"--only must be of {sorted(names)}, got {sorted(unknown)}")
        todo = [one for one in todo if not only or one[0].__name__.strip("_") in only]
        with ProcessPoolExecutor(workers, get_context("fork")) as pool:
            running = [pool.submit(_apart, job, *arguments) for job, arguments in todo]
            tallies = [tally for done in running for tally in done.result()]
        rows = [soak(name, steps) for name in soaked()] if not only or "soak" in only else []
    return tallies + [tally for tally, _ in rows], [row for _, row in rows]


def row(tally: Tally) -> list[str]:
    """Return a tally as a row of the table."""
    numbers = [sum(tally.counts.values()), *(tally.counts[kind] for kind in KINDS)]
    return [tally.name, *(f"{n:,}" for n in numbers)]


def total(tallies: Sequence[Tally]) -> Tally:
    """Return the sum of all tallies."""
    every = Tally("all")
    for tally in tallies:
        every.counts += tally.counts
    return every


def sections(tallies: Sequence[Tally], soaks: Sequence[Sequence[str]], seed: int) -> list[str]:
    """Return the tables, and the first faults of each kind with the numbers of their cases."""
    lines = [
        f"- {tally.name}, {kind}: {said}".replace("\n", " ")
        for tally in tallies
        for kind, kept in tally.faults.items()
        for said in kept
    ]
    return [
        f"Seed {seed}. Files of this package must answer bit for bit as before, or not at all. "
        "Files in other people's formats carry no checksum: there, only what the format itself "
        "shows counts as silent, such as numbers that are not finite and labels that are none.",
        measuring.table(HEADER, [*map(row, tallies), row(total(tallies))]),
        *_soak_section(soaks),
        "## Faults",
        "\n".join(lines) or "None.",
    ]


def _soak_section(soaks: Sequence[Sequence[str]]) -> list[str]:
    heads = ("environment", "steps", "memory, MB", "open files", "threads")
    words = "Before and after the steps, once the caches are warm."
    return ["## Soak", words, measuring.table(heads, soaks)] if soaks else []


def main(argv: Sequence[str] | None = None) -> str:
    """Attack, and write the report."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--sample", action="store_true", help="a little of everything")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the whole run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_000_000, help="of the soak, in all")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="such as `cards`")
    options = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    scale = 0.0 if options.sample else options.scale
    steps = 1_000 if options.sample else options.steps
    tallies, soaks = attack(scale, options.seed, options.workers, steps, options.only)
    text = sections(tallies, soaks, options.seed)
    return measuring.write_report(options, "What breaks it", *text)


if __name__ == "__main__":
    measuring.run(main)
