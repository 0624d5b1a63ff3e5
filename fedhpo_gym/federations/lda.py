"""Splitting one table into train/val/test and partitioning each split over clients."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError

MIN_SIZE = 10
MAX_DRAWS = 100_000

Indices = NDArray[np.int64]


class Shuffler(Protocol):
    """The two draws a partition makes: `numpy.random.Generator` and `RandomState` both fit."""

    def shuffle(self, x: list[int]) -> None:
        """Shuffle a list in place."""

    def dirichlet(self, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
        """Draw one probability vector."""


def split_sizes(num_samples: int) -> tuple[int, int, int]:
    """Return the sizes of the 80/10/10 train, validation and test splits (paper Appendix D).

    Odd remainders go to test first, as two nested calls of scikit-learn's `train_test_split` do.
    """
    held_out = math.ceil(0.2 * num_samples - 1e-9)
    num_test = math.ceil(held_out / 2)
    return num_samples - held_out, held_out - num_test, num_test


def lda_partition(
    labels: NDArray[np.int64], num_clients: int, alpha: float, rng: Shuffler
) -> list[Indices]:
    """Partition samples over clients by latent Dirichlet allocation over the label distribution.

    Per class, proportions over clients are drawn from Dirichlet(alpha); clients that already hold
    their fair share get none of the class; the whole draw repeats until every client holds at
    least `MIN_SIZE` samples. This is the balanced splitter of FederatedScope 0.1, which made the
    original tables.

    Args:
        labels: (n,) class of each sample.
        num_clients: number of clients.
        alpha: concentration; the smaller, the more heterogeneous. The paper uses 0.1, 0.5, 0.7.
        rng: source of the draws.

    Returns:
        One (n_i,) index array per client; together they hold every sample once.

    Raises:
        InvalidArgumentError: `alpha` is not positive, there are too few samples, or no acceptable
            partition was drawn.
    """
    if not alpha > 0:
        raise InvalidArgumentError(f"alpha must be positive, got {alpha!r}")
    total = len(labels)
    if total <= num_clients * MIN_SIZE:
        raise InvalidArgumentError(
            f"{total} samples cannot give {num_clients} clients more than {MIN_SIZE} each; "
            "use fewer clients or a larger data set"
        )
    for _ in range(MAX_DRAWS):
        clients = _draw(labels, num_clients, alpha, rng)
        if min(map(len, clients)) >= MIN_SIZE:
            break
    else:
        raise InvalidArgumentError(
            f"alpha={alpha!r} gave no partition with at least {MIN_SIZE} samples for each of "
            f"{num_clients} clients in {MAX_DRAWS} draws; use a larger alpha"
        )
    for client in clients:
        rng.shuffle(client)
    return [np.asarray(client, dtype=np.int64) for client in clients]


def _draw(
    labels: NDArray[np.int64], num_clients: int, alpha: float, rng: Shuffler
) -> list[list[int]]:
    fair_share = len(labels) / num_clients
    clients: list[list[int]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label).tolist()
        rng.shuffle(members)
        proportions = rng.dirichlet(np.repeat(float(alpha), num_clients))
        has_room = np.array([len(client) < fair_share for client in clients])
        proportions = proportions * has_room
        # A class can meet only full clients or vanishing proportions: that draw is lost.
        if not proportions.sum() > 0:
            return [[] for _ in range(num_clients)]
        cuts = (np.cumsum(proportions / proportions.sum()) * len(members)).astype(int)[:-1]
        for client, part in zip(clients, np.split(np.asarray(members), cuts), strict=True):
            client.extend(int(i) for i in part)
    return clients
