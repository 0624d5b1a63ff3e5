"""FedOpt and FedNova: SGD with momentum on the server."""

from fedhpo_gym.algorithms.base import (
    Algorithm,
    Array,
    Context,
    Parameters,
    at_least,
    fit,
    shift_model,
)
from fedhpo_gym.space import Dimension


class FedOpt(Algorithm):
    """The server takes the step of `torch.optim.SGD` along the pseudo-gradient.

    With w the global model and w' the clients' average: g = w - w', m <- momentum m + g,
    w <- w - server_learning_rate m. A momentum of 0 and a rate of 1 give FedAvg
    (Asad et al., 2020; Reddi et al., 2021). Ranges are those of Table 8 of FedHPO-Bench.
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
        buffer = {
            name: fit(momentum, value) * state[name] + (value - average[name])
            for name, value in parameters.items()
        }
        return shift_model(
            parameters, -context.hyperparameters["server_learning_rate"], buffer
        ), buffer


LENGTH = "length of local training"


class FedNova(FedOpt):
    """Updates are divided by the length of local training, and their mean taken at mean length.

    With D_i what client i makes of the model, p_i its share of the samples and |a_i| its length:
    D = (sum_j p_j |a_j|) sum_i p_i D_i / |a_i| (Wang et al., 2020, Equation 6, FedAvg's tau_eff),
    m <- server_momentum m + D, w <- w + server_learning_rate m.

    For t local steps with momentum r, |a_i| = (t - r (1 - r^t) / (1 - r)) / (1 - r), t without
    momentum (Section 4.2). Weight decay is part of the gradient. Equal lengths, a momentum of 0 and
    a rate of 1 give FedAvg; running statistics of normalisation layers are averaged as there.
    """

    name = "fednova"
    sends_updates = True

    def reports(self, parameters: Parameters, context: Context) -> Parameters:
        return {LENGTH: (0.0 * context.hyperparameters["server_momentum"])[None]}

    def upload(self, parameters: Parameters, context: Context) -> Parameters:
        length = length_of(context)
        sent = {name: value / fit(length, value) for name, value in parameters.items()}
        return {**sent, LENGTH: length[None]}

    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
        momentum = context.hyperparameters["server_momentum"]
        length = average[LENGTH][0]
        buffer = {
            name: fit(momentum, value) * state[name] + fit(length, value) * average[name]
            for name, value in parameters.items()
        }
        return shift_model(
            parameters, context.hyperparameters["server_learning_rate"], buffer
        ), buffer


def length_of(context: Context) -> Array:
    """Return |a| of the items, (items,): their steps, and more with momentum."""
    steps, _, momentum = context.local()
    complement = 1.0 - momentum
    # `power` needs positive numbers; powers of 1e-30 are 0 for the result.
    power = context.power(at_least(momentum, 1e-30), steps)
    return (steps - momentum * (1.0 - power) / complement) / complement
