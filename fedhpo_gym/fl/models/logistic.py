"""Multinomial logistic regression: one linear layer, on dense and on sparse rows; and LEAF's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.records import SparseRows
from fedhpo_gym.fl.models.model import CompiledModel, padded


class LogisticRegression(CompiledModel):
    """A linear layer with bias, trained on the cross-entropy.

    The bias is one more weight on a constant input of one; weight decay applies to it too, as in
    `torch.optim.SGD`. Parameters: `weight` (classes, inputs + 1).
    """

    revision = 1
    squashed: ClassVar[bool] = False

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        self.num_inputs = num_inputs
        self.num_classes = num_classes
        self.num_parameters = (num_inputs + 1) * num_classes

    @classmethod
    def for_federation(cls, federation: Federation, **shape: Any) -> LogisticRegression:
        del shape
        return cls(federation.features.shape[1], federation.num_classes)

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Draw from U(-1/sqrt(d), 1/sqrt(d)), the default of `torch.nn.Linear`."""
        bound = 1.0 / np.sqrt(self.num_inputs)
        size = (self.num_classes, self.num_inputs + 1)
        return {"weight": rng.uniform(-bound, bound, size).astype(np.float32)}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"weight": (self.num_classes, self.num_inputs + 1)}

    def data(self, federation: Federation) -> tuple[Any, ...]:
        """Append the constant input, and pad rows with zeros; of sparse rows, none of both."""
        from fedhpo_gym.fl.compiled import logistic

        features, labels = federation.features, federation.labels.astype(np.int64)
        width = padded(self.num_inputs + 1)
        known = (labels, width, self.num_classes, self.num_classes * width, self.min_rows)
        if isinstance(features, SparseRows):
            row = np.repeat(np.arange(len(features)), np.diff(features.indptr))
            order = np.lexsort((features.indices, row))
            return logistic.Sparse(
                features.indices[order].astype(np.int32),
                features.values[order].astype(np.float32),
                features.indptr.astype(np.int64),
                *known,
                self.num_inputs,
            )
        x = np.zeros((len(features), width), dtype=np.float32)
        x[:, : self.num_inputs] = features
        x[:, self.num_inputs] = 1.0
        return logistic.Dense(x.ravel(), *known, self.squashed)

    def memory(self, rows: int) -> int:
        from fedhpo_gym.fl.compiled.arithmetic import BLOCK

        return BLOCK * (self.num_classes + padded(self.num_inputs + 1))


class LeafLogisticRegression(LogisticRegression):
    """Logistic regression as LEAF's `log_reg` has it (Caldas et al., 2018; models/synthetic).

    The outputs of the linear layer go through a sigmoid, and those numbers in (0, 1) are what the
    softmax of the cross-entropy reads: no class can have a probability above e / (e + classes - 1).
    Parameters and initial values are those of `LogisticRegression`.
    """

    squashed = True

    @classmethod
    def for_federation(cls, federation: Federation, **shape: Any) -> LeafLogisticRegression:
        del shape
        if isinstance(federation.features, SparseRows):
            raise InvalidArgumentError(
                "the federation of model 'LeafLR' must have dense features, got sparse rows; "
                "use model 'LR'"
            )
        return cls(federation.features.shape[1], federation.num_classes)
