"""Models, one class each. Models that torch trains are loaded on first use."""

from collections.abc import Mapping
from functools import partial
from importlib import import_module

from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import require_known, require_optional
from fedhpo_gym.core.plugins import LazyDict, Registry
from fedhpo_gym.fl.models.logistic import LogisticRegression
from fedhpo_gym.fl.models.model import Model

_PLACES = {
    "LR": "logistic:LogisticRegression",
    "LeafLR": "logistic:LeafLogisticRegression",
    "MLP": "mlp:Perceptron",
    "PlainMLP": "mlp:PlainPerceptron",
    "CNN": "cnn:ConvNet",
    "SmallCNN": "small_cnn:SmallConvNet",
    "BERT": "bert:BertTiny",
    "GNN": "gcn:GCN",
    "MF": "matrix_factorisation:MatrixFactorisation",
    "Hetero": "gcn:HeteroGCN",
}


def _loaded(name: str) -> type[Model]:
    module, _, kind = _PLACES[name].partition(":")
    with require_optional(f"model {name}", "torch", "torch", "torch"):
        loaded: type[Model] = getattr(import_module(f"{__name__}.{module}"), kind)
    return loaded


MODELS: Mapping[str, type[Model]] = LazyDict({name: partial(_loaded, name) for name in _PLACES})
"""Models by the names that tasks use."""
COMPILED = frozenset({"LR", "LeafLR", "MLP", "PlainMLP"})
"""Names of those that numba compiles; all others need torch. They are quick to train."""


REGISTERED: Registry[type[Model]] = Registry("model", lambda: MODELS)
"""Models that users have added, by name."""


@validate_call
def get_model(name: str) -> type[Model]:
    """Return a model by name."""
    models = REGISTERED if name in REGISTERED else MODELS
    require_known("model", name, [*MODELS, *REGISTERED])
    return models[name]


__all__ = ["COMPILED", "MODELS", "REGISTERED", "LogisticRegression", "Model", "get_model"]
