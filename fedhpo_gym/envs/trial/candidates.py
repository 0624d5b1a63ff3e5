"""Which queries the truth of a trial environment is asked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import StoredBackend
from fedhpo_gym.envs.trial.setup import Columns, TrialSetup
from fedhpo_gym.evaluation.records import METRICS
from fedhpo_gym.seeding import stream

MAX_QUERIES = 100_000
"""Queries of a surrogate that are asked; of a larger grid so many are drawn without replacement."""
DRAWS = 1 << 13
"""Configurations of a surrogate that are drawn and asked besides, at full fidelity."""


@dataclass(frozen=True, eq=False)
class Queries:
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


def queries_of(lattice: TrialSetup, setup: TrialSetup) -> Queries:
    """Return what a setup is asked: the grid of `lattice`, and draws where there is more."""
    size = lattice.search_space.grid_size
    cells = np.arange(size)
    if size > MAX_QUERIES and not isinstance(setup.backend, StoredBackend):
        cells = np.sort(stream(0, "truth_cells").choice(size, MAX_QUERIES, replace=False))
    if lattice is setup:
        return Queries(lattice, cells, {})
    drawn = _drawn(setup)
    if len(cells) < size:  # then all of full fidelity at least
        highest = _at_the_top(lattice)
        drawn = {name: np.concatenate([v, highest[name]]) for name, v in drawn.items()}
    return Queries(lattice, cells, drawn)


def _at_the_top(lattice: TrialSetup) -> Columns:
    """Return the configurations of the grid at the highest fidelity, `MAX_QUERIES` at most."""
    top = replace(lattice.at_full_fidelity, grid=True)
    size = top.search_space.grid_size
    cells = np.arange(size)
    if size > MAX_QUERIES:
        cells = np.sort(stream(0, "truth_top").choice(size, MAX_QUERIES, replace=False))
    columns = Queries(top, cells, {}).columns(np.arange(len(cells)))
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


STARTS, FEWEST = 64, 8
"""Places that the search starts from, the best queries that are known, and how many at least."""
MOVES = 16
"""Queries that every place asks in a round."""
ROUNDS = 60
"""Rounds of the search."""
MOST_METRICS = 1 << 28
"""Metrics of clients that a search asks for: with thousands of clients it starts from fewer places,
or a truth takes minutes."""
WIDEST, NARROWEST = 0.5, 1e-3
"""Standard deviation of moves in the first and in the last round; coordinates lie in [-1, 1]."""

Numbers = NDArray[np.float64]


def local_search(
    setup: TrialSetup, asked: Queries, values: Numbers, ask: Callable[[Queries], Numbers]
) -> tuple[Queries, Numbers]:
    """Search for the best value of the first objective from the best queries that are known.

    Each place asks `MOVES` queries around itself: half of them move one coordinate, the others all
    that differ between two places, as differential evolution does (Storn and Price, 1997), or all
    coordinates a little. It goes to the best of them where that is better. Steps shrink
    geometrically. Feasible queries are better than others (`evaluation.constraints`).

    Args:
        asked: (B,) queries that are known.
        values: (B, objectives) what they answered.
    """
    rng, space = stream(0, "truth_climbing"), setup.search_space
    per_place = setup.backend.num_samples.size * len(METRICS) * MOVES * ROUNDS
    best = _best(setup, values)[: min(STARTS, max(FEWEST, MOST_METRICS // per_place))]
    columns = asked.columns(np.sort(best))
    places = np.column_stack([d.encode_many(columns[d.name]) for d in space.dimensions])
    found = values[np.sort(best)]
    nothing = replace(asked, cells=asked.cells[:0])
    for scale in np.geomspace(WIDEST, NARROWEST, ROUNDS):
        moved = _moved(places, scale, rng)
        answers = ask(replace(nothing, drawn=setup.columns(moved.reshape(-1, len(space)))))
        answers = np.concatenate([found[:, None], answers.reshape(*moved.shape[:2], -1)], axis=1)
        moved = np.concatenate([places[:, None], moved], axis=1)
        chosen = np.array([_best(setup, rows)[0] for rows in answers])
        each = np.arange(len(places))
        places, found = moved[each, chosen], answers[each, chosen]
    ends = setup.columns(places)
    drawn = {name: np.concatenate([asked.drawn[name], ends[name]]) for name in ends}
    return replace(asked, drawn=drawn), np.concatenate([values, found])


def _best(setup: TrialSetup, values: Numbers) -> NDArray[np.int64]:
    """Return the rows of (B, objectives) values, the best one first; of equals the first."""
    errors = setup.objectives[0].unclipped_errors(values[:, 0])
    return np.lexsort((errors, setup.violations(values)))


def _moved(places: Numbers, scale: float, rng: np.random.Generator) -> Numbers:
    """Return (P, MOVES, n) points around (P, n) places."""
    number, size = places.shape
    steps = rng.normal(0.0, scale, (number, MOVES, size))
    half = MOVES // 2
    one = rng.integers(size, size=(number, half, 1)) == np.arange(size)
    steps[:, :half] *= one
    pairs = places[rng.integers(number, size=(2, number, half // 2))]
    steps[:, half : half + half // 2] += 0.7 * (pairs[0] - pairs[1])
    return np.clip(places[:, None] + steps, -1.0, 1.0)
