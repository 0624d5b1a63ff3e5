"""FedOpt (Asad et al., 2020; Reddi et al., 2021): SGD with momentum on the server."""

from __future__ import annotations

from fedhpo_gym.fl.algorithms.base import Algorithm, Context
from fedhpo_gym.fl.models.description import Parameters, fit


class FedOpt(Algorithm):
    """The server takes the step of `torch.optim.SGD` along the pseudo-gradient.

    With w the global model and w' the clients' average: g = w - w', m <- momentum m + g,
    w <- w - server_learning_rate m. A momentum of 0 and a rate of 1 give FedAvg.
    """

    name = "fedopt"
    hyperparameters = {"server_momentum": None, "server_learning_rate": None}  # noqa: RUF012

    def init_state(self, parameters: Parameters, context: Context) -> Parameters:
        """See `Algorithm.init_state`."""
        del context
        return {name: value - value for name, value in parameters.items()}

    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
        """See `Algorithm.server_update`."""
        momentum = context.hyperparameters["server_momentum"]
        rate = context.hyperparameters["server_learning_rate"]
        buffer = {
            name: fit(momentum, value) * state[name] + (value - average[name])
            for name, value in parameters.items()
        }
        updated = {
            name: value - fit(rate, value) * buffer[name] for name, value in parameters.items()
        }
        return updated, buffer
