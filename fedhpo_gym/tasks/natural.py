"""Natural federations: schools, airlines, households; logistic regression and perceptrons.

Clients are as the tables of `data.natural` have them. `<Name>` splits the rows of each client,
`<Name>Unseen` the clients: three in five train, the others are evaluated on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedhpo_gym.algorithms import ALGORITHMS
from fedhpo_gym.algorithms.serveropt import ADAPTS
from fedhpo_gym.data.natural import NaturalTable
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.tasks import logistic_regression, networks
from fedhpo_gym.tasks.federated import Task, fidelities

ROUNDS = (1, 3, 6, 13, 25, 50, 75, 100)
"""Rounds after which models are evaluated."""
TRAINING = 0.6
"""Share of the clients that train where the others are unseen."""
UNSEEN = "Unseen"


RATE = Dimension("client_sample_rate", 0.1, 1.0, "float", bins=4, scope="fidelity")


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
    """A task of logistic regression whose clients are real ones, such as schools."""

    @property
    def name(self) -> str:
        """Model and data set, as in environment ids, with a suffix if whole clients are split."""
        return super().name + (UNSEEN if self.partition == "unseen" else "")


@dataclass(frozen=True, kw_only=True)
class NaturalPerceptron(NaturalTask, networks.PerceptronTask):
    """A task of perceptrons with such clients."""


def natural_names(table: NaturalTable) -> tuple[str, ...]:
    """Return what the problems of a table are called."""
    return tuple(f"{model}-{table.name}{kind}" for model in ("LR", "MLP") for kind in ("", UNSEEN))


def natural_tasks(table: NaturalTable) -> Iterator[Task]:
    """Yield logistic regression and perceptrons, split within clients and by clients."""
    shared = {
        **shared_fields(table),
        "fidelity_space": fidelities(ROUNDS, RATE),
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
    space = networks.MLP_SPACE_V1
    largest = (int(space[name].high) for name in networks.MLP_ARCHITECTURE)
    perceptron = NaturalPerceptron(
        model="MLP",
        num_parameters=networks.perceptron_size(table.width, table.classes, *largest),
        client_space=space,
        budget_s=networks.MLP_BUDGET_S,
        architecture=networks.MLP_ARCHITECTURE,
        tags=frozenset({"mlp", "natural", "cross-silo"}),
        **shared,
    )
    for task in (linear, perceptron):
        yield task
        yield task.variant(partition="unseen", num_clients=round(TRAINING * table.clients))


MODEL = "model"
MODELS = {"lr": "LR", "mlp": "PlainMLP"}
"""What the engine calls the models, by the words of the space."""
_DEEP = (MODEL, ("mlp",))

CLIENT_SPACE = SearchSpace(
    (
        Dimension.of_categories(MODEL, tuple(MODELS)),
        Dimension("model_depth", 1, 3, "int", bins=3, unit="hidden layers", active=_DEEP),
        Dimension("model_width", 8, 128, "int", log=True, bins=5, unit="units", active=_DEEP),
        Dimension("learning_rate", 1e-3, 10.0, "float", log=True, bins=9),
        Dimension("rate_decay", 0.01, 1.0, "float", log=True, bins=3),
        Dimension("momentum", 0.0, 0.95, "float", bins=4),
        Dimension("weight_decay", 1e-6, 0.1, "float", log=True, bins=6),
        Dimension("batch_size", 8, 256, "int", log=True, bins=6, unit="samples"),
        Dimension("step_size", 1, 8, "int", log=True, bins=4, unit="local epochs"),
    )
)

_SECOND = Dimension("second_decay", 0.9, 0.999, "float", bins=3, scope="server", active=ADAPTS)
_ADAPTED = Dimension("clip_rate", 0.0, 0.4, "float", bins=3, scope="server")
_LAST = {"serveropt": (_SECOND,), "dpfedavg": (_ADAPTED,)}
"""Settings of an algorithm that are searched here, and fixed elsewhere. `clip_rate` is around the
0.2 of Andrew et al. (2021), and as good as none at its low end; `update_clip` around their 0.1."""

JOINT_ROUNDS, FEW, TEN = (1, 2, 3, 5, 10, 20, 30, 40), (1, 2, 3, 4, 5), (1, 2, 3, 5, 7, 10)
REGIMES = ("Joint", "JointFew", "JointPrivate")
RESULTS = "Results"
"""Model of problems of which somebody's results are all there is."""
TRIALS_ONLY = ("JointFew-", "JointPrivate-", f"{RESULTS}-")
"""How names begin that have no round ids: those say themselves how many rounds a course has."""
EPSILON = 8.0
BUDGET_S, CLIENT_S = 43_200.0, 1.8
"""Forty rounds have half a day. Fewer have for each of theirs so many seconds a client, and for a
hundred clients more: random search makes 25 to 60 trials."""


@dataclass(frozen=True, kw_only=True)
class JointTask(Task):
    """A task whose configurations choose the model and the server's optimizer, too."""

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(MODELS.values())

    @cached_property
    def space(self) -> SearchSpace:
        """Search space; what the algorithm leaves to settings elsewhere is searched."""
        dimensions = (*self.client_space.dimensions, *ALGORITHMS[self.algorithm].dimensions)
        return SearchSpace((*dimensions, *_LAST.get(self.algorithm, ()), *self.tuned))

    @property
    def all_settings(self) -> dict[str, float]:
        searched = self.space.names
        return {k: v for k, v in super().all_settings.items() if k not in searched}

    def parameters_of(self, configuration: Mapping[str, Value]) -> int:
        """Return the size of the model of a configuration; numbers may stand for words."""
        if configuration[MODEL] in ("lr", 0):
            return (self.num_features + 1) * self.num_classes
        depth, width = (int(configuration[name]) for name in networks.MLP_ARCHITECTURE)
        return networks.perceptron_size(
            self.num_features, self.num_classes, depth, width, vectors=1
        )


def joint_names(table: NaturalTable) -> tuple[str, ...]:
    """Return what the problems of a table are called."""
    return tuple(f"{regime}-{table.name}" for regime in REGIMES)


def joint_problems(shared: Mapping[str, Any]) -> Iterator[JointTask]:
    """Yield the joint problem of a federation in every regime; `shared` as of `shared_fields`."""
    features, classes = shared["num_features"], shared["num_classes"]
    depth, width = (int(CLIENT_SPACE[name].high) for name in networks.MLP_ARCHITECTURE)
    plain = JointTask(
        model=REGIMES[0],
        num_parameters=networks.perceptron_size(features, classes, depth, width, vectors=1),
        client_space=CLIENT_SPACE,
        fidelity_space=fidelities(JOINT_ROUNDS, RATE),
        stored_rounds=JOINT_ROUNDS,
        budget_s=BUDGET_S,
        algorithm="serveropt",
        architecture=(MODEL, *networks.MLP_ARCHITECTURE),
        tags=frozenset({"joint", "natural", "cross-silo"}),
        **shared,
    )
    yield plain
    for name, of in zip(REGIMES[1:], (FEW, TEN), strict=True):
        few = replace(plain, model=name, fidelity_space=fidelities(of, RATE), stored_rounds=of)
        task = replace(few, budget_s=round(of[-1] * CLIENT_S * (100 + shared["num_clients"])))
        private = name == REGIMES[2]
        yield replace(task, algorithm="dpfedavg").fix({"epsilon": EPSILON}) if private else task
