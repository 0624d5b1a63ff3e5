"""Partitions of data sets into the clients of a federation: one function per kind, by name."""

from collections.abc import Callable, Mapping

from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import require_known
from fedhpo_gym.data import Dataset, federation
from fedhpo_gym.data.graph_federations import make_graph_federation, make_hetero_federation

Partition = Callable[[Dataset, int, int, float, str], federation.Federation]
"""Takes a data set, seed, number of clients, alpha and preprocessing; returns a federation."""


def _user_partition(train: float, val: float) -> Partition:
    return lambda dataset, seed, clients, _, preprocessing: federation.make_user_federation(
        dataset, seed, preprocessing, (train, val), clients
    )


PARTITIONS: Mapping[str, Partition] = {
    "lda": federation.make_federation,
    "user": _user_partition(0.6, 0.2),
    "user-80-10-10": _user_partition(0.8, 0.1),
    # Users are given by the data, so alpha is ignored.
    "unseen": lambda data, seed, clients, _, preprocessing: federation.make_unseen_federation(
        data, seed, clients, preprocessing
    ),
    "skewed": federation.make_skewed_federation,
    # Communities have no alpha, and features are not preprocessed.
    "community": lambda data, seed, clients, *_: make_graph_federation(data, seed, clients),
    # Each client has a data set of its own.
    "task": lambda data, seed, *_: make_hetero_federation(data, seed),
}


@validate_call
def get_partition(name: str) -> Partition:
    """Return a partition by name."""
    require_known("partition", name, PARTITIONS)
    return PARTITIONS[name]
