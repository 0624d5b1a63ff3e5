"""Federations of life: schools, airlines, households; logistic regression and perceptrons.

Clients are as the tables of `data.natural` have them. `<Name>` splits the rows of each client,
`<Name>Unseen` the clients: three in five train, the others are evaluated on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedhpo_gym.data.natural import NaturalTable
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.tasks import logistic_regression, mlp
from fedhpo_gym.tasks.federated import Task

ROUNDS = (1, 3, 6, 13, 25, 50, 75, 100)
"""Rounds after which models are evaluated."""
TRAINING = 0.6
"""Share of the clients that train where the others are unseen."""
UNSEEN = "Unseen"


def fidelity_space(rounds: tuple[int, ...]) -> SearchSpace:
    """Return the fidelities of courses that are evaluated after some rounds, ascending."""
    last = rounds[-1]
    return SearchSpace(
        (
            Dimension("round", 1, last, "int", values=rounds, unit="rounds", scope="fidelity"),
            Dimension("client_sample_rate", 0.1, 1.0, "float", bins=4, scope="fidelity"),
        )
    )


def shared_fields(table: NaturalTable) -> dict[str, Any]:
    """Return what the problems of a table share, split within clients."""
    return {
        "dataset": table.name,
        "num_features": table.width,
        "num_classes": table.classes,
        "num_clients": table.clients,
        "partition": "user",
        "preprocessing": "standardized",
        "version": 1,
        "reward": "improvement",
        "unstored": "raw",
        "citation": f"problem of this suite on {table.origin}",
    }


@dataclass(frozen=True, kw_only=True)
class NaturalTask(Task):
    """A task of logistic regression whose clients are those of life."""

    @property
    def name(self) -> str:
        """See `Task.name`; where whole clients are split, it says so."""
        return super().name + (UNSEEN if self.partition == "unseen" else "")


@dataclass(frozen=True, kw_only=True)
class NaturalPerceptron(NaturalTask, mlp.PerceptronTask):
    """The same with perceptrons."""


def natural_names(table: NaturalTable) -> tuple[str, ...]:
    """Return what the problems of a table are called."""
    return tuple(f"{model}-{table.name}{kind}" for model in ("LR", "MLP") for kind in ("", UNSEEN))


def natural_tasks(table: NaturalTable) -> Iterator[Task]:
    """Yield logistic regression and perceptrons, split within clients and by clients."""
    shared = {
        **shared_fields(table),
        "fidelity_space": fidelity_space(ROUNDS),
        "stored_rounds": ROUNDS,
    }
    linear = NaturalTask(
        model="LR",
        num_parameters=(table.width + 1) * table.classes,
        client_space=logistic_regression.CLIENT_SPACE_V1,
        budget_s=logistic_regression.BUDGET_S,
        tags=frozenset({"lr", "natural", "cross-silo"}),
        **shared,
    )
    space = mlp.CLIENT_SPACE_V1
    largest = (int(space[name].high) for name in mlp.ARCHITECTURE)
    perceptron = NaturalPerceptron(
        model="MLP",
        num_parameters=mlp.perceptron_size(table.width, table.classes, *largest),
        client_space=space,
        budget_s=mlp.BUDGET_S,
        architecture=mlp.ARCHITECTURE,
        tags=frozenset({"mlp", "natural", "cross-silo"}),
        **shared,
    )
    for task in (linear, perceptron):
        yield task
        yield task.variant(partition="unseen", num_clients=round(TRAINING * table.clients))
