"""The model of LEAF's Synthetic problem: a linear layer, a sigmoid, then the cross-entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedhpo_gym.datasets.records import SparseRows
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.fl.models.base import Minibatch, Parameters, softmax_residual_
from fedhpo_gym.fl.models.logistic import LogisticRegression

MAX_EXPONENT = 60.0


class LeafLogisticRegression(LogisticRegression):
    """Logistic regression as LEAF's `log_reg` has it (Caldas et al., 2018; models/synthetic).

    The outputs of the linear layer go through a sigmoid, and those numbers in (0, 1) are what the
    softmax of the cross-entropy reads: no class can have a probability above e / (e + classes - 1).
    Parameters and initial values are those of `LogisticRegression`.
    """

    @classmethod
    def for_federation(
        cls, federation: Federation, device: torch.device, **shape: Any
    ) -> LeafLogisticRegression:
        """See `Model.for_federation`.

        Raises:
            InvalidArgumentError: the features are sparse.
        """
        del shape
        if isinstance(federation.features, SparseRows):
            raise InvalidArgumentError(
                "the federation of model 'LeafLR' must have dense features, got sparse rows; "
                "use model 'LR'"
            )
        return cls(federation.features.shape[1], federation.num_classes, device)

    def sgd_step(self, parameters: Parameters, batch: Minibatch) -> None:
        """See `Model.sgd_step`."""
        weight = parameters["weight"]
        out = _sigmoid_(self.affine(weight, batch.x))
        residual = softmax_residual_(out.clone(), batch.targets, batch.rates)
        self.descend(weight, residual.mul_(out).mul_(1.0 - out), batch)

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        """See `Model.logits`."""
        return _sigmoid_(super().logits(parameters, x))


def _sigmoid_(values: Tensor) -> Tensor:
    # torch's own sigmoid rounds the last few numbers of a tensor differently: not batch-invariant.
    return values.neg_().clamp_(-MAX_EXPONENT, MAX_EXPONENT).exp_().add_(1.0).reciprocal_()
