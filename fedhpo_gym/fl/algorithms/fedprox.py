"""FedProx (Li et al., 2020): local training is pulled towards the broadcast model."""

from __future__ import annotations

from fedhpo_gym.fl.algorithms.base import Array, Context
from fedhpo_gym.fl.algorithms.fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg whose clients minimise loss + mu / 2 ||w - w_broadcast||^2 (Eq. 2 there)."""

    name = "fedprox"
    hyperparameters = {"mu": None}  # noqa: RUF012

    def pull(self, context: Context) -> Array:
        """See `Algorithm.pull`."""
        return context.hyperparameters["mu"]
