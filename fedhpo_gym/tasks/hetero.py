"""Clients with problems of their own: the Hetero row of the paper's Tables 1, 7 and 8.

Every client has its own hyperparameters, so the search space is the product of the clients'
spaces: `learning_rate@0` is the learning rate of client 0.
"""

from __future__ import annotations

from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.tasks.federated import SPARSE_ROUNDS, Task

PAPER = "Wang et al.: FedHPO-Bench (2022), Tables 1, 7, 8"
NUM_CLIENTS = 5


def _client(number: int) -> tuple[Dimension, ...]:
    rate, steps = f"learning_rate@{number}", f"step_size@{number}"
    return (
        Dimension(rate, 0.001, 0.01, "float", log=True, bins=2),
        Dimension(steps, 1, 4, "int", bins=2, unit="local epochs"),
    )


CLIENT_SPACE = SearchSpace(tuple(d for number in range(NUM_CLIENTS) for d in _client(number)))

FIDELITY_SPACE = SearchSpace(
    (
        Dimension("round", 1, 500, "int", values=SPARSE_ROUNDS, unit="rounds", scope="fidelity"),
        Dimension("client_sample_rate", 0.2, 1.0, "float", bins=5, scope="fidelity"),
    )
)

HETERO_TASKS = (
    Task(
        model="Hetero",
        dataset="GraphDC",
        num_features=74,
        num_classes=6,
        num_parameters=8_320,  # of the two convolutions: the rest never travels
        client_space=CLIENT_SPACE,
        fidelity_space=FIDELITY_SPACE,
        budget_s=86_400.0,
        citation=f"{PAPER}; Wu et al.: MoleculeNet (2018); Morris et al.: TUDataset (2020)",
        num_clients=NUM_CLIENTS,
        partition="task",
        settings=(("batch_size", 64.0),),
        tags=frozenset({"gnn", "graphs", "cross-silo", "personalised"}),
    ),
)
