"""Federations: the data of all clients under one seed, and the partitions that create them.

`PARTITIONS` lists these functions by name, and tasks choose one. A seed determines splits and
partition through the named streams "split" and "partition". A federation holds the features of all
samples once, and for each client and split an array of row indices.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Integers
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data import Dataset
from fedhpo_gym.data.records import UNASSIGNED, Features, SparseRows
from fedhpo_gym.evaluation.records import SPLITS

PREPROCESSINGS = ("label_encoded", "standardized")

SIZE_CONCENTRATION = 2.0
"""Dirichlet concentration of the sizes of clients, if these are random."""
MIN_CLIENT_SAMPLES = 8
MIN_CONCENTRATION = 1e-3
"""Smallest Dirichlet concentration; below, all shares but one are 0, or sampling fails."""


@dataclass(frozen=True, eq=False)
class Federation:
    """The data of all clients under one seed."""

    features: Features  # (n, ...) float32, or uint8 for images and integers for tokens
    labels: NDArray[np.int64]  # (n,) int64
    num_classes: int  # number of classes
    # `clients[i][s]` are the row indices of client i in split s (train, val, test).
    clients: tuple[tuple[Integers, ...], ...]
    seed: int  # the seed that split and partitioned the data set

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self.clients)

    @cached_property
    def num_samples(self) -> NDArray[np.int64]:
        """(clients, splits) number of samples."""
        return np.array([[len(rows) for rows in client] for client in self.clients])


def make_federation(
    dataset: Dataset,
    seed: int,
    num_clients: int = 5,
    alpha: float = 0.5,
    preprocessing: str = "label_encoded",
) -> Federation:
    """Split a data set and partition each split over clients by LDA, independently.

    As in the original tables, the seed of a training run also determines its splits and partition.
    Splits are 80/10/10, unless the data set publishes them. In that case its unassigned samples
    are split 80/20 into training and validation data. If it publishes no labelled test data, a
    tenth of its training data is used.
    """
    splits = _draw_splits(dataset, seed)
    rng = stream(seed, "partition")
    parts_by_split = [
        [rows[indices] for indices in lda_partition(dataset.labels[rows], num_clients, alpha, rng)]
        for rows in splits
    ]
    clients = tuple(
        tuple(parts_by_split[s][i] for s in range(len(SPLITS))) for i in range(num_clients)
    )
    return _build_federation(dataset, clients, splits[0], seed, preprocessing)


def make_user_federation(
    dataset: Dataset,
    seed: int,
    preprocessing: str = "label_encoded",
    fractions: tuple[float, float] = (0.6, 0.2),
    num_users: int | None = None,
) -> Federation:
    """Return a federation whose clients are users; the samples of each are split at random."""
    rng = stream(seed, "split")
    clients = []
    for rows in _group_rows_by_user(dataset, num_users):
        rows = rng.permutation(rows)
        held_out = [
            max(round(share * len(rows)), 1) for share in (fractions[1], 1 - sum(fractions))
        ]
        if len(rows) < 3:
            held_out = [0, len(rows) - 1]
        clients.append(tuple(np.split(rows, np.cumsum([len(rows) - sum(held_out), held_out[0]]))))
    train = np.concatenate([client[0] for client in clients])
    return _build_federation(dataset, tuple(clients), train, seed, preprocessing)


def make_skewed_federation(
    dataset: Dataset,
    seed: int,
    num_clients: int,
    alpha: float = 0.5,
    preprocessing: str = "label_encoded",
) -> Federation:
    """Return a federation whose clients differ in size and in label distribution.

    Sizes w of N clients are drawn from Dirichlet(`SIZE_CONCENTRATION`, ...), and the shares of each
    class from Dirichlet(alpha w N, ...). So a client has about a share w of all samples, and fewer
    classes for smaller alpha. A client with fewer than `MIN_CLIENT_SAMPLES` samples gets random
    ones from the largest client. The samples of each client are then split 60/20/20.
    """
    if not 1 <= num_clients <= len(dataset.labels) // MIN_CLIENT_SAMPLES:
        raise InvalidArgumentError(
            f"`num_clients` must leave each client {MIN_CLIENT_SAMPLES} of {len(dataset.labels)} "
            f"samples of {dataset.name}, got {num_clients}"
        )
    rng = stream(seed, "partition")
    sizes = rng.dirichlet(np.full(num_clients, SIZE_CONCENTRATION))
    owner = np.empty(len(dataset.labels), dtype=np.int64)
    for label in range(dataset.num_classes):
        class_rows = rng.permutation(np.flatnonzero(dataset.labels == label))
        shares = rng.dirichlet(np.maximum(alpha * num_clients * sizes, MIN_CONCENTRATION))
        ends = np.round(np.cumsum(shares) * len(class_rows))[:-1]
        owner[class_rows] = np.searchsorted(ends, np.arange(len(class_rows)), side="right")
    counts = np.bincount(owner, minlength=num_clients)
    for client in np.flatnonzero(counts < MIN_CLIENT_SAMPLES):
        for _ in range(MIN_CLIENT_SAMPLES - counts[client]):
            largest = counts.argmax()
            owner[rng.choice(np.flatnonzero(owner == largest))] = client
            counts[largest] -= 1
    return make_user_federation(replace(dataset, users=owner), seed, preprocessing)


def make_unseen_federation(
    dataset: Dataset, seed: int, num_clients: int, preprocessing: str = "label_encoded"
) -> Federation:
    """Return a federation that trains on some users and evaluates on unseen ones.

    All rows of a user are in one split. One half of the users that do not train is for validation,
    the other for testing. A client has the training rows of one user, and validation and test rows
    of other users; so only training users count as clients, and only these are sampled.
    """
    users = _group_rows_by_user(dataset)
    num_held_out = len(users) - num_clients
    if num_held_out < 2 or num_clients < 1:
        raise InvalidArgumentError(
            f"`num_clients` must leave two of {len(users)} users out, got {num_clients}"
        )
    order = stream(seed, "split").permutation(len(users))
    train, val, test = np.split(order, [num_clients, num_clients + num_held_out // 2])
    empty = np.empty(0, dtype=np.int64)
    clients = []
    for index, user in enumerate(np.sort(train)):
        held_out = (np.sort(indices)[index::num_clients] for indices in (val, test))
        others = (np.concatenate([empty, *(users[i] for i in indices)]) for indices in held_out)
        clients.append((users[user], *others))
    rows = np.concatenate([client[0] for client in clients])
    return _build_federation(dataset, tuple(clients), rows, seed, preprocessing)


def _group_rows_by_user(dataset: Dataset, num_users: int | None = None) -> list[Integers]:
    """Return the row indices of each user, or of `num_users` random ones with enough rows."""
    if dataset.users is None:
        raise InvalidArgumentError(f"`dataset` must have users, got {dataset.name}; use LDA")
    order = np.argsort(dataset.users, kind="stable")
    users = np.split(order, np.flatnonzero(np.diff(dataset.users[order])) + 1)
    if num_users is None or len(users) <= num_users:
        return users
    splittable = [rows for rows in users if len(rows) >= len(SPLITS)]
    chosen_users = stream(0, "users").permutation(len(splittable))[:num_users]
    return [splittable[i] for i in np.sort(chosen_users)]


def _draw_splits(dataset: Dataset, seed: int) -> list[Integers]:
    """Return the row indices of train, validation and test data."""
    rng = stream(seed, "split")
    fixed = dataset.fixed_split
    if fixed is None:
        order = rng.permutation(len(dataset.labels))
        return np.split(order, np.cumsum(split_sizes(len(order)))[:-1])
    splits = [np.flatnonzero(fixed == code) for code in range(len(SPLITS))]
    if not len(splits[2]):
        order = rng.permutation(splits[0])
        splits[0], splits[2] = np.split(order, [round(0.9 * len(order))])
    order = rng.permutation(np.flatnonzero(fixed == UNASSIGNED))
    num_train = len(order) if len(splits[1]) else round(0.8 * len(order))
    return [
        np.concatenate([splits[0], order[:num_train]]),
        np.concatenate([splits[1], order[num_train:]]),
        splits[2],
    ]


def _build_federation(
    dataset: Dataset,
    clients: tuple[tuple[Integers, ...], ...],
    train_rows: Integers,
    seed: int,
    preprocessing: str,
) -> Federation:
    if preprocessing not in PREPROCESSINGS:
        raise InvalidArgumentError(
            f"preprocessing must be one of {PREPROCESSINGS}, got {preprocessing!r}"
        )
    features = _impute(dataset.features, train_rows)
    if preprocessing == "standardized":
        if features.dtype.kind != "f" or not isinstance(features, np.ndarray):
            raise InvalidArgumentError(
                'preprocessing="standardized" is for tables; '
                f"{dataset.name} is normalised by its model: leave the default"
            )
        train = features[train_rows]
        scale = train.std(axis=0)
        features = (features - train.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    if features.dtype == np.float64:
        features = np.asarray(features, dtype=np.float32)
    return Federation(features, dataset.labels, dataset.num_classes, clients, int(seed))


def _impute(features: Features, train_rows: Integers) -> Features:
    """Return features with missing numbers replaced by the mean of the training rows."""
    if isinstance(features, SparseRows) or features.dtype.kind != "f":
        return features
    missing = np.isnan(features)
    if not missing.any():
        return features
    present = ~missing[train_rows]
    sums = np.where(present, features[train_rows], 0.0).sum(axis=0)
    return np.where(missing, sums / np.maximum(present.sum(axis=0), 1), features)


MIN_SIZE = 10
MAX_DRAWS = 100_000


Rng = np.random.Generator | np.random.RandomState


def split_sizes(num_samples: int) -> tuple[int, int, int]:
    """Return sizes of 80/10/10 splits (FedHPO-Bench, Appendix D); remainders go to test first."""
    held_out = math.ceil(0.2 * num_samples - 1e-9)
    num_test = math.ceil(held_out / 2)
    return num_samples - held_out, held_out - num_test, num_test


def lda_partition(
    labels: NDArray[np.int64], num_clients: int, alpha: float, rng: Rng
) -> list[Integers]:
    """Partition samples over clients by latent Dirichlet allocation over the label distribution.

    For each class of the (n,) labels, proportions over clients are drawn from Dirichlet(alpha), and
    clients that already have their fair share get none of it. All draws are repeated until every
    client has at least `MIN_SIZE` samples. This is the balanced splitter of FederatedScope 0.1,
    with which the original tables were computed.
    """
    if not alpha > 0:
        raise InvalidArgumentError(f"alpha must be positive, got {alpha!r}")
    total = len(labels)
    if total <= num_clients * MIN_SIZE:
        raise InvalidArgumentError(
            f"{total} samples cannot give {num_clients} clients more than {MIN_SIZE} each; "
            "use fewer clients or a larger data set"
        )
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(MAX_DRAWS):
        partition = _draw_partition(
            classes, np.full(num_clients, float(alpha)), total / num_clients, rng
        )
        if partition is not None:
            break
    else:
        raise InvalidArgumentError(
            f"alpha={alpha!r} gave no partition with at least {MIN_SIZE} samples for each of "
            f"{num_clients} clients in {MAX_DRAWS} draws; use a larger alpha"
        )
    parts = [np.split(members, ends[:-1]) for members, ends in partition]
    clients = [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]
    for client in clients:
        rng.shuffle(client)
    return clients


def _draw_partition(
    classes: Sequence[Integers], alphas: NDArray[np.float64], fair_share: float, rng: Rng
) -> list[tuple[Integers, Integers]] | None:
    """Return shuffled rows and the ends of clients' shares, per class; None if any is too small."""
    counts = np.zeros(len(alphas), dtype=np.int64)
    partition = []
    for rows in classes:
        members = rows.copy()
        rng.shuffle(members)
        proportions = rng.dirichlet(alphas) * (counts < fair_share)
        total = np.add.reduce(proportions)
        # All clients may be full, or the proportions vanish; then the draw is repeated.
        if not total > 0:
            return None
        ends = ((proportions / total).cumsum() * len(rows)).astype(np.int64)
        ends[-1] = len(rows)
        counts += ends
        counts[1:] -= ends[:-1]
        partition.append((members, ends))
    return partition if np.minimum.reduce(counts) >= MIN_SIZE else None
