"""Perceptrons on tabular data: the MLP rows of the paper's Tables 1, 7 and 8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.tasks.federated import Task
from fedhpo_gym.tasks.logistic_regression import LR_TASKS

CLIENT_SPACE = SearchSpace(
    (
        Dimension("learning_rate", 1e-5, 1.0, "float", log=True, bins=6),
        Dimension("weight_decay", 0.0, 0.001, "float", bins=4),
        Dimension("batch_size", 4, 256, "int", log=True, bins=7, unit="samples"),
        Dimension("step_size", 1, 4, "int", bins=4, unit="local epochs"),
        Dimension("model_depth", 1, 3, "int", bins=3, unit="hidden layers"),
        Dimension("model_width", 16, 1024, "int", log=True, bins=7, unit="units"),
    )
)

# Chosen by a wide search, too. Wide layers at batches of 4 are left out: they cost most, and their
# courses share no work.
CLIENT_SPACE_V1 = SearchSpace(
    (
        Dimension("learning_rate", 0.001, 10.0, "float", log=True, bins=5),
        Dimension("weight_decay", 1e-6, 0.3, "float", log=True, bins=6),
        Dimension("batch_size", 16, 256, "int", log=True, bins=5, unit="samples"),
        Dimension("step_size", 1, 4, "int", log=True, bins=3, unit="local epochs"),
        Dimension("model_depth", 1, 3, "int", bins=3, unit="hidden layers"),
        Dimension("model_width", 16, 256, "int", log=True, bins=5, unit="units"),
    )
)

BUDGET_S = 43_200.0
ARCHITECTURE = ("model_depth", "model_width")


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


def _task(like: Task) -> PerceptronTask:
    """Return the task on the data of a task of logistic regression."""
    space = CLIENT_SPACE_V1 if like.version else CLIENT_SPACE
    largest = (int(space[name].high) for name in ARCHITECTURE)
    return PerceptronTask(
        model="MLP",
        dataset=like.dataset,
        num_features=like.num_features,
        num_classes=like.num_classes,
        num_parameters=perceptron_size(like.num_features, like.num_classes, *largest),
        client_space=space,
        fidelity_space=like.fidelity_space,
        budget_s=BUDGET_S,
        version=like.version,
        reward=like.reward,
        preprocessing=like.preprocessing,
        citation=like.citation.replace("LR rows", "MLP rows"),
        architecture=ARCHITECTURE,
        instance_alphas=like.instance_alphas,
        tags=frozenset({"mlp", *like.tags} - {"lr"}),
    )


MLP_TASKS = tuple(_task(like) for like in LR_TASKS)
