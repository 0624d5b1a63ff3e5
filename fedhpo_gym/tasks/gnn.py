"""Graph convolutional networks on citation graphs: the GNN rows of the paper's Tables 1, 7, 8."""

from __future__ import annotations

from dataclasses import replace

from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.tasks.federated import STORED_ROUNDS, Task

PAPER = "Wang et al.: FedHPO-Bench (2022), Tables 1, 7, 8"
SHCHUR = "data as published by Shchur et al.: Pitfalls of graph neural network evaluation (2018)"

STEPS, RATE = "full-batch steps", "client_sample_rate"

CLIENT_SPACE = SearchSpace(
    (
        Dimension("learning_rate", 0.01, 1.0, "float", log=True, bins=10),
        Dimension("weight_decay", 0.0, 0.001, "float", bins=4),
        Dimension("dropout", 0.0, 0.5, "float", bins=2),
        Dimension("step_size", 1, 8, "int", bins=8, unit=STEPS),
    )
)

FIDELITY_SPACE = SearchSpace(
    (
        Dimension("round", 1, 500, "int", values=STORED_ROUNDS, unit="rounds", scope="fidelity"),
        Dimension("client_sample_rate", 0.2, 1.0, "float", bins=5, scope="fidelity"),
    )
)

# What somebody would search who does not know where the good configurations are; the algorithm adds
# its own.
WIDE_SPACE = SearchSpace(
    (
        Dimension("learning_rate", 1e-3, 10.0, "float", log=True, bins=13),
        Dimension("step_size", 1, 16, "int", log=True, values=(1, 2, 4, 8, 16), unit=STEPS),
        Dimension("weight_decay", 1e-6, 0.01, "float", log=True, bins=5),
        Dimension("momentum", 0.0, 0.95, "float", bins=4),
        Dimension("clip_norm", 0.01, 10.0, "float", log=True, bins=4),
        Dimension("dropout", 0.0, 0.8, "float", bins=5),
        Dimension("rate_decay", 0.01, 1.0, "float", log=True, bins=3),
    )
)

DAY_S = 86_400.0


def _task(dataset: str, num_features: int, num_classes: int, num_parameters: int) -> Task:
    return Task(
        model="GNN",
        dataset=dataset,
        num_features=num_features,
        num_classes=num_classes,
        num_parameters=num_parameters,
        client_space=CLIENT_SPACE,
        fidelity_space=FIDELITY_SPACE,
        budget_s=DAY_S,
        citation=f"{PAPER}; {SHCHUR}",
        partition="community",
        tags=frozenset({"gnn", "graphs", "cross-silo"}),
    )


def _v2(task: Task) -> Task:
    """Return version 2: twenty communities, few of them a round, and all that a server decides."""
    rounds = tuple(r for r in STORED_ROUNDS if r <= 200)
    first = task.fidelity_space["round"]
    return task.variant(
        version=2,
        client_space=WIDE_SPACE,
        fidelity_space=SearchSpace(
            (
                replace(first, high=200, values=rounds),
                Dimension(RATE, 0.1, 1.0, "float", values=(0.1, 0.25, 0.5, 1.0), scope="fidelity"),
            )
        ),
        num_clients=20,
        algorithm="serveropt",
        reward="improvement",
    )


_CORA = _task("Cora", 1433, 7, 92_231)
_CITESEER = _task("CiteSeer", 3703, 6, 237_446)

GNN_TASKS = (_CORA, _CITESEER, _task("PubMed", 500, 3, 32_259))

UPCOMING_GNN_TASKS = (_v2(_CORA), _v2(_CITESEER))
"""Versions whose numbers are not computed yet."""
