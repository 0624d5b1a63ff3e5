"""The rows a surrogate is fitted on, and how their outputs are scaled and compressed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import SPLITS
from fedhpo_gym.surrogates.model import Compression
from fedhpo_gym.surrogates.outputs import client_outputs

LOSS_WEIGHT = 4.0
"""How much more than another output a log loss of the federation counts: it is the objective."""
CLIENTS_AT_FULL_WEIGHT = 5
"""With more clients, the outputs of all clients together count as much as those of five."""
COMPRESSED_CLIENTS = 50
"""With more clients, the outputs of clients are compressed to a few principal components."""
MAX_COMPONENTS = 16
COMPONENT_BYTES = 180_000
COMPONENT_ROWS = 1_500

Array = NDArray[np.float32]


@dataclass(frozen=True)
class FittingRows:
    """Evaluations of one seed each.

    Attributes:
        inputs: (n, columns), see `InputEncoding`.
        outputs: (n, outputs), see `surrogates.outputs`.
        seed: (n,) which seed.
        seed_weights: (seeds, clients, splits) of the clients in the mean.
        configuration: (n,) which configurations are held out together.
    """

    inputs: Array
    outputs: Array
    seed: NDArray[np.int64]
    seed_weights: NDArray[np.float64]
    configuration: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.inputs)

    def __getitem__(self, index: NDArray[np.int64]) -> FittingRows:
        """Return some of the rows."""
        return replace(
            self,
            inputs=self.inputs[index],
            outputs=self.outputs[index],
            seed=self.seed[index],
            configuration=self.configuration[index],
        )

    @property
    def weights(self) -> NDArray[np.float64]:
        """(n, clients, splits) weights of the clients in the mean."""
        return np.asarray(self.seed_weights[self.seed])

    @property
    def num_clients(self) -> int:
        """Clients of the federation."""
        return int(self.seed_weights.shape[1])


@dataclass(frozen=True)
class PreparedRows:
    """FittingRows as a regressor sees them.

    Attributes:
        inputs: (n, columns).
        targets: (n, targets) standardised outputs; those of many clients are compressed.
        scales: see `surrogates.model.OutcomeModel`.
        compression: how to get outputs from targets; None where each target is an output.
    """

    inputs: Array
    targets: Array
    scales: dict[str, Array]
    compression: Compression | None


def prepare(rows: FittingRows) -> PreparedRows:
    """Return rows for a fit; what scales and compresses them is learned from them alone."""
    scales = scales_of(rows.outputs, rows.num_clients)
    many = rows.num_clients > COMPRESSED_CLIENTS
    if many:  # they are stored in half precision: what is fitted must agree with it
        scales = {
            name: value.astype(np.float16).astype(np.float32) for name, value in scales.items()
        }
    targets = (rows.outputs - scales["mean"]) / scales["scale"]
    compression = None
    if many:
        compression = principal_components(targets)
        targets = compression.compress(targets)
    return PreparedRows(rows.inputs, targets, scales, compression)


def scales_of(outputs: Array, num_clients: int) -> dict[str, Array]:
    """Return mean, scale and range of outputs; see `surrogates.model.OutcomeModel`."""
    scale = outputs.std(axis=0, dtype=np.float64) + 1e-6
    scale[: len(SPLITS)] /= LOSS_WEIGHT
    scale[client_outputs()] *= math.sqrt(max(num_clients / CLIENTS_AT_FULL_WEIGHT, 1.0))
    return {
        "mean": outputs.mean(axis=0, dtype=np.float64).astype(np.float32),
        "scale": scale.astype(np.float32),
        "low": outputs.min(axis=0),
        "high": outputs.max(axis=0),
    }


def principal_components(targets: Array) -> Compression:
    """Return the directions in which the targets of clients differ most.

    Computed from at most `COMPONENT_ROWS` evenly chosen rows, through the smaller of the two
    matrices of inner products.
    """
    chosen = np.linspace(0, len(targets) - 1, min(len(targets), COMPONENT_ROWS)).astype(np.int64)
    clients = targets[chosen][:, client_outputs()].astype(np.float64)
    count = min(MAX_COMPONENTS, COMPONENT_BYTES // (2 * clients.shape[1]), *clients.shape)
    count = max(count, 1)
    if clients.shape[0] < clients.shape[1]:
        directions = np.linalg.eigh(clients @ clients.T)[1][:, ::-1][:, :count].T @ clients
    else:
        directions = np.linalg.eigh(clients.T @ clients)[1][:, ::-1][:, :count].T
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    return Compression((directions / np.maximum(norms, 1e-12)).astype(np.float16))
