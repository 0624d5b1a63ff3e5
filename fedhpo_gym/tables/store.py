"""One table: a card (JSON) and arrays of codes (npz), read lazily and checked before use.

Arrays are named `<which>_<split>_<metric>` and have the axes (rounds, *configuration grid, client
sample rates, seeds, clients); `best_round` and `diverged_at` lack the clients, the latter also the
rounds. The card states the axes and how codes are decoded. In the file the curves are packed
(`packed.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.archive import reading_card
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Evaluation, Evaluations, Fidelity, query_columns
from fedhpo_gym.space import Dimension
from fedhpo_gym.tables import codec
from fedhpo_gym.tables.stored import (
    FORMAT,
    WHICH,
    StoredCurves,
    write_curves,
)

AXIS = 0
"""Rounds come first."""


class Table(StoredCurves):
    """Learning curves of every course of a grid."""

    axis = AXIS

    def __init__(self, card: Path, arguments: str = "ID") -> None:
        """Read a card; arrays are read when first asked for.

        Args:
            card: path of the card.
            arguments: what `fedhpo-gym build` makes it from, for messages; see `Identity`.

        Raises:
            DamagedDataError: the card is not a table card of this format.
        """
        repair = f"run `fedhpo-gym build {arguments}`"
        with reading_card(card, "table", FORMAT, repair) as (content, arrays):
            super().__init__(content, arrays)
            self._packing()

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        grid = (*self.space.grid_shape, len(self.rates), len(self.seeds))
        return {**self._curve_shapes((len(self.rounds), *grid)), "diverged_at": grid}

    def _cell_seeds(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
        return _cell_seeds(arrays["best_round"].shape)

    def values(self, which: str, split: str, metric: str) -> NDArray[np.float32]:
        """Return one metric of all courses: (rounds, *grid, rates, seeds, clients) float32."""
        return self.decoded(which, split, metric, self.split_samples(split))

    def objective(self, split: str = "val", metric: str = "loss") -> NDArray[np.float64]:
        """Return f for the whole grid: (rounds, *grid, rates, seeds), weighted over clients."""
        samples = self.split_samples(split)
        weights = samples / samples.sum(axis=1, keepdims=True)
        values = self.values("best", split, metric)
        return np.asarray(np.einsum("...sc,sc->...s", values, weights), dtype=np.float64)

    def evaluate(
        self, configuration: Mapping[str, object], fidelity: Fidelity, seeds: tuple[int, ...]
    ) -> Evaluation:
        """Look one evaluation up.

        Raises:
            OffGridError: the configuration, the round or the rate is not on the grid.
            InvalidArgumentError: a seed is not in the table.
        """
        query = self.space.validate(configuration), fidelity
        self.fidelity_space.validate(vars(fidelity))
        return self.look_up(query_columns(self.space, [query]), seeds)[0]

    def look_up(self, columns: Mapping[str, NDArray[Any]], seeds: tuple[int, ...]) -> Evaluations:
        """Look many evaluations up.

        Args:
            columns: (B,) values of every dimension of the configurations and fidelities.
            seeds: seeds of the answers.

        Raises:
            OffGridError: a configuration, a round or a rate is not on the grid.
            InvalidArgumentError: a seed is not in the table.
        """
        cells = tuple(axis.positions(columns[axis.name]) for axis in self._axes)
        rows = self._seed_rows(seeds)
        return Evaluations(
            self._metrics("best", cells, rows),
            self.num_samples[rows],
            self.codes("best_round")[cells][:, rows].astype(np.int64),
            self._diverged(cells, rows),
            np.array(seeds),
            columns,
            lambda: self._metrics("current", cells, rows),
        )

    @cached_property
    def _axes(self) -> tuple[_Axis, ...]:
        fidelity = self.fidelity_space
        axes = (fidelity["round"], *self.space.dimensions, fidelity["client_sample_rate"])
        return tuple(map(_Axis, axes))

    def _metrics(
        self, which: str, cells: tuple[NDArray[np.int64], ...], rows: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        codes, samples = self._stacked[which][cells].take(rows, axis=-4), self.num_samples[rows]
        out = np.empty(codes.shape, dtype=np.float32)
        for m, metric in enumerate(self.metrics):
            out[..., m] = codec.decode(metric, codes[..., m], samples)
        return out

    @cached_property
    def _stacked(self) -> dict[str, NDArray[np.uint16]]:
        """The codes of all metrics side by side: (..., clients, splits, metrics)."""
        return {
            which: np.stack(
                [
                    np.stack(
                        [self.codes(f"{which}_{s}_{m}") for m in self.metrics], -1, dtype=np.uint16
                    )
                    for s in self.splits
                ],
                axis=-2,
            )
            for which in WHICH
        }

    def _diverged(
        self, cells: tuple[NDArray[np.int64], ...], rows: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        at = self.codes("diverged_at")[cells[1:]].take(rows, axis=-1)
        asked = np.asarray(self.rounds)[cells[0]]
        return np.asarray((at > 0) & (at <= asked[..., None]), dtype=np.bool_)

    def require_seeds(self, seeds: tuple[int, ...]) -> None:
        """Check that the table holds these seeds.

        Raises:
            InvalidArgumentError: it lacks one.
        """
        unknown = [seed for seed in seeds if seed not in self.seeds]
        if unknown:
            raise InvalidArgumentError(
                f"`seeds` must be among {self.seeds}, the seeds of table {self.name}, "
                f'got {unknown[0]!r}; use one of them or backend="raw"'
            )

    def _seed_rows(self, seeds: tuple[int, ...]) -> NDArray[np.int64]:
        self.require_seeds(seeds)
        return np.array([self.seeds.index(seed) for seed in seeds], dtype=np.int64)


class _Axis:
    """A dimension of the grid, which finds exact grid points without a check."""

    def __init__(self, dimension: Dimension) -> None:
        self.name = dimension.name
        self._dimension = dimension
        self._known = {value: index for index, value in enumerate(dimension.grid)}

    def positions(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the grid index of each of many values."""
        asked = values.tolist()
        known = self._known
        if not known.keys() >= {*asked}:  # close to a grid point, or on none
            known = {value: self._dimension.index(value) for value in {*asked}}
        return np.array([known[value] for value in asked], dtype=np.int64)


def write_table(folder: Path, card: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write a table's arrays, then its card, and return the path of the card; see `write_curves`.

    Raises:
        InvalidArgumentError: an array is missing, or has not the type or shape of its codes.
    """
    seeds = _cell_seeds(arrays["best_round"].shape)
    return write_curves(folder, f"{card['name']}.table", card, arrays, AXIS, seeds)


def _cell_seeds(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the position of every cell's seed, whose axis is the last."""
    return np.tile(np.arange(shape[-1]), math.prod(shape[:-1]))
