"""Evaluate stored numbers on a lattice: all cells of a table or pool, points of a surrogate.

The points of a surrogate are a grid and random draws. Dimensions without a grid get `BINS` points.
Above `MAX_GRID` configurations, only the `DRAWS` of the search for the optimum are evaluated. A
surrogate can also be evaluated between the points, but environments use only the points where the
task lists the values.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Fidelity, validation_losses
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.stored.pool import Pool
from fedhpo_gym.stored.surrogate import Surrogate
from fedhpo_gym.stored.table import Table
from fedhpo_gym.tasks import REGISTERED, TASKS, TRAINED, Task, task_of

BINS = 5
MAX_GRID = 20_000
DRAWS = 2_048
EARLY = 9
"""The round whose ranking of configurations is compared with that of the last."""
_NUMBERS_AT_ONCE = 1 << 23


StoredNumbers = Table | Surrogate | Pool
"""Stored numbers that answer."""


@dataclass(frozen=True, eq=False)
class Landscape:
    """Validation losses on a lattice."""

    space: SearchSpace  # the grid of configurations
    rounds: tuple[int, ...]  # ascending
    rates: tuple[float, ...]  # client sample rates, ascending
    # Those of the grid, in its order, then random ones.
    configurations: tuple[dict[str, Value], ...]
    on_grid: int  # how many of them are the grid; 0 if it is too large
    # (rounds, configurations, rates, seeds); infinite where training diverged.
    losses: Floats
    exact: bool  # whether nothing else is legal

    @cached_property
    def means(self) -> Floats:
        """(rounds, configurations, rates) means over seeds; infinite where one diverged."""
        return np.asarray(self.losses.mean(axis=-1))

    @cached_property
    def even(self) -> slice:
        """The configurations that fill the space evenly: the grid, else those drawn."""
        return slice(0, self.on_grid or None)

    def optimum(self) -> tuple[dict[str, Value], Fidelity]:
        """Return the query with the lowest mean; of equal ones that of the fewest rounds."""
        if not np.isfinite(self.means).any():
            raise InvalidArgumentError("`losses` must be finite somewhere: all courses diverged")
        at, configuration, rate = np.unravel_index(np.argmin(self.means), self.means.shape)
        return self.configurations[configuration], Fidelity(self.rounds[at], self.rates[rate])


def landscape_of(stored: StoredNumbers) -> Landscape:
    """Ask stored numbers for everything on their lattice."""
    if isinstance(stored, Pool):
        return _landscape_of_pool(stored)
    exact = all(d.values is not None for d in stored.space.dimensions)
    source_space = stored.space if exact else asked_space(stored)
    space = SearchSpace(tuple(map(_with_grid, source_space.dimensions)))
    task = None if exact else _task_of(stored)
    legal = None if task is None else task.fidelity_space["round"].values
    rounds = _rounds(stored.fidelity_space["round"], legal)
    rates = tuple(map(float, _with_grid(stored.fidelity_space["client_sample_rate"]).grid))
    grid = _grid(space) if exact or space.grid_size <= MAX_GRID else []
    rng = stream(0, "truth_draws")
    draws = [] if exact else [source_space.sample(rng) for _ in range(DRAWS)]
    configurations = (*grid, *draws)
    fidelities = [Fidelity(r, rate) for r, rate in itertools.product(rounds, rates)]
    columns = space.columns_of(configurations)
    losses = [losses_at(stored, columns, fidelity) for fidelity in fidelities]
    shape = (len(rounds), len(rates), len(configurations), len(stored.seeds))
    return Landscape(
        space=space,
        rounds=rounds,
        rates=rates,
        configurations=configurations,
        on_grid=len(grid),
        losses=np.stack(losses).reshape(shape).swapaxes(1, 2),
        exact=exact,
    )


def _landscape_of_pool(pool: Pool) -> Landscape:
    """Return all answers of a pool; of the nearest rate to the highest, where each has its own."""
    rounds, rates = pool.sample.rounds, pool.sample.rates
    if (pool.courses < 0).any():
        rates = rates[-1:]
    losses = [
        [losses_at(pool, pool.columns, Fidelity(round_, rate)) for rate in rates]
        for round_ in rounds
    ]
    return Landscape(
        space=SearchSpace(tuple(map(_with_grid, pool.space.dimensions))),
        rounds=rounds,
        rates=rates,
        configurations=tuple(pool.configurations),
        on_grid=0,
        losses=np.array(losses).swapaxes(1, 2),  # (rounds, configurations, rates, seeds)
        exact=True,
    )


def losses_at(
    stored: StoredNumbers, columns: Mapping[str, NDArray[Any]], fidelity: Fidelity
) -> Floats:
    """Return the (configurations, seeds) validation losses; of a pool, of the nearest answers."""
    each = stored.num_samples[:, :, 0].size * len(SPLITS) * len(METRICS)
    size = max(_NUMBERS_AT_ONCE // each, 1)
    losses = []
    for start in range(0, len(next(iter(columns.values()))), size):
        some = {name: column[start : start + size] for name, column in columns.items()}
        count = len(next(iter(some.values())))
        some |= {name: np.full(count, value) for name, value in asdict(fidelity).items()}
        answered = stored.nearest(some) if isinstance(stored, Pool) else some
        losses.append(validation_losses(stored.look_up(answered, stored.seeds), stored.num_samples))
    return np.concatenate(losses)


def asked_columns(space: SearchSpace, draws: int, name: str) -> dict[str, NDArray[Any]]:
    """Return all points of a grid, else random configurations; (n,) values by dimension."""
    if all(dimension.values is not None for dimension in space.dimensions):
        return space.columns_of(_grid(space))
    return space.decode_columns(stream(0, name).uniform(-1.0, 1.0, (draws, len(space))))


def _grid(space: SearchSpace) -> list[dict[str, Value]]:
    points = itertools.product(*(d.grid for d in space.dimensions))
    return [dict(zip(space.names, point, strict=True)) for point in points]


def asked_space(stored: StoredNumbers) -> SearchSpace:
    """Return the space with only those values legal that the task names, where it names any."""
    task = _task_of(stored)
    if task is None:
        return stored.space
    return SearchSpace(
        tuple(replace(d, values=task.space[d.name].values) for d in stored.space.dimensions)
    )


def _task_of(stored: StoredNumbers) -> Task | None:
    key = f"{stored.identity.task}-v{stored.identity.version}"
    is_catalogued = any(key in catalogue for catalogue in (TASKS, TRAINED, REGISTERED))
    return task_of(stored.identity) if is_catalogued else None


def _with_grid(dimension: Dimension) -> Dimension:
    if dimension.values is not None or dimension.bins is not None:
        return dimension.discretized()
    most = BINS if dimension.kind == "float" else min(BINS, int(dimension.high - dimension.low) + 1)
    for bins in range(most, 2, -1):
        try:
            return replace(dimension, bins=bins).discretized()
        except InvalidArgumentError:  # whole numbers repeat on a logarithmic scale
            continue
    return replace(dimension, values=(dimension.low, dimension.high))


def _rounds(dimension: Dimension, legal: Sequence[Value] | None) -> tuple[int, ...]:
    """Return all rounds of a grid; of an interval an early one that is legal, and the last."""
    if dimension.values is not None:
        return tuple(int(r) for r in dimension.grid)
    last = int(dimension.high)
    early = max(EARLY if last > EARLY else last // 2, int(dimension.low), 1)
    if legal is not None:
        rounds = [int(r) for r in legal if dimension.low <= int(r) <= last] or [last]
        last = rounds[-1]
        early = max((r for r in rounds if r <= early), default=rounds[0])
    return tuple(sorted({early, last}))
