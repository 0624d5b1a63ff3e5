"""FedProx (Li et al., 2020): local training is pulled towards the broadcast model."""

from __future__ import annotations

from fedhpo_gym.algorithms.base import Array, Context
from fedhpo_gym.algorithms.fedavg import FedAvg
from fedhpo_gym.space import Dimension


class FedProx(FedAvg):
    """FedAvg whose clients minimise loss + mu / 2 ||w - w_broadcast||^2 (Eq. 2 there).

    Values of mu are those of FedHPO-Bench's scripts.
    """

    name = "fedprox"
    dimensions = (Dimension("mu", 0.1, 5.0, "float", values=(0.1, 1.0, 5.0)),)

    def pull(self, context: Context) -> Array:
        return context.hyperparameters["mu"]
