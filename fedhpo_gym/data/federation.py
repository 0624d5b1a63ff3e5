"""From a data set to the clients of a federation: partitions, and what one seed makes of them."""

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
from fedhpo_gym.data.records import DRAWN, Features, SparseRows
from fedhpo_gym.evaluation.records import SPLITS

PREPROCESSINGS = ("label_encoded", "standardized")

QUANTITY = 2.0
"""Concentration of how much clients have, where that is drawn."""
FEWEST = 8
LEAST = 1e-3
"""Smallest concentration that is drawn with: below, numbers are all but one zero, or fail."""


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

    As in the runs behind the original tables, the seed of a course also draws its split and its
    partition. Splits are 80/10/10, unless the data set publishes them: then what it left together
    is split, 80/20 into training and validation data. Where it publishes no labelled test data, a
    tenth of its training data is.
    """
    splits = _draw_splits(dataset, seed)
    rng = stream(seed, "partition")
    parts = [
        [rows[part] for part in lda_partition(dataset.labels[rows], num_clients, alpha, rng)]
        for rows in splits
    ]
    clients = tuple(tuple(parts[s][i] for s in range(len(SPLITS))) for i in range(num_clients))
    return _federation(dataset, clients, splits[0], seed, preprocessing)


def make_user_federation(
    dataset: Dataset,
    seed: int,
    preprocessing: str = "label_encoded",
    fractions: tuple[float, float] = (0.6, 0.2),
    num_users: int | None = None,
) -> Federation:
    """Make users of a data set clients and split the samples of each at random."""
    rng = stream(seed, "split")
    clients = []
    for rows in _rows_by_user(dataset, num_users):
        rows = rng.permutation(rows)
        held_out = [
            max(round(share * len(rows)), 1) for share in (fractions[1], 1 - sum(fractions))
        ]
        if len(rows) < 3:
            held_out = [0, len(rows) - 1]
        clients.append(tuple(np.split(rows, np.cumsum([len(rows) - sum(held_out), held_out[0]]))))
    train = np.concatenate([client[0] for client in clients])
    return _federation(dataset, tuple(clients), train, seed, preprocessing)


def make_skewed_federation(
    dataset: Dataset,
    seed: int,
    num_clients: int,
    alpha: float = 0.5,
    preprocessing: str = "label_encoded",
) -> Federation:
    """Deal a data set to clients that differ in how much they have and of what.

    Sizes w of clients are drawn from Dirichlet(`QUANTITY`, ...), and who gets the samples of a
    class from Dirichlet(alpha w N, ...) with N clients, so that a client has about a share w of all
    samples and, the smaller alpha, of the fewer classes. Who has fewer than `FEWEST` samples gets
    random ones of whoever has most. Then each client's are split as those of users, 60/20/20.
    """
    if not 1 <= num_clients <= len(dataset.labels) // FEWEST:
        raise InvalidArgumentError(
            f"`num_clients` must leave each client {FEWEST} of {len(dataset.labels)} samples of "
            f"{dataset.name}, got {num_clients}"
        )
    rng = stream(seed, "partition")
    sizes = rng.dirichlet(np.full(num_clients, QUANTITY))
    owner = np.empty(len(dataset.labels), dtype=np.int64)
    for label in range(dataset.num_classes):
        mine = rng.permutation(np.flatnonzero(dataset.labels == label))
        shares = rng.dirichlet(np.maximum(alpha * num_clients * sizes, LEAST))
        ends = np.round(np.cumsum(shares) * len(mine))[:-1]
        owner[mine] = np.searchsorted(ends, np.arange(len(mine)), side="right")
    counts = np.bincount(owner, minlength=num_clients)
    for client in np.flatnonzero(counts < FEWEST):
        for _ in range(FEWEST - counts[client]):
            most = counts.argmax()
            owner[rng.choice(np.flatnonzero(owner == most))] = client
            counts[most] -= 1
    return make_user_federation(replace(dataset, users=owner), seed, preprocessing)


def make_unseen_federation(
    dataset: Dataset, seed: int, num_clients: int, preprocessing: str = "label_encoded"
) -> Federation:
    """Let some users of a data set train, and evaluate on others, whom nobody has seen.

    All rows of a user are in one split. Of the users who do not train, one half validates and the
    other tests. A client's training rows are those of one user, its validation and test rows those
    of users of the other kinds; so who trains counts, and only who trains is sampled.
    """
    users = _rows_by_user(dataset)
    left = len(users) - num_clients
    if left < 2 or num_clients < 1:
        raise InvalidArgumentError(
            f"`num_clients` must leave two of {len(users)} users out, got {num_clients}"
        )
    drawn = stream(seed, "split").permutation(len(users))
    train, val, test = np.split(drawn, [num_clients, num_clients + left // 2])
    empty = np.empty(0, dtype=np.int64)
    clients = []
    for number, user in enumerate(np.sort(train)):
        held = (np.sort(part)[number::num_clients] for part in (val, test))
        others = (np.concatenate([empty, *(users[one] for one in part)]) for part in held)
        clients.append((users[user], *others))
    rows = np.concatenate([client[0] for client in clients])
    return _federation(dataset, tuple(clients), rows, seed, preprocessing)


def _rows_by_user(dataset: Dataset, number: int | None = None) -> list[Integers]:
    """Return the rows of every user, or of so many that are drawn."""
    if dataset.users is None:
        raise InvalidArgumentError(f"`dataset` must have users, got {dataset.name}; use LDA")
    order = np.argsort(dataset.users, kind="stable")
    users = np.split(order, np.flatnonzero(np.diff(dataset.users[order])) + 1)
    if number is None or len(users) <= number:
        return users
    splittable = [rows for rows in users if len(rows) >= len(SPLITS)]
    drawn = stream(0, "users").permutation(len(splittable))[:number]
    return [splittable[i] for i in np.sort(drawn)]


def _draw_splits(dataset: Dataset, seed: int) -> list[Integers]:
    """Return the rows of train, validation and test data."""
    rng = stream(seed, "split")
    fixed = dataset.fixed_split
    if fixed is None:
        order = rng.permutation(len(dataset.labels))
        return np.split(order, np.cumsum(split_sizes(len(order)))[:-1])
    splits = [np.flatnonzero(fixed == code) for code in range(len(SPLITS))]
    if not len(splits[2]):
        order = rng.permutation(splits[0])
        splits[0], splits[2] = np.split(order, [round(0.9 * len(order))])
    order = rng.permutation(np.flatnonzero(fixed == DRAWN))
    kept = len(order) if len(splits[1]) else round(0.8 * len(order))
    return [
        np.concatenate([splits[0], order[:kept]]),
        np.concatenate([splits[1], order[kept:]]),
        splits[2],
    ]


def _federation(
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
    features = _completed(dataset.features, train_rows)
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


def _completed(features: Features, train_rows: Integers) -> Features:
    """Return features with the mean of the training rows where a number is missing."""
    if isinstance(features, SparseRows) or features.dtype.kind != "f":
        return features
    missing = np.isnan(features)
    if not missing.any():
        return features
    known = ~missing[train_rows]
    sums = np.where(known, features[train_rows], 0.0).sum(axis=0)
    return np.where(missing, sums / np.maximum(known.sum(axis=0), 1), features)


MIN_SIZE = 10
MAX_DRAWS = 100_000


Rng = np.random.Generator | np.random.RandomState


def split_sizes(num_samples: int) -> tuple[int, int, int]:
    """Return sizes of 80/10/10 splits (paper Appendix D); odd remainders go to test first."""
    held_out = math.ceil(0.2 * num_samples - 1e-9)
    num_test = math.ceil(held_out / 2)
    return num_samples - held_out, held_out - num_test, num_test


def lda_partition(
    labels: NDArray[np.int64], num_clients: int, alpha: float, rng: Rng
) -> list[Integers]:
    """Partition samples over clients by latent Dirichlet allocation over the label distribution.

    Per class of the (n,) labels, proportions over clients are drawn from Dirichlet(alpha); clients
    that already hold their fair share get none of the class; the whole draw repeats until every
    client holds at least `MIN_SIZE` samples. This is the balanced splitter of FederatedScope 0.1,
    which made the original tables.
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
        drawn = _draw(classes, np.full(num_clients, float(alpha)), total / num_clients, rng)
        if drawn is not None:
            break
    else:
        raise InvalidArgumentError(
            f"alpha={alpha!r} gave no partition with at least {MIN_SIZE} samples for each of "
            f"{num_clients} clients in {MAX_DRAWS} draws; use a larger alpha"
        )
    parts = [np.split(members, ends[:-1]) for members, ends in drawn]
    clients = [np.concatenate(own) for own in zip(*parts, strict=True)]
    for client in clients:
        rng.shuffle(client)
    return clients


def _draw(
    classes: Sequence[Integers], alphas: NDArray[np.float64], fair_share: float, rng: Rng
) -> list[tuple[Integers, Integers]] | None:
    """Return the shuffled members of classes, and where clients' shares end; None if too small."""
    counts = np.zeros(len(alphas), dtype=np.int64)
    drawn = []
    for rows in classes:
        members = rows.copy()
        rng.shuffle(members)
        proportions = rng.dirichlet(alphas) * (counts < fair_share)
        total = np.add.reduce(proportions)
        # A class can meet only full clients or vanishing proportions: that draw is lost.
        if not total > 0:
            return None
        ends = ((proportions / total).cumsum() * len(rows)).astype(np.int64)
        ends[-1] = len(rows)
        counts += ends
        counts[1:] -= ends[:-1]
        drawn.append((members, ends))
    return drawn if np.minimum.reduce(counts) >= MIN_SIZE else None
