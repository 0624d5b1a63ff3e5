"""Convolutional networks on images: the CNN rows of the paper's Tables 1, 7 and 8."""

from __future__ import annotations

from dataclasses import replace

from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.tasks.federated import SPARSE_ROUNDS, Task

PAPER = "Wang et al.: FedHPO-Bench (2022), Tables 1, 7, 8"

CLIENT_SPACE = SearchSpace(
    (
        Dimension("learning_rate", 0.01, 1.0, "float", log=True, bins=10),
        Dimension("weight_decay", 0.0, 0.001, "float", bins=4),
        Dimension("dropout", 0.0, 0.5, "float", bins=2),
        Dimension("batch_size", 16, 64, "int", values=(16, 32, 64), unit="samples"),
        Dimension("step_size", 1, 4, "int", bins=4, unit="local epochs"),
    )
)

FIDELITY_SPACE = SearchSpace(
    (
        Dimension("round", 1, 500, "int", values=SPARSE_ROUNDS, unit="rounds", scope="fidelity"),
        Dimension("client_sample_rate", 0.2, 1.0, "float", bins=5, scope="fidelity"),
    )
)


def _fidelity_v1(rounds: int) -> SearchSpace:
    """Return the fidelities that a sample of version 1 answers: courses of so many rounds."""
    values = tuple(r for r in SPARSE_ROUNDS if r <= rounds)
    first, rate = FIDELITY_SPACE.dimensions
    return SearchSpace((replace(first, high=rounds, values=values), rate))


DAY_S = 86_400.0

_FEMNIST = Task(
    model="CNN",
    dataset="FEMNIST",
    num_features=28 * 28,
    num_classes=62,
    num_parameters=6_603_902,
    client_space=CLIENT_SPACE,
    fidelity_space=FIDELITY_SPACE,
    budget_s=20 * DAY_S,
    citation=f"{PAPER}; Caldas et al.: LEAF (2018)",
    num_clients=105,
    partition="user",
    precisions=("float32", "bfloat16"),
    tags=frozenset({"cnn", "images", "cross-silo"}),
)

_CIFAR10 = Task(
    model="CNN",
    dataset="CIFAR10",
    num_features=32 * 32 * 3,
    num_classes=10,
    num_parameters=579_594,
    client_space=CLIENT_SPACE,
    fidelity_space=FIDELITY_SPACE,
    budget_s=20 * DAY_S,
    citation=f"{PAPER}; Krizhevsky: Learning multiple layers of features (2009)",
    precisions=("float32", "bfloat16"),
    tags=frozenset({"cnn", "images", "cross-silo"}),
)

CNN_TASKS = (
    _FEMNIST,
    # As far as the rungs of the paper's optimizers go; the budget buys twenty such courses of all
    # clients, and the paper's twenty days buy two.
    _FEMNIST.variant(
        version=1,
        fidelity_space=_fidelity_v1(81),
        reward="improvement",
        precision="bfloat16",
        budget_s=200 * DAY_S,
    ),
    _CIFAR10,
    _CIFAR10.variant(
        version=1, fidelity_space=_fidelity_v1(27), reward="improvement", precision="bfloat16"
    ),
)
