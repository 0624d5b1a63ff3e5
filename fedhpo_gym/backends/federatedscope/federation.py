"""Handing a federation over: an .npz file with the samples of every client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.courses.training import network_inputs, task_federation
from fedhpo_gym.evaluation.records import SPLITS
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.federations.graphs import GraphFederation
from fedhpo_gym.files import new_file
from fedhpo_gym.tasks import Task

Arrays = dict[str, NDArray[np.generic]]


def hand_over(task: Task, seed: int, folder: Path) -> Path:
    """Write the federation of a task under one seed into a folder, unless it is there.

    Returns:
        The file.

    Raises:
        OSError: it cannot be written, for example because the disk is full.
    """
    path = folder / f"{task.table_name}-alpha{task.alpha:g}-seed{seed}.npz"
    if not path.exists():
        federation = task_federation(task, seed)
        with new_file(path) as handle:
            np.savez(handle, **arrays_of(federation))
    return path


def arrays_of(federation: Federation) -> Arrays:
    """Return what the program reads: samples by client and split, or one graph per client."""
    arrays: dict[str, Any] = {"num_clients": np.array(federation.num_clients)}
    if isinstance(federation, GraphFederation):
        for client in range(federation.num_clients):
            arrays |= _graph(federation, client)
        return arrays
    inputs = network_inputs(federation)
    for number, client in enumerate(federation.clients, start=1):
        for split, rows in zip(SPLITS, client, strict=True):
            arrays[f"x_{number}_{split}"] = inputs(rows)
            arrays[f"y_{number}_{split}"] = federation.labels[rows]
    return arrays


def _graph(federation: GraphFederation, client: int) -> Arrays:
    """Return the graph of a client, with the edges that it knows in both directions."""
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
