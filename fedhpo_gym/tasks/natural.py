"""Federations of life: schools, airlines, households; logistic regression and perceptrons.

Clients are as the tables of `fedhpo_gym.natural` have them. `<Name>` splits the rows of each
client, `<Name>Unseen` the clients: three in five train, the others are evaluated on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedhpo_gym.natural import NATURAL, NaturalTable
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.tasks import logistic_regression, mlp
from fedhpo_gym.tasks.federated import STORED_ROUNDS, Task

ROUNDS = 100
TRAINING = 0.6
"""Share of the clients that train where the others are unseen."""
UNSEEN = "Unseen"


def fidelity_space(rounds: int) -> SearchSpace:
    """Return the fidelities of courses of so many rounds; few clients take part in the cheapest."""
    values = tuple(r for r in STORED_ROUNDS if r <= rounds)
    values += () if rounds in values else (rounds,)
    return SearchSpace(
        (
            Dimension("round", 1, rounds, "int", values=values, unit="rounds", scope="fidelity"),
            Dimension("client_sample_rate", 0.1, 1.0, "float", bins=4, scope="fidelity"),
        )
    )


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


def _linear(table: NaturalTable) -> NaturalTask:
    return NaturalTask(
        model="LR",
        dataset=table.name,
        num_features=table.width,
        num_classes=table.classes,
        num_parameters=(table.width + 1) * table.classes,
        client_space=logistic_regression.CLIENT_SPACE_V1,
        fidelity_space=fidelity_space(ROUNDS),
        budget_s=logistic_regression.BUDGET_S,
        version=1,
        reward="improvement",
        unstored="raw",
        num_clients=table.clients,
        partition="user",
        preprocessing="standardized",
        citation=f"problem of this suite on the R data set {table.source}",
        tags=frozenset({"lr", "natural", "cross-silo"}),
    )


_KEPT = (
    *("dataset", "num_features", "num_classes", "fidelity_space", "version", "reward"),
    *("unstored", "num_clients", "partition", "preprocessing", "citation"),
)
"""What the problems of a table share."""


def _perceptron(like: NaturalTask) -> NaturalPerceptron:
    space = mlp.CLIENT_SPACE_V1
    largest = (int(space[name].high) for name in mlp.ARCHITECTURE)
    return NaturalPerceptron(
        model="MLP",
        num_parameters=mlp.perceptron_size(like.num_features, like.num_classes, *largest),
        client_space=space,
        budget_s=mlp.BUDGET_S,
        architecture=mlp.ARCHITECTURE,
        tags=frozenset({"mlp", *like.tags} - {"lr"}),
        **{name: getattr(like, name) for name in _KEPT},
    )


def _tasks() -> Iterator[Task]:
    for table in NATURAL:
        within = _linear(table)
        training = round(TRAINING * table.clients)
        for task in (within, within.variant(partition="unseen", num_clients=training)):
            yield task
            yield _perceptron(task)


NATURAL_TASKS = tuple(_tasks())
"""Per table: logistic regression and perceptrons, split within clients and by clients."""
