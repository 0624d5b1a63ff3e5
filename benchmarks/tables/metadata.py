"""The meta-data set: the same configurations, trained on every natural federation.

    python benchmarks/tables/metadata.py --out FOLDER

Every task gets the first points of one space-filling sequence (`fedhpo-gym build --sample`): of
spaces that are equal, all tasks have equal configurations, client sample rates and seeds. A tenth
of the configurations come under every seed. Curves hold eight rounds (five where there are five).

It goes over all tasks with few points, then again with more, and a larger sample begins with the
smaller one: whenever it is killed, all tasks have about as many courses, and the next run goes on
where it was. A task that cannot be computed is named and left for the next run. Samples lie in
FOLDER, finished units in FOLDER/parts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from fedhpo_gym.core.errors import FedHPOError
from fedhpo_gym.data.natural import NATURAL
from fedhpo_gym.tasks import Task, get_task

SIZES = {"LR": 24, "MLP": 8, "JointFew": 16, "JointPrivate": 16, "Joint": 16}
"""Courses of the first pass, by regime, cheap regimes first. A block of logistic regression is 24
courses, which share all but learning rate and weight decay; others share nothing."""
FACTORS = (1, 3, 11, 33)
"""How many times as many courses the passes have: the last are 792, 264 and 528."""
RATES = (0.1, 1.0)
REPEAT_EVERY = 10
ROWS = 20_000
"""Rows of the largest table that is used unless asked otherwise: six have more."""


def planned(
    regimes: Sequence[str], tables: Sequence[str], rows: int, factors: Sequence[int] = FACTORS
) -> Iterator[tuple[Task, int]]:
    """Yield tasks and how many courses they shall have, in the order of the passes.

    Args:
        regimes: of `SIZES`.
        tables: names of tables; all where there is none.
        rows: of the largest table.
        factors: of the passes.
    """
    chosen = [t for t in NATURAL if t.rows <= rows and (not tables or t.name in tables)]
    by_size = sorted(chosen, key=lambda table: table.rows)
    for factor in factors:
        for regime in regimes:
            for table in by_size:
                yield get_task(f"{regime}-{table.name}"), factor * SIZES[regime]


def main(words: Sequence[str] | None = None) -> int:
    """Go over the tasks; return how many could not be computed."""
    options = _parser().parse_args(words)
    plan = partial(planned, options.regimes, options.tables, options.rows, options.factors)
    if options.list:
        for task, size in plan():
            print(f"{task.id} {size}")
        return 0
    from fedhpo_gym.building.build import build_sample

    failed = set[str]()
    for task, size in plan():
        try:
            card = build_sample(
                task,
                size,
                rates=RATES,
                repeat_every=REPEAT_EVERY,
                folder=options.out,
                workers=options.workers,
            )
        except FedHPOError as error:
            failed.add(task.id)
            print(f"{task.id}: {error}", file=sys.stderr, flush=True)
            continue
        print(f"{task.id}: {size} courses in {card}", flush=True)
    return len(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/metadata"), metavar="FOLDER")
    parser.add_argument("--regimes", nargs="*", choices=tuple(SIZES), default=tuple(SIZES))
    parser.add_argument("--tables", nargs="*", default=(), metavar="NAME", help="only these")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of the largest table ({ROWS:,})")
    parser.add_argument("--factors", nargs="*", type=int, default=FACTORS, help="of the passes")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="say what would be computed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
