"""Models, one file each. Those that torch trains are loaded when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedhpo_gym.algorithms.base import Parameters
from fedhpo_gym.core import lazy_names
from fedhpo_gym.core.checks import checked_types
from fedhpo_gym.core.errors import needing, unknown_name
from fedhpo_gym.fl.models.logistic import LeafLogisticRegression, LogisticRegression
from fedhpo_gym.fl.models.model import CompiledModel, Model

if TYPE_CHECKING:
    from fedhpo_gym.fl.models.bert import BertTiny
    from fedhpo_gym.fl.models.cnn import ConvNet
    from fedhpo_gym.fl.models.gcn import GCN
    from fedhpo_gym.fl.models.hetero_gcn import HeteroGCN
    from fedhpo_gym.fl.models.matrix_factorisation import MatrixFactorisation
    from fedhpo_gym.fl.models.mlp import Perceptron, PlainPerceptron
    from fedhpo_gym.fl.models.torch_model import Inputs, Minibatch, TorchModel

_torch_models = lazy_names(
    __name__,
    {
        "bert": "BertTiny",
        "cnn": "ConvNet",
        "gcn": "GCN",
        "hetero_gcn": "HeteroGCN",
        "matrix_factorisation": "MatrixFactorisation",
        "mlp": "Perceptron, PlainPerceptron",
        "torch_model": "Inputs, Minibatch, TorchModel",
    },
)


def __getattr__(name: str) -> Any:
    with needing(f"model {name}", "torch", "torch", "torch"):
        return _torch_models(name)


class _Models(Mapping[str, type[Model]]):
    """Models by the names that tasks use."""

    _classes: Mapping[str, type[Model] | str] = {
        "LR": LogisticRegression,
        "LeafLR": LeafLogisticRegression,
        "MLP": "Perceptron",
        "PlainMLP": "PlainPerceptron",
        "CNN": "ConvNet",
        "BERT": "BertTiny",
        "GNN": "GCN",
        "MF": "MatrixFactorisation",
        "Hetero": "HeteroGCN",
    }

    def __getitem__(self, name: str) -> type[Model]:
        found = self._classes[name]
        if not isinstance(found, str):
            return found
        loaded: type[Model] = __getattr__(found)
        return loaded

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)


MODELS: Mapping[str, type[Model]] = _Models()
COMPILED = frozenset({"LR", "LeafLR", "MLP", "PlainMLP"})
"""Names of those that numba compiles; all others need torch. They are quick to train."""


@checked_types
def get_model(name: str) -> type[Model]:
    """Return a model by name."""
    if name not in [*MODELS]:
        raise unknown_name("model", name, MODELS)
    return MODELS[name]


__all__ = [
    "COMPILED",
    "GCN",
    "MODELS",
    "BertTiny",
    "CompiledModel",
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
    "PlainPerceptron",
    "TorchModel",
    "get_model",
]
