"""Models, written for many courses at once: one file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from fedhpo_gym.errors import unknown_name
from fedhpo_gym.fl.federation import Federation
from fedhpo_gym.fl.models.base import Model, Parameters
from fedhpo_gym.fl.models.logistic import LogisticRegression

MakeModel = Callable[[Federation, torch.device], Model]

MODELS: Mapping[str, MakeModel] = MappingProxyType({"LR": LogisticRegression.for_federation})


def make_model(name: str) -> MakeModel:
    """Return what builds a model of this name for a federation on a device.

    Raises:
        UnknownNameError: no such model.
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name]


__all__ = ["MODELS", "LogisticRegression", "MakeModel", "Model", "Parameters", "make_model"]
