"""Models, written for many courses at once: one file each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedhpo_gym.errors import unknown_name
from fedhpo_gym.fl.models.base import Inputs, Minibatch, Model, Parameters
from fedhpo_gym.fl.models.bert import BertTiny
from fedhpo_gym.fl.models.cnn import ConvNet
from fedhpo_gym.fl.models.gcn import GCN
from fedhpo_gym.fl.models.hetero_gcn import HeteroGCN
from fedhpo_gym.fl.models.leaf_logistic import LeafLogisticRegression
from fedhpo_gym.fl.models.logistic import LogisticRegression
from fedhpo_gym.fl.models.matrix_factorisation import MatrixFactorisation
from fedhpo_gym.fl.models.mlp import Perceptron
from fedhpo_gym.typed import checked_types

MODELS: Mapping[str, type[Model]] = MappingProxyType(
    {
        "LR": LogisticRegression,
        "LeafLR": LeafLogisticRegression,
        "MLP": Perceptron,
        "CNN": ConvNet,
        "BERT": BertTiny,
        "GNN": GCN,
        "MF": MatrixFactorisation,
        "Hetero": HeteroGCN,
    }
)


@checked_types
def get_model(name: str) -> type[Model]:
    """Return a model by name.

    Raises:
        UnknownNameError: no such model.
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name]


__all__ = [
    "GCN",
    "MODELS",
    "BertTiny",
    "ConvNet",
    "HeteroGCN",
    "Inputs",
    "LeafLogisticRegression",
    "LogisticRegression",
    "MatrixFactorisation",
    "Minibatch",
    "Model",
    "Parameters",
    "Perceptron",
    "get_model",
]
