"""How much of a table a reward can order: before, under a clip, and after, squashed.

A cell is a configuration, a number of rounds and a client sample rate. Its reward is the score of
the validation loss as float32, what an agent gets. It is saturated where it equals the lowest
reward there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import measuring
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.objectives import TRANSFORMS, get_objective
from fedhpo_gym.tables import list_tables, open_table

HEADER = (
    "table",
    "cells",
    "different losses",
    *(f"{word}, {name}" for name in TRANSFORMS for word in ("saturated", "different rewards")),
)


def rewards(losses: NDArray[np.float64], transform: str) -> tuple[NDArray[np.float32], np.float32]:
    """Return the (cells,) rewards of losses, and the lowest reward there is."""
    objective = get_objective("val_loss").with_transform(transform)
    found: NDArray[np.float32] = -objective.errors(losses).astype(np.float32)
    return found, np.float32(objective.score_bounds[0])


def row(name: str) -> Iterable[str]:
    """Return the row of a table."""
    losses = open_table(name).objective("val", "loss").mean(axis=-1).ravel()
    yield from (name, f"{losses.size:,}", f"{len(np.unique(losses)):,}")
    for transform in TRANSFORMS:
        found, lowest = rewards(losses, transform)
        yield from (f"{100 * np.mean(found == lowest):.1f}%", f"{len(np.unique(found)):,}")


def main(argv: Sequence[str] | None = None) -> str:
    """Print the table and write it to a file."""
    arguments = measuring.parser(__file__, __doc__).parse_args(argv)
    load = measuring.load_average()
    rows = [list(row(name)) for name in list_tables()]
    command = ["python", "benchmarks/reward_saturation.py"]
    sections = [measuring.table(HEADER, rows)]
    return measuring.write_report(arguments.out, "Saturated rewards", command, load, sections)


if __name__ == "__main__":
    main()
