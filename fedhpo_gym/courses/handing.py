"""The data of a federation as arrays that another framework can be given."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.datasets.records import Features
from fedhpo_gym.evaluation.records import SPLITS
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.federations.graphs import GraphFederation
from fedhpo_gym.fl.models.cnn import MEAN, STD

Arrays = dict[str, NDArray[Any]]


def arrays_of(federation: Federation) -> Arrays:
    """Return the samples of every client, numbered from 1, by split; or one graph per client.

    Returns:
        `num_clients`; `x_1_train`, `y_1_train` and so on, float32 inputs as a network of torch's
        own layers reads them, and labels. Of graphs `x_1`, `y_1`, `edges_1` (2, m), in both
        directions and in the client's own node numbers, and masks `train_1`.
    """
    arrays: Arrays = {"num_clients": np.array(federation.num_clients)}
    if isinstance(federation, GraphFederation):
        for client in range(federation.num_clients):
            arrays |= _graph(federation, client)
        return arrays
    for number, client_rows in enumerate(federation.clients, start=1):
        for split, rows in zip(SPLITS, client_rows, strict=True):
            arrays[f"x_{number}_{split}"] = network_inputs(federation.features[rows])
            arrays[f"y_{number}_{split}"] = federation.labels[rows]
    return arrays


def network_inputs(features: Features) -> NDArray[np.float32]:
    """Return samples as a network reads them: images (n, channels, height, width), normalised."""
    values = np.asarray(features)
    if values.ndim < 3:
        return values.astype(np.float32)
    images = values[:, None] if values.ndim == 3 else values.transpose(0, 3, 1, 2)
    pixels = images.astype(np.float32) / np.float32(255.0)
    return np.ascontiguousarray((pixels - np.float32(MEAN)) / np.float32(STD))


def _graph(federation: GraphFederation, client: int) -> Arrays:
    """Return the graph that a client knows: its own nodes, and the edges between them."""
    number, nodes = client + 1, federation.client_nodes(client)
    inside = federation.edges[:, federation.owner[federation.edges[0]] == client]
    ends = np.searchsorted(nodes, inside)
    arrays: Arrays = {
        f"x_{number}": np.asarray(federation.features[nodes], dtype=np.float32),
        f"y_{number}": federation.labels[nodes],
        f"edges_{number}": np.hstack([ends, ends[::-1]]),
    }
    for split, rows in zip(SPLITS, federation.clients[client], strict=True):
        arrays[f"{split}_{number}"] = np.isin(nodes, rows)
    return arrays
