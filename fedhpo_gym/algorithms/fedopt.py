"""FedOpt (Asad et al., 2020; Reddi et al., 2021): SGD with momentum on the server."""

from __future__ import annotations

from fedhpo_gym.algorithms.base import Algorithm, Context, Parameters, fit
from fedhpo_gym.space import Dimension


class FedOpt(Algorithm):
    """The server takes the step of `torch.optim.SGD` along the pseudo-gradient.

    With w the global model and w' the clients' average: g = w - w', m <- momentum m + g,
    w <- w - server_learning_rate m. A momentum of 0 and a rate of 1 give FedAvg.
    Ranges are those of Table 8 of FedHPO-Bench.
    """

    name = "fedopt"
    dimensions = (
        Dimension("server_momentum", 0.0, 0.9, "float", bins=2, scope="server"),
        Dimension("server_learning_rate", 0.1, 1.0, "float", bins=3, scope="server"),
    )

    def init_state(self, parameters: Parameters, context: Context) -> Parameters:
        return {name: value - value for name, value in parameters.items()}

    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
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
