"""Graph convolutional networks on citation graphs: the GNN rows of the paper's Tables 1, 7, 8."""

from __future__ import annotations

from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.tasks.federated import STORED_ROUNDS, Task

PAPER = "Wang et al.: FedHPO-Bench (2022), Tables 1, 7, 8"
SHCHUR = "data as published by Shchur et al.: Pitfalls of graph neural network evaluation (2018)"

STEPS = "full-batch steps"

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


GNN_TASKS = (
    _task("Cora", 1433, 7, 92_231),
    _task("CiteSeer", 3703, 6, 237_446),
    _task("PubMed", 500, 3, 32_259),
)
