"""The rows a surrogate is fitted on, drawn from a table."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.schema import METRICS, SPLITS
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.surrogates.inputs import Inputs
from fedhpo_gym.surrogates.outputs import to_outputs, weights_of
from fedhpo_gym.tables import Table

LOSS_WEIGHT = 4.0
"""How much more than another output a log loss of the federation counts: it is the objective."""


@dataclass(frozen=True)
class Rows:
    """Rows of one table.

    Attributes:
        inputs: (n, columns), see `Inputs`.
        outputs: (n, outputs), see `surrogates.outputs`.
        weights: (n, clients, splits) of the clients in the mean.
        configuration: (n,) which configuration of the grid.
    """

    inputs: NDArray[np.float32]
    outputs: NDArray[np.float32]
    weights: NDArray[np.float64]
    configuration: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.inputs)

    def __getitem__(self, index: NDArray[np.int64]) -> Rows:
        """Return some of the rows."""
        return Rows(
            self.inputs[index],
            self.outputs[index],
            self.weights[index],
            self.configuration[index],
        )


def intervals(space: SearchSpace) -> SearchSpace:
    """Return a grid's space with every value between its points legal."""
    continuous = (replace(d, values=None) if d.low < d.high else d for d in space.dimensions)
    return SearchSpace(tuple(continuous))


def inputs_of(table: Table) -> Inputs:
    """Return the encoding of a table's surrogate."""
    clients = table.num_samples.shape[1]
    return Inputs(intervals(table.space), max(table.rounds), clients, table.seeds)


def draw_rows(table: Table, limit: int, rng: np.random.Generator) -> Rows:
    """Return all rows of a table, or as many as `limit` drawn without replacement.

    A row is one configuration, round, client sample rate and seed.
    """
    grid = table.space.grid_shape
    shape = (len(table.rounds), *grid, len(table.rates), len(table.seeds))
    total = int(np.prod(shape))
    chosen = np.arange(total)
    if limit < total:
        chosen = np.sort(rng.choice(total, limit, replace=False))
    at = np.unravel_index(chosen, shape)
    inputs = inputs_of(table)
    pairs = zip(inputs.space.dimensions, table.space.dimensions, strict=True)
    scales = [np.array([d.encode(value) for value in points.grid]) for d, points in pairs]
    weights = weights_of(table.num_samples)[at[-1]]
    return Rows(
        inputs=inputs.many(
            np.column_stack([scale[i] for scale, i in zip(scales, at[1:-2], strict=True)]),
            np.array(table.rounds)[at[0]],
            np.array(table.rates)[at[-2]],
            at[-1],
        ),
        outputs=_outputs(table, chosen, weights),
        weights=weights,
        configuration=np.ravel_multi_index(at[1:-2], grid).astype(np.int64),
    )


def _outputs(
    table: Table, chosen: NDArray[np.int64], weights: NDArray[np.float64]
) -> NDArray[np.float32]:
    clients = weights.shape[1]
    metrics = np.empty((len(chosen), clients, len(SPLITS), len(METRICS)), dtype=np.float32)
    for s, split in enumerate(SPLITS):
        for m, metric in enumerate(METRICS):
            values = table.values("best", split, metric)
            metrics[:, :, s, m] = values.reshape(-1, clients)[chosen]
    return to_outputs(metrics, table.codes("best_round").ravel()[chosen], weights)


def scales_of(outputs: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Return mean, scale and range of outputs; see `surrogates.model.Model`."""
    scale = outputs.std(axis=0, dtype=np.float64) + 1e-6
    scale[: len(SPLITS)] /= LOSS_WEIGHT
    return {
        "mean": outputs.mean(axis=0, dtype=np.float64).astype(np.float32),
        "scale": scale.astype(np.float32),
        "low": outputs.min(axis=0),
        "high": outputs.max(axis=0),
    }
