"""A fitted model: what maps inputs to outputs, and the scale of the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import require_known
from fedhpo_gym.surrogates.forest import Forest
from fedhpo_gym.surrogates.kernel import Kernel
from fedhpo_gym.surrogates.network import Network
from fedhpo_gym.surrogates.outputs import client_outputs

SCALES = ("mean", "scale", "low", "high")


class Regressor(Protocol):
    """Anything that predicts standardised outputs."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """What is stored."""

    @property
    def num_features(self) -> int:
        """How many features a row must have, at least."""

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (..., n, outputs) for (..., n, features); leading axes change no bit."""


KINDS: Mapping[str, type[Forest] | type[Kernel] | type[Network]] = MappingProxyType(
    {"forest": Forest, "kernel": Kernel, "network": Network}
)


class Compression:
    """Few numbers that stand for the outputs of many clients: a truncated principal basis.

    Attributes:
        components: (components, client outputs) orthonormal rows, in half precision.
    """

    def __init__(self, components: NDArray[np.floating]) -> None:
        self.components = components
        self._matrix = components.astype(np.float32)

    def expand(self, targets: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (..., outputs) for (..., targets); those of the federation stay as they are."""
        where = client_outputs()
        middle = targets[..., where] @ self._matrix
        parts = (targets[..., : where.start], middle, targets[..., where.stop :])
        return np.concatenate(parts, axis=-1)


class OutcomeModel:
    """A regressor and the scale of its outputs.

    Attributes:
        regressor: predicts standardised outputs, or, with a compression, what stands for them.
        scales: `mean` and `scale` that undo the standardisation; `low` and `high` of the outputs
            in the data, beyond which nothing is predicted.
        compression: how outputs follow from what the regressor predicts; None if they are that.
    """

    def __init__(
        self,
        regressor: Regressor,
        scales: Mapping[str, NDArray[np.floating]],
        compression: Compression | None = None,
    ) -> None:
        self.regressor = regressor
        self.scales = {name: scales[name].astype(np.float32) for name in SCALES}
        self.compression = compression

    @classmethod
    def from_arrays(cls, kind: str, arrays: Mapping[str, NDArray[Any]]) -> OutcomeModel:
        """Rebuild a model from what `arrays` returned.

        Raises:
            UnknownNameError: there is no such kind of regressor.
            InvalidArgumentError: the arrays are not those of this kind.
            KeyError: a scale is missing.
        """
        require_known("kind of surrogate model", kind, KINDS)
        compression = Compression(arrays["components"]) if "components" in arrays else None
        return cls(KINDS[kind](arrays), arrays, compression)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything that is stored."""
        if self.compression is None:
            return {**self.regressor.arrays, **self.scales}
        # With many clients the scales would be larger than everything else.
        scales = {name: value.astype(np.float16) for name, value in self.scales.items()}
        components = {"components": self.compression.components}
        return {**self.regressor.arrays, **scales, **components}

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (..., n, outputs) for (..., n, features), within the range of the data."""
        scales = self.scales
        predicted = self.regressor.predict(rows)
        if self.compression is not None:
            predicted = self.compression.expand(predicted)
        outputs = predicted * scales["scale"]  # then in place: outputs of many clients are large
        outputs += scales["mean"]
        np.clip(outputs, scales["low"], scales["high"], out=outputs)
        return np.asarray(outputs, dtype=np.float32)
