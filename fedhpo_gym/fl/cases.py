"""Small made-up problems of every model family, on which the laws of the engine are tried."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhpo_gym.datasets.graphs import make_graph_set, make_graph_sets
from fedhpo_gym.datasets.graphs.records import make_node_graph
from fedhpo_gym.datasets.graphs.sparse import from_dense
from fedhpo_gym.datasets.ratings import make_ratings, ratings_dataset
from fedhpo_gym.datasets.records import Dataset, make_dataset
from fedhpo_gym.federations.federation import Federation, make_user_federation
from fedhpo_gym.federations.graphs import make_graph_federation
from fedhpo_gym.federations.heterogeneous import make_hetero_federation
from fedhpo_gym.fl.models import MODELS, Model
from fedhpo_gym.fl.packing import Course
from fedhpo_gym.seeding import stream

if TYPE_CHECKING:
    import torch

BERT_SIZE: Mapping[str, int] = {
    "vocabulary": 60,
    "hidden": 24,
    "layers": 2,
    "heads": 2,
    "inner": 40,
    "positions": 12,
}


def _small_bert() -> type[Model]:
    from fedhpo_gym.fl.models.bert import BertTiny, Size

    class SmallBert(BertTiny):
        """The transformer with fewer of everything, from random weights."""

        @classmethod
        def for_federation(
            cls, federation: Federation, device: torch.device, **shape: Any
        ) -> BertTiny:
            del shape
            return cls(federation.num_classes, device, size=Size(**BERT_SIZE))

    return SmallBert


@dataclass(frozen=True, eq=False)
class Case:
    """Courses of one family that differ in all that decides how they are grouped.

    Attributes:
        family: name of the model in `MODELS`.
        model: the model.
        federation: its data.
        courses: what is trained.
    """

    family: str
    model: type[Model]
    federation: Federation
    courses: tuple[Course, ...]


@cache
def make_case(family: str) -> Case:
    """Return the case of a family.

    Raises:
        MissingDependencyError: the family needs a package that is not installed.
    """
    make, more, number = _FAMILIES[family]
    model = MODELS[family]
    if family == "BERT":
        model = _small_bert()
    return Case(family, model, make(), tuple(_courses(more, number)))


def _courses(more: Sequence[Mapping[str, float]], number: int) -> Iterator[Course]:
    """Yield courses of unequal rates for every shape in `more`, several minibatches and cohorts.

    Their numbers are odd on purpose: what a library rounds otherwise beside neighbours is what does
    not fill its vectors.
    """
    rounds = ((4, 1, 1.0), (16, 2, 0.5), (256, 1, 1.0), (7, 1, 0.7))
    for shape, (size, epochs, share) in itertools.product(more, rounds):
        for rate in np.geomspace(0.01, 0.3, number).tolist():
            settings = {"learning_rate": rate, "weight_decay": 0.001, "batch_size": size}
            yield Course({**settings, "step_size": epochs, **shape}, share, 1)


def _users(*sizes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.repeat(np.arange(len(sizes)), sizes)


def _rows() -> Federation:
    rng, users = stream(1, "rows"), _users(97, 61, 40, 23, 12)
    labels = rng.integers(3, size=len(users))
    features = rng.normal(size=(len(users), 7)) * 2 + labels[:, None]
    return make_user_federation(make_dataset("rows", features, labels, 3, users), seed=1)


def _images() -> Federation:
    rng, users = stream(1, "images"), _users(24, 20, 17, 5)
    labels = rng.integers(3, size=len(users))
    pixels = rng.integers(0, 120, (len(users), 8, 8), dtype=np.uint8)
    pixels[np.arange(len(users)), labels * 2] += 100
    return make_user_federation(make_dataset("images", pixels, labels, 3, users), seed=1)


def _sentences() -> Federation:
    rng, users = stream(1, "sentences"), _users(33, 25, 20, 11)
    n, length = len(users), 11
    tokens = rng.integers(5, BERT_SIZE["vocabulary"], (n, length), dtype=np.int32)
    labels = rng.integers(2, size=n)
    tokens[:, 1] = 3 + labels
    tokens[np.arange(length) >= rng.integers(2, length + 1, n)[:, None]] = 0
    tokens[:, 0] = 2
    return make_user_federation(make_dataset("sentences", tokens, labels, 2, users), seed=1)


def _graph() -> Federation:
    rng, groups = stream(1, "graph"), 7
    group = rng.integers(groups, size=230)
    chance = np.where(group[:, None] == group, 0.2, 0.01)
    edges = np.argwhere(rng.random(chance.shape) < chance).T
    features = (rng.random((230, 7)) < 0.3) * rng.integers(1, 4, (230, 7))
    graph = make_node_graph("graph", from_dense(features), group, edges, groups)
    return make_graph_federation(graph, seed=1, num_clients=3)


def _graph_sets() -> Federation:
    sets = []
    for graphs, width, classes in ((20, 4, 2), (35, 7, 3), (27, 5, 3)):
        first = 3 * np.arange(graphs)  # paths of three nodes
        starts, ends = np.concatenate([first, first + 1]), np.concatenate([first + 1, first + 2])
        nodes = from_dense(stream(graphs, "nodes").integers(0, 2, (3 * graphs, width)))
        labels, offsets = np.arange(graphs) % classes, 3 * np.arange(graphs + 1)
        edges = np.stack([starts, ends])
        sets.append(make_graph_set(f"{graphs} paths", nodes, offsets, edges, labels, classes))
    return make_hetero_federation(make_graph_sets("paths", sets), seed=1)


def _ratings() -> Federation:
    data: Dataset = ratings_dataset(
        "ratings", make_ratings(num_users=40, num_items=30, mean_ratings=12.0)
    )
    return make_user_federation(data, 1, fractions=(0.8, 0.1))


_Shapes = Sequence[Mapping[str, float]]
_DEEP = [{"model_depth": d, "model_width": w} for d, w in ((1, 51), (1, 64), (2, 33))]
_FAMILIES: Mapping[str, tuple[Callable[[], Federation], _Shapes, int]] = {
    # More courses than fill the vectors of a processor, where they are cheap.
    "LR": (_rows, [{}], 29),
    "LeafLR": (_rows, [{}], 29),
    "MLP": (_rows, _DEEP, 7),
    "PlainMLP": (_rows, _DEEP, 7),
    "CNN": (_images, [{"dropout": 0.0}, {"dropout": 0.4}], 1),
    "BERT": (_sentences, [{"pretrained": 0.0, "dropout": p} for p in (0.0, 0.3)], 1),
    "GNN": (_graph, [{"dropout": 0.0}, {"dropout": 0.5}], 4),
    "MF": (_ratings, [{}], 2),
    "Hetero": (_graph_sets, [{}], 7),
}
"""What makes the data of a family, shapes of its courses, and courses per shape and round."""
