"""FedAvg (McMahan et al., 2017): the average of the clients is the next global model."""

from __future__ import annotations

from fedhpo_gym.fl.algorithms.base import Algorithm, Hyperparameters
from fedhpo_gym.fl.models import Parameters


class FedAvg(Algorithm):
    """Plain federated averaging."""

    name = "fedavg"

    def init_state(self, parameters: Parameters) -> Parameters:
        """See `Algorithm.init_state`."""
        del parameters
        return {}

    def server_update(
        self,
        parameters: Parameters,
        average: Parameters,
        state: Parameters,
        hyperparameters: Hyperparameters,
    ) -> tuple[Parameters, Parameters]:
        """See `Algorithm.server_update`."""
        del parameters, hyperparameters
        return average, state
