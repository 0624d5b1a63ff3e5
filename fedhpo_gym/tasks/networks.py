"""Networks on images, sentences, graphs and tabular data: those rows of Tables 1, 7 and 8.

The clients of the Hetero row have hyperparameters of their own, so its search space is the product
of theirs: `learning_rate@0` is the learning rate of client 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from fedhpo_gym.algorithms.settings import Setting
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.space.per_client import client_key
from fedhpo_gym.tasks.federated import SPARSE_ROUNDS, STORED_ROUNDS, Task, fidelities
from fedhpo_gym.tasks.logistic_regression import CLIENT_SPACE, LR_TASKS, PAPER

BERT = "Turc et al.: Well-Read Students Learn Better (2019)"
SHCHUR = "data as published by Shchur et al.: Pitfalls of graph neural network evaluation (2018)"
DAY_S = 86_400.0
BERT_ROUNDS = (1, 3, 6, 9, 13, 19, 27, 40)
"""Rounds after which models are evaluated: an evaluation costs a third of an epoch."""
MAX_LENGTH = 64
HETERO_CLIENTS = 5

_REGULARIZED = (
    Dimension("learning_rate", 0.01, 1.0, "float", log=True, bins=10),
    Dimension("weight_decay", 0.0, 0.001, "float", bins=4),
    Dimension("dropout", 0.0, 0.5, "float", bins=2),
)
_EPOCHS = Dimension("step_size", 1, 4, "int", bins=4, unit="local epochs")
_CNN_BATCH = Dimension("batch_size", 16, 64, "int", values=(16, 32, 64), unit="samples")
_BERT_BATCH = Dimension("batch_size", 8, 128, "int", log=True, bins=5, unit="samples")
_STEPS = Dimension("step_size", 1, 8, "int", bins=8, unit="full-batch steps")


_FEMNIST = Task(
    model="CNN",
    dataset="FEMNIST",
    num_features=28 * 28,
    num_classes=62,
    num_parameters=6_603_902,
    client_space=SearchSpace((*_REGULARIZED, _CNN_BATCH, _EPOCHS)),
    fidelity_space=fidelities(SPARSE_ROUNDS),
    budget_s=20 * DAY_S,
    citation=f"{PAPER}; Caldas et al.: LEAF (2018)",
    num_clients=105,
    partition="user",
    precisions=("float32", "bfloat16"),
    tags=frozenset({"cnn", "images", "cross-silo"}),
)
_CIFAR10 = replace(
    _FEMNIST,
    dataset="CIFAR10",
    num_features=32 * 32 * 3,
    num_classes=10,
    num_parameters=579_594,
    citation=f"{PAPER}; Krizhevsky: Learning multiple layers of features (2009)",
    num_clients=5,
    partition="lda",
)

CNN_TASKS = (
    _FEMNIST,
    # As far as the rungs of the paper's optimizers go; the budget buys twenty such courses of all
    # clients, and the paper's twenty days buy two.
    _FEMNIST.variant(
        version=1,
        fidelity_space=fidelities([r for r in SPARSE_ROUNDS if r <= 81]),
        reward="improvement",
        precision="bfloat16",
        budget_s=200 * DAY_S,
    ),
    _CIFAR10,
    _CIFAR10.variant(
        version=1,
        fidelity_space=fidelities([r for r in SPARSE_ROUNDS if r <= 27]),
        reward="improvement",
        precision="bfloat16",
    ),
)

BERT_TASKS = tuple(
    Task(
        model="BERT",
        dataset=dataset,
        num_features=MAX_LENGTH,
        num_classes=2,
        num_parameters=4_386_178,
        client_space=SearchSpace((*_REGULARIZED, _BERT_BATCH, _EPOCHS)),
        fidelity_space=fidelities(BERT_ROUNDS),
        budget_s=20 * DAY_S,
        citation=f"{PAPER}; {BERT}; {citation}",
        # 0 trains from random weights: another problem, whose tables have another name.
        model_settings=(("pretrained", Setting(1.0, 0.0, 1.0)),),
        tags=frozenset({"bert", "texts", "cross-silo"}),
    )
    for dataset, citation in (
        ("SST2", "Socher et al. (2013), Wang et al.: GLUE (2018)"),
        ("CoLA", "Warstadt et al. (2019)"),
    )
)

GNN_TASKS = tuple(
    Task(
        model="GNN",
        dataset=dataset,
        num_features=num_features,
        num_classes=num_classes,
        num_parameters=num_parameters,
        client_space=SearchSpace((*_REGULARIZED, _STEPS)),
        fidelity_space=fidelities(STORED_ROUNDS),
        budget_s=DAY_S,
        citation=f"{PAPER}; {SHCHUR}",
        partition="community",
        tags=frozenset({"gnn", "graphs", "cross-silo"}),
    )
    for dataset, num_features, num_classes, num_parameters in (
        ("Cora", 1433, 7, 92_231),
        ("CiteSeer", 3703, 6, 237_446),
        ("PubMed", 500, 3, 32_259),
    )
)


_OWN = (
    Dimension("learning_rate", 0.001, 0.01, "float", log=True, bins=2),
    Dimension("step_size", 1, 4, "int", bins=2, unit="local epochs"),
)
HETERO_TASKS = (
    Task(
        model="Hetero",
        dataset="GraphDC",
        num_features=74,
        num_classes=6,
        num_parameters=8_320,  # of the two convolutions: the rest never travels
        client_space=SearchSpace(
            tuple(
                replace(one, name=client_key(one.name, client))
                for client in range(HETERO_CLIENTS)
                for one in _OWN
            )
        ),
        fidelity_space=fidelities(SPARSE_ROUNDS),
        budget_s=DAY_S,
        citation=f"{PAPER}; Wu et al.: MoleculeNet (2018); Morris et al.: TUDataset (2020)",
        num_clients=HETERO_CLIENTS,
        partition="task",
        settings=(("batch_size", 64.0),),
        tags=frozenset({"gnn", "graphs", "cross-silo", "personalised"}),
    ),
)


MLP_SPACE = SearchSpace(
    (
        *CLIENT_SPACE.dimensions,
        Dimension("model_depth", 1, 3, "int", bins=3, unit="hidden layers"),
        Dimension("model_width", 16, 1024, "int", log=True, bins=7, unit="units"),
    )
)

# Chosen by a wide search, too. Wide layers at batches of 4 are left out: they cost most, and their
# courses share no work.
MLP_SPACE_V1 = SearchSpace(
    (
        Dimension("learning_rate", 0.001, 10.0, "float", log=True, bins=5),
        Dimension("weight_decay", 1e-6, 0.3, "float", log=True, bins=6),
        Dimension("batch_size", 16, 256, "int", log=True, bins=5, unit="samples"),
        Dimension("step_size", 1, 4, "int", log=True, bins=3, unit="local epochs"),
        Dimension("model_depth", 1, 3, "int", bins=3, unit="hidden layers"),
        Dimension("model_width", 16, 256, "int", log=True, bins=5, unit="units"),
    )
)

MLP_BUDGET_S = 43_200.0
MLP_ARCHITECTURE = ("model_depth", "model_width")


@dataclass(frozen=True, kw_only=True)
class PerceptronTask(Task):
    """A task whose configurations choose depth and width of the model."""

    def parameters_of(self, configuration: Mapping[str, Value]) -> int:
        """Return the numbers of a model; running statistics do not count."""
        depth, width = (int(configuration[name]) for name in self.architecture)
        return perceptron_size(self.num_features, self.num_classes, depth, width)


def perceptron_size(inputs: int, classes: int, depth: int, width: int, vectors: int = 3) -> int:
    """Return the numbers trained; a unit has `vectors` of them besides its weights."""
    hidden = (inputs + vectors) * width + (depth - 1) * (width + vectors) * width
    return hidden + (width + 1) * classes


def _perceptrons(like: Task) -> PerceptronTask:
    """Return the task on the data of a task of logistic regression."""
    space = MLP_SPACE_V1 if like.version else MLP_SPACE
    largest = (int(space[name].high) for name in MLP_ARCHITECTURE)
    changes = {
        "model": "MLP",
        "num_parameters": perceptron_size(like.num_features, like.num_classes, *largest),
        "client_space": space,
        "budget_s": MLP_BUDGET_S,
        "citation": like.citation.replace("LR rows", "MLP rows"),
        "architecture": MLP_ARCHITECTURE,
        "tags": frozenset({"mlp", *like.tags} - {"lr"}),
    }
    values = {field.name: getattr(like, field.name) for field in fields(like)}
    return PerceptronTask(**{**values, **changes})


MLP_TASKS = tuple(_perceptrons(like) for like in LR_TASKS)
