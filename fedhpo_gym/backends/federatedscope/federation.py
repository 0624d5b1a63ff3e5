"""Handing a federation over: an .npz file with the samples of every client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.training import task_federation
from fedhpo_gym.core.files import new_file
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.graph_federations import GraphFederation
from fedhpo_gym.data.records import Features
from fedhpo_gym.evaluation.records import SPLITS
from fedhpo_gym.fl.models.cnn import MEAN, STD
from fedhpo_gym.tasks import Task


def hand_over(task: Task, seed: int, folder: Path) -> Path:
    """Write the federation of a task under one seed into a folder, unless it is there.

    Returns:
        The file.

    Raises:
        OSError: it cannot be written, for example because the disk is full.
    """
    path = folder / f"{task.table_name}-{task.alpha:g}-{task.preprocessing}-seed{seed}.npz"
    if not path.exists():
        arrays = arrays_of(task_federation(task, seed))
        with new_file(path) as handle:
            np.savez(handle, **arrays)  # type: ignore[arg-type]  # no array is called allow_pickle
    return path


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
    """Return samples as a network reads them: images (n, channels, height, width), normalised.

    Images are what has pixels of 0 to 255; everything else stays as it is.
    """
    values = np.asarray(features)
    if values.dtype != np.uint8:
        return values.astype(np.float32)
    images = values[:, None] if values.ndim == 3 else values.transpose(0, 3, 1, 2)
    pixels = images.astype(np.float32) / np.float32(255.0)
    return np.ascontiguousarray((pixels - np.float32(MEAN)) / np.float32(STD))


def _graph(federation: GraphFederation, client: int) -> Arrays:
    """Return the graph that a client knows: its own nodes, and the edges between them."""
    inside = federation.edges[:, federation.owner[federation.edges[0]] == client]
    nodes, splits = federation.client_nodes(client), federation.clients[client]
    return graph_arrays(federation, client + 1, nodes, inside, splits)


def graph_arrays(
    federation: GraphFederation,
    number: int,
    nodes: NDArray[np.int64],
    edges: NDArray[np.int64],
    splits: Sequence[NDArray[np.int64]],
) -> Arrays:
    """Return the arrays of a part of the graph, under a number.

    Args:
        federation: whose graph it is.
        number: what the part is called.
        nodes: (n,) ascending node numbers.
        edges: (2, m) edges between them, each in one direction.
        splits: node numbers of every split.
    """
    ends = np.searchsorted(nodes, edges)
    arrays: Arrays = {
        f"x_{number}": np.asarray(federation.features[nodes], dtype=np.float32),
        f"y_{number}": federation.labels[nodes],
        f"edges_{number}": np.hstack([ends, ends[::-1]]),
    }
    for split, rows in zip(SPLITS, splits, strict=True):
        arrays[f"{split}_{number}"] = np.isin(nodes, rows)
    return arrays
