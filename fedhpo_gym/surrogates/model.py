"""A fitted model: what maps inputs to outputs, and the scale of the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import unknown_name
from fedhpo_gym.surrogates.forest import Forest
from fedhpo_gym.surrogates.network import Network

SCALES = ("mean", "scale", "low", "high")


class Regressor(Protocol):
    """Anything that predicts standardised outputs."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is stored."""

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (n, outputs) for (n, features)."""


KINDS: Mapping[str, type[Forest] | type[Network]] = MappingProxyType(
    {"forest": Forest, "network": Network}
)


class Model:
    """A regressor and the scale of its outputs.

    Attributes:
        regressor: predicts standardised outputs.
        scales: `mean` and `scale` that undo the standardisation; `low` and `high` of the outputs
            in the table, beyond which nothing is predicted.
    """

    def __init__(self, regressor: Regressor, scales: Mapping[str, NDArray[np.floating]]) -> None:
        self.regressor = regressor
        self.scales = {name: scales[name].astype(np.float32) for name in SCALES}

    @classmethod
    def from_arrays(cls, kind: str, arrays: Mapping[str, NDArray[Any]]) -> Model:
        """Rebuild a model from what `arrays` returned.

        Raises:
            UnknownNameError: there is no such kind of regressor.
            InvalidArgumentError: the arrays are not those of this kind.
            KeyError: a scale is missing.
        """
        if kind not in KINDS:
            raise unknown_name("kind of surrogate model", kind, KINDS)
        return cls(KINDS[kind](arrays), arrays)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything that is stored."""
        return {**self.regressor.arrays, **self.scales}

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (n, outputs) for (n, features), within the range seen in the table."""
        scales = self.scales
        outputs = self.regressor.predict(rows) * scales["scale"] + scales["mean"]
        return np.asarray(np.clip(outputs, scales["low"], scales["high"]), dtype=np.float32)
