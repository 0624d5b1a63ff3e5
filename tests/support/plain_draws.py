"""The draws of one client in one round, asked for one at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl.course import PerClient
from fedhpo_gym.fl.minibatches import RoundLayout, batch_rows, client_orders, client_streams


@dataclass(frozen=True, eq=False)
class RoundBatches:
    """The minibatches of some clients in one round.

    Attributes:
        rows: (steps, clients, batch) row indices; 0 where padded.
        sizes: (steps, clients) rows that are not padding.
    """

    rows: NDArray[np.int64]
    sizes: NDArray[np.int64]


def client_order(seed: int, round_index: int, num_clients: int) -> NDArray[np.int64]:
    """Return the order in which clients are sampled in a round."""
    order: NDArray[np.int64] = client_orders([(seed, round_index)], num_clients)[0]
    return order


def draw_round(
    federation: Federation,
    round_index: int,
    clients: NDArray[np.int64],
    batch_size: PerClient,
    num_epochs: int,
) -> RoundBatches:
    """Draw the minibatches of some clients for the local epochs of one round."""
    chosen = clients.tolist()
    layout = RoundLayout(
        [federation.clients[client][0] for client in chosen],
        np.array([int(batch_size.of(client)) for client in chosen]),
        np.full(len(chosen), num_epochs),
        batch_rows(federation, batch_size),
    )
    names = [(federation.seed, round_index, client) for client in chosen]
    return RoundBatches(layout.draw(client_streams(names)).swapaxes(0, 1), layout.sizes)
