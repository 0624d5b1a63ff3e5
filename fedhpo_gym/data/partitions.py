"""How a data set becomes the clients of a federation: one function per kind, by name."""

from collections.abc import Callable, Mapping

from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import require_known
from fedhpo_gym.data import Dataset, federation
from fedhpo_gym.data.graph_federations import make_graph_federation, make_hetero_federation

Partition = Callable[[Dataset, int, int, float, str], federation.Federation]
"""Returns the federation of data set, seed, number of clients, alpha and preprocessing."""


def _by_user(train: float, val: float) -> Partition:
    return lambda dataset, seed, clients, _, preprocessing: federation.make_user_federation(
        dataset, seed, preprocessing, (train, val), clients
    )


PARTITIONS: Mapping[str, Partition] = {
    "lda": federation.make_federation,
    "user": _by_user(0.6, 0.2),
    "user-80-10-10": _by_user(0.8, 0.1),
    # The data say who is who: no alpha.
    "unseen": lambda data, seed, clients, _, preprocessing: federation.make_unseen_federation(
        data, seed, clients, preprocessing
    ),
    "skewed": federation.make_skewed_federation,
    # Communities have no concentration; features stay as published.
    "community": lambda data, seed, clients, *_: make_graph_federation(data, seed, clients),
    # Every client has its own problem.
    "task": lambda data, seed, *_: make_hetero_federation(data, seed),
}


@validate_call
def get_partition(name: str) -> Partition:
    """Return a partition by name."""
    require_known("partition", name, PARTITIONS)
    return PARTITIONS[name]
