"""Which queries the truth of a trial environment is asked at."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import StoredBackend
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.envs.trial.setup import Columns, TrialSetup

MAX_QUERIES = 100_000
"""Queries of a surrogate that are asked; of a larger grid so many are drawn without replacement."""
DRAWS = 1 << 13
"""Configurations of a surrogate that are drawn and asked besides, at full fidelity."""


@dataclass(frozen=True, eq=False)
class Asked:
    """Queries: some positions on a grid, then some between.

    Attributes:
        lattice: the setup whose grid it is.
        cells: (n,) positions on the flattened grid.
        drawn: what lies between, by dimension; empty if nothing does.
    """

    lattice: TrialSetup
    cells: NDArray[np.int64]
    drawn: Columns

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.cells) + len(next(iter(self.drawn.values()), ()))

    def columns(self, rows: NDArray[np.int64]) -> Columns:
        """Return some of the queries, in ascending order."""
        number = len(self.cells)
        inside, between = rows[rows < number], rows[rows >= number] - number
        found = self.lattice.columns_at(self.cells[inside])
        if not len(between):
            return found
        return {name: np.concatenate([v, self.drawn[name][between]]) for name, v in found.items()}


def asked_of(lattice: TrialSetup, setup: TrialSetup) -> Asked:
    """Return what a setup is asked: the grid of `lattice`, and draws where there is more.

    Args:
        lattice: the setup on its grid; `setup` itself, if nothing else can be asked for.
        setup: the setup.
    """
    size = lattice.search_space.grid_size
    cells = np.arange(size)
    if size > MAX_QUERIES and not isinstance(setup.backend, StoredBackend):
        cells = np.sort(stream(0, "truth_cells").choice(size, MAX_QUERIES, replace=False))
    if lattice is setup:
        return Asked(lattice, cells, {})
    drawn = _drawn(setup)
    if len(cells) < size:  # then all of full fidelity at least
        highest = _at_the_top(lattice)
        drawn = {name: np.concatenate([v, highest[name]]) for name, v in drawn.items()}
    return Asked(lattice, cells, drawn)


def _at_the_top(lattice: TrialSetup) -> Columns:
    """Return the configurations of the grid at the highest fidelity, `MAX_QUERIES` at most."""
    top = replace(lattice.at_full_fidelity, grid=True)
    size = top.search_space.grid_size
    cells = np.arange(size)
    if size > MAX_QUERIES:
        cells = np.sort(stream(0, "truth_top").choice(size, MAX_QUERIES, replace=False))
    columns = Asked(top, cells, {}).columns(np.arange(len(cells)))
    # What is fixed stays: an environment of round 27 cannot ask for the last one.
    return {**columns, **{name: np.full(len(cells), v) for name, v in lattice.fixed.items()}}


def _drawn(setup: TrialSetup) -> Columns:
    """Return `DRAWS` random configurations at the highest fidelity that may be asked for."""
    space, rng = setup.search_space, stream(0, "truth_queries")
    columns = dict(setup.columns(rng.uniform(-1.0, 1.0, (DRAWS, len(space)))))
    for dimension in space.dimensions:
        if dimension.name in setup.backend.fidelity_space.names:
            columns[dimension.name] = np.full(DRAWS, dimension.high)
    return columns
