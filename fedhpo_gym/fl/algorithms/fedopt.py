"""FedOpt (Asad et al., 2020; Reddi et al., 2021): SGD with momentum on the server."""

from __future__ import annotations

import torch

from fedhpo_gym.fl.algorithms.base import Algorithm, Hyperparameters
from fedhpo_gym.fl.models import Parameters


class FedOpt(Algorithm):
    """The server takes the step of `torch.optim.SGD` along the pseudo-gradient.

    With w the global model and w' the clients' average: g = w - w', m <- momentum m + g,
    w <- w - server_learning_rate m. A momentum of 0 and a rate of 1 give FedAvg.
    """

    name = "fedopt"
    server_hyperparameters = ("server_momentum", "server_learning_rate")

    def init_state(self, parameters: Parameters) -> Parameters:
        """See `Algorithm.init_state`."""
        return {name: torch.zeros_like(value) for name, value in parameters.items()}

    def server_update(
        self,
        parameters: Parameters,
        average: Parameters,
        state: Parameters,
        hyperparameters: Hyperparameters,
    ) -> tuple[Parameters, Parameters]:
        """See `Algorithm.server_update`."""
        momentum = hyperparameters["server_momentum"]
        rate = hyperparameters["server_learning_rate"]
        buffer = {
            name: momentum * state[name] + (value - average[name])
            for name, value in parameters.items()
        }
        return {name: value - rate * buffer[name] for name, value in parameters.items()}, buffer
