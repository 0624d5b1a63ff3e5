"""Isolated local training (FedHPO-Bench, Appendix H.3.2): nothing is ever shared."""

from __future__ import annotations

from collections.abc import Collection

from fedhpo_gym.algorithms.fedavg import FedAvg


class Local(FedAvg):
    """Every client trains a model of its own on its own data, in the rounds that sample it.

    All parameters stay with the clients, so nothing is left to average: the non-federated baseline
    "Isolated". All clients start from the same initial model.
    """

    name = "local"
    copies = 0

    def personal(self, names: Collection[str], norms: Collection[str]) -> frozenset[str]:
        return frozenset(names)
