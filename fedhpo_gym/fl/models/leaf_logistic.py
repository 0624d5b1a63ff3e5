"""The model of LEAF's Synthetic problem: a linear layer, a sigmoid, then the cross-entropy."""

from __future__ import annotations

from typing import Any

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.records import SparseRows
from fedhpo_gym.fl.models.logistic import LogisticRegression


class LeafLogisticRegression(LogisticRegression):
    """Logistic regression as LEAF's `log_reg` has it (Caldas et al., 2018; models/synthetic).

    The outputs of the linear layer go through a sigmoid, and those numbers in (0, 1) are what the
    softmax of the cross-entropy reads: no class can have a probability above e / (e + classes - 1).
    Parameters and initial values are those of `LogisticRegression`.
    """

    squashed = True

    @classmethod
    def for_federation(cls, federation: Federation, **shape: Any) -> LeafLogisticRegression:
        """See `CompiledModel.for_federation`.

        Raises:
            InvalidArgumentError: the features are sparse.
        """
        del shape
        if isinstance(federation.features, SparseRows):
            raise InvalidArgumentError(
                "the federation of model 'LeafLR' must have dense features, got sparse rows; "
                "use model 'LR'"
            )
        return cls(federation.features.shape[1], federation.num_classes)
