"""FedBN (Li et al., 2021): normalisation layers stay with the clients."""

from __future__ import annotations

from collections.abc import Collection

from fedhpo_gym.algorithms.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg of everything but the normalisation layers.

    Their scales, shifts and running statistics are each client's own (Section 4 there); evaluation
    is of the global parameters together with them. On a model without such layers it is FedAvg.
    """

    name = "fedbn"

    def personal(self, names: Collection[str], norms: Collection[str]) -> frozenset[str]:
        return frozenset(names) & frozenset(norms)
