"""Models, one file each. Those that torch trains are loaded when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from fedhpo_gym.core.checks import checked_types
from fedhpo_gym.core.errors import needing, require_known
from fedhpo_gym.fl.models.logistic import LeafLogisticRegression, LogisticRegression
from fedhpo_gym.fl.models.model import Model


class _Models(Mapping[str, type[Model]]):
    """Models by the names that tasks use."""

    _classes: Mapping[str, type[Model] | str] = {
        "LR": LogisticRegression,
        "LeafLR": LeafLogisticRegression,
        "MLP": "mlp:Perceptron",
        "PlainMLP": "mlp:PlainPerceptron",
        "CNN": "cnn:ConvNet",
        "BERT": "bert:BertTiny",
        "GNN": "gcn:GCN",
        "MF": "matrix_factorisation:MatrixFactorisation",
        "Hetero": "hetero_gcn:HeteroGCN",
    }

    def __getitem__(self, name: str) -> type[Model]:
        found = self._classes[name]
        if not isinstance(found, str):
            return found
        module, _, kind = found.partition(":")
        with needing(f"model {name}", "torch", "torch", "torch"):
            loaded: type[Model] = getattr(import_module(f"{__name__}.{module}"), kind)
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
    require_known("model", name, [*MODELS])
    return MODELS[name]


__all__ = ["COMPILED", "MODELS", "LogisticRegression", "Model", "get_model"]
