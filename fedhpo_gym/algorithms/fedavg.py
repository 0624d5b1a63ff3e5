"""FedAvg (McMahan et al., 2017): the average of the clients is the next global model."""

from __future__ import annotations

from fedhpo_gym.algorithms.base import Algorithm, Context, Parameters


class FedAvg(Algorithm):
    """Plain federated averaging."""

    name = "fedavg"

    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
        return average, state
