"""A sample as a pool: its trained configurations answer exactly, and nothing between them does.

`backends.tabular` asks it. A pool holds the courses of one seed, because another seed is another
split, partition and initial model: between configurations of two seeds, luck would decide. A query
is answered at the nearest trained configuration, and of that at the nearest client sample rate and
the last round that it was trained at (`Pool.nearest`); the codec of an environment goes there, so
that time and privacy are charged for what is answered.
"""

import itertools
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Floats, Integers, Singles
from fedhpo_gym.core.errors import InvalidArgumentError, OffGridError
from fedhpo_gym.evaluation.records import (
    FIDELITIES,
    Evaluation,
    Evaluations,
    Fidelity,
    query_columns,
    validation_losses,
)
from fedhpo_gym.space import Value
from fedhpo_gym.stored import codec
from fedhpo_gym.stored.table import WHICH, Sample, seed_rows

Columns = Mapping[str, NDArray[Any]]
MOST_DISTANCES = 1 << 22
"""Coordinates of distances that are computed together."""


class Pool:
    """The courses of a sample under one seed: K configurations, A rates, R rounds.

    Attributes:
        sample: where the numbers are; `card`, `digest`, `identity`, `name` and the spaces are its.
        seeds: the one seed.
        configurations: the K configurations, in the order of the design.
        columns: (K,) values of every hyperparameter, by name.
        courses: (K, A) courses of the sample; -1 where a configuration was not trained at a rate.
        num_samples: (1, clients, splits) samples.
    """

    def __init__(self, sample: Sample, seed: int | None = None) -> None:
        self.sample, self.card, self.digest = sample, sample.card, sample.digest
        self.identity, self.name = sample.identity, sample.name
        self.space, self.fidelity_space = sample.space, sample.fidelity_space
        if seed is not None and seed not in sample.seeds:
            raise InvalidArgumentError(
                f"`seed` must be among {sample.seeds}, the seeds of the pool {sample.name}, got "
                f'{seed}; use one of them, None, or backend="raw"'
            )
        self._requested_seed = seed

    # Arrays are unpacked on first use, because listings read only the card.

    @cached_property
    def _seed(self) -> int:
        sample = self.sample
        if self._requested_seed is not None:
            return sample.seeds.index(self._requested_seed)
        if sample.crossed:
            return 0  # under which all configurations are trained
        return int(np.bincount(sample.codes("seed"), minlength=len(sample.seeds)).argmax())

    @property
    def seeds(self) -> tuple[int, ...]:
        return (self.sample.seeds[self._seed],)

    @property
    def coverage(self) -> str:
        """Which courses answer, and how to ask for others; "" where all are of one seed."""
        others = [str(seed) for seed in self.sample.seeds if seed not in self.seeds]
        if not others:
            return ""
        text = ", ".join(others[:5]) + ", ..." * (len(others) > 5)
        return (
            f"{int((self.courses >= 0).sum())} of {len(self.sample)} courses answer, those under "
            f"seed {self.seeds[0]}; `seed=` or `instances=` of gymnasium.make asks for those under "
            f"{text}."
        )

    @property
    def num_samples(self) -> Integers:
        return np.asarray(self.sample.num_samples[self._seed][None])

    @cached_property
    def configurations(self) -> list[dict[str, Any]]:
        every = self.sample.configurations()
        return [every[row] for row in self.courses.max(axis=1)]

    @cached_property
    def columns(self) -> Columns:
        return self.sample.space.columns_of(self.configurations)

    @cached_property
    def _features(self) -> Floats:
        return self._features_of(self.columns)

    @cached_property
    def courses(self) -> Integers:
        sample = self.sample
        (rows,) = np.nonzero(sample.codes("seed") == self._seed)
        rates = np.searchsorted(sample.rates, sample.codes("client_sample_rate")[rows] - 1e-9)
        numbers = np.nan_to_num(sample.codes("configuration")[rows], nan=-np.inf)
        keys = list(map(tuple, numbers.tolist()))
        index = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        courses = np.full((len(index), len(sample.rates)), -1)
        courses[[index[key] for key in keys], rates] = rows
        complete = (courses >= 0).all(axis=1)
        if sample.crossed and complete.any():  # other rates of the rest are still to come
            courses = courses[complete]
        if not len(courses):
            raise InvalidArgumentError(
                f"`seed` must be one under which configurations of the pool {sample.name} were "
                f"trained, got {self.seeds[0]}; use None"
            )
        return courses

    def _features_of(self, columns: Columns) -> Floats:
        space = self.sample.space
        return space.features(space.encode_columns(columns))

    @cached_property
    def _last(self) -> Integers:
        """(courses,) position of the last round that each course of the sample was trained for."""
        return np.asarray(self.sample.trained.sum(axis=1) - 1)

    def __len__(self) -> int:
        """Return the number of configurations."""
        return len(self.courses)

    def places(self, columns: Columns) -> Integers:
        """Return the (B, 3) nearest configuration, rate and round of (B,) legal values."""
        return self.places_of(self.nearest_rows(columns), columns)

    def nearest_rows(self, columns: Columns) -> Integers:
        """Return the (B,) configurations nearest to (B,) legal values.

        Distances are Euclidean, between features of the search space; of equals, the first counts.
        """
        targets = self._features_of(columns)
        size = max(MOST_DISTANCES // self._features.size, 1)
        parts = [
            ((targets[start : start + size, None] - self._features) ** 2).sum(axis=2).argmin(axis=1)
            for start in range(0, len(targets), size)
        ]
        return np.concatenate([np.zeros(0, np.intp), *parts])

    def places_of(self, configurations: Integers, columns: Columns) -> Integers:
        """Return the (B, 3) places of (B,) configurations at the nearest of fidelities."""
        distance = np.abs(columns["client_sample_rate"][:, None] - np.array(self.sample.rates))
        distance = np.where(self.courses[configurations] >= 0, distance.round(9), np.inf)
        rates = distance.argmin(axis=1)
        rounds = np.searchsorted(self.sample.rounds, columns["round"], "right") - 1
        last = self._last[self.courses[configurations, rates]]
        return np.column_stack([configurations, rates, np.clip(rounds, 0, last)])

    def columns_at(self, places: Integers) -> Columns:
        """Return the (B,) values at (B, 3) places, those of fidelities among them."""
        configurations, rates, rounds = places.T
        values = {name: column[configurations] for name, column in self.columns.items()}
        fidelities = np.array(self.sample.rounds)[rounds], np.array(self.sample.rates)[rates]
        return {**values, **dict(zip(FIDELITIES, fidelities, strict=True))}

    def nearest(self, columns: Columns) -> Columns:
        """Return the nearest (B,) values that the pool has."""
        return self.columns_at(self.places(columns))

    def nearest_query(
        self, configuration: Mapping[str, Value], fidelity: Fidelity
    ) -> tuple[dict[str, Value], Fidelity]:
        """Return the nearest configuration and fidelity that the pool has."""
        nearest = self.nearest(query_columns(self.space, [(configuration, fidelity)]))
        rounds, rate = (nearest[name].tolist()[0] for name in FIDELITIES)
        return self.space.configurations_of(nearest)[0], Fidelity(rounds, rate)

    def evaluate(
        self, configuration: Mapping[str, object], fidelity: Fidelity, seeds: tuple[int, ...]
    ) -> Evaluation:
        """Look one evaluation up; what was not trained, or under another seed, is an error."""
        query = self.space.validate(configuration), fidelity
        return self.look_up(query_columns(self.space, [query]), seeds)[0]

    def look_up(self, columns: Columns, seeds: tuple[int, ...]) -> Evaluations:
        """Look up (B,) values that `nearest` returned; others are an error.

        Raises:
            OffGridError: a configuration was not trained, or not as asked.
        """
        seed_rows(seeds, self.seeds, f"pool {self.name}")
        places = self.places(columns)
        for name, column in self.columns_at(places).items():
            if not np.array_equal(column, columns[name]):
                raise OffGridError(
                    f"`{name}` must be that of a trained configuration of the pool "
                    f"{self.sample.name}, which answers nothing between them; `Pool.nearest` "
                    'returns the nearest, and backend="raw" trains'
                )
        courses, rounds = self.courses[places[:, 0], places[:, 1]], places[:, 2]
        diverged_at = self.sample.codes("diverged_at")[courses]
        return Evaluations(
            self._metrics("best", courses, rounds),
            self.num_samples,
            self.sample.codes("best_round")[courses, rounds].astype(np.int64)[:, None],
            ((diverged_at > 0) & (diverged_at <= columns["round"]))[:, None],
            np.array(self.seeds),
            columns,
            lambda: self._metrics("current", courses, rounds),
        )

    def repeated_losses(self) -> Floats:
        """Return the (configurations, seeds) validation losses of what all seeds were trained on.

        They are of full fidelity, and infinite where training diverged.
        """
        fidelity = {d.name: d.high for d in self.fidelity_space.dimensions}
        losses_by_seed: list[dict[bytes, float]] = []
        for seed in self.sample.seeds:
            try:
                pool = Pool(self.sample, seed)
                full = {name: np.full(len(pool), value) for name, value in fidelity.items()}
            except InvalidArgumentError:  # nothing was trained under it
                return np.empty((0, len(self.sample.seeds)))
            answers = pool.look_up(pool.nearest({**pool.columns, **full}), pool.seeds)
            of_seed = validation_losses(answers, pool.num_samples)[:, 0]
            keys = (row.tobytes() for row in pool._features)
            losses_by_seed.append(dict(zip(keys, of_seed.tolist(), strict=True)))
        shared = [key for key in losses_by_seed[0] if all(key in each for each in losses_by_seed)]
        rows = [[losses[key] for losses in losses_by_seed] for key in shared]
        return np.array(rows).reshape(-1, len(losses_by_seed))

    def _metrics(self, which: str, courses: Integers, rounds: Integers) -> Singles:
        """Return (B, 1, clients, splits, metrics)."""
        sample, codes = self.sample, self._stacked[which][courses, rounds][:, None]
        out = np.empty(codes.shape, dtype=np.float32)
        for m, metric in enumerate(sample.metrics):
            out[..., m] = codec.decode(metric, codes[..., m], self.num_samples)
        return out

    @cached_property
    def _stacked(self) -> dict[str, NDArray[np.uint16]]:
        """The codes of all metrics side by side: (courses, rounds, clients, splits, metrics)."""
        sample = self.sample
        kinds = list(itertools.product(sample.splits, sample.metrics))
        sizes = len(sample.splits), len(sample.metrics)
        stacked = {
            which: np.stack(
                [sample.codes(f"{which}_{s}_{m}") for s, m in kinds], -1, dtype=np.uint16
            )
            for which in WHICH
        }
        return {which: codes.reshape(*codes.shape[:-1], *sizes) for which, codes in stacked.items()}


class PoolCells:
    """All that a pool answers where some fidelities are fixed, as (P,) cells in a fixed order.

    Attributes:
        configurations: (K,) values of the hyperparameters by name.
        columns: (P,) values by name.
        courses: (P,) which cells are of one course: a configuration at a rate.
    """

    def __init__(self, pool: Pool, fixed: Mapping[str, Any]) -> None:
        self._pool, self.configurations = pool, pool.columns
        self._shape = len(pool), len(pool.sample.rates), len(pool.sample.rounds)
        ranges = zip(FIDELITIES, (pool.sample.rounds, pool.sample.rates), strict=True)
        rounds, rates = ([fixed[name]] if name in fixed else values for name, values in ranges)
        grid = np.array(list(itertools.product(range(len(pool)), rates, rounds)))
        fidelities = dict(zip(FIDELITIES, (grid[:, 2].astype(int), grid[:, 1]), strict=True))
        # Of configurations with equal features the first answers, so not each is its own nearest.
        nearest = pool.nearest_rows(pool.columns)[grid[:, 0].astype(int)]
        self._flat = np.unique(self._numbers(pool.places_of(nearest, fidelities)))
        places = np.column_stack(np.unravel_index(self._flat, self._shape))
        self.columns = pool.columns_at(places)
        self.courses = self._flat // self._shape[2]

    def __len__(self) -> int:
        return len(self._flat)

    def _numbers(self, places: Integers) -> Integers:
        return np.asarray(np.ravel_multi_index(tuple(places.T), self._shape), dtype=np.int64)

    def index(self, columns: Columns) -> Integers:
        """Return the (B,) cells that answer (B,) legal values."""
        return np.searchsorted(self._flat, self._numbers(self._pool.places(columns)))
