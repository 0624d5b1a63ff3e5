"""SCAFFOLD (Karimireddy et al., 2020): control variates correct the drift of local training."""

from fedhpo_gym.algorithms.base import (
    VARIATE,
    Algorithm,
    Context,
    Parameters,
    at_least,
    fit,
    shift_model,
)
from fedhpo_gym.algorithms.fedopt import length_of
from fedhpo_gym.space import Dimension

WIDE_RATE = Dimension("server_learning_rate", 0.1, 3.0, "float", log=True, bins=4, scope="server")
"""Around the rate 1 of Karimireddy et al."""

NEVER_ZERO = 1e-30
"""A client whose rate is 0 has not moved: its update is divided by this instead."""


class Scaffold(Algorithm):
    """Every local gradient gets c - c_i added: Algorithm 1 there, with Option II.

    With D_i what client i makes of the model in K steps at the rate r, S clients of N taking part,
    counted equally, and all variates 0 at first:
    c_i' = c_i - c - D_i / (K r), w <- w + server_learning_rate mean(D_i),
    c <- c + S / N mean(c_i' - c_i), c_i <- c_i'.

    Messages are twice as long, since variates travel, too; every client keeps one of the size of
    the model. With momentum K is the length of local training, as in FedNova: divided by the number
    of steps, variates would be gradients times 1 / (1 - momentum), and grow without end. Running
    statistics of normalisation layers are averaged by samples, as elsewhere.
    """

    name = "scaffold"
    dimensions = (WIDE_RATE,)
    copies = 2
    sends_updates = True
    counts_equally = True
    keeps_variates = True

    def init_state(self, parameters: Parameters, context: Context) -> Parameters:
        return {VARIATE + name: value - value for name, value in parameters.items()}

    def reports(self, parameters: Parameters, context: Context) -> Parameters:
        return self.init_state(parameters, context)

    def correction(self, context: Context) -> Parameters:
        state = context.state()
        return {
            name: state[VARIATE + name] - variate for name, variate in context.variates().items()
        }

    def upload(self, parameters: Parameters, context: Context) -> Parameters:
        state = context.state()
        length = at_least(length_of(context) * context.local().rate, NEVER_ZERO)
        change = {
            VARIATE + name: -state[VARIATE + name] - value / fit(length, value)
            for name, value in parameters.items()
        }
        return {**parameters, **change}

    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
        rate = context.hyperparameters["server_learning_rate"]
        share = context.num_sampled / context.num_clients
        return shift_model(parameters, rate, average), shift_model(state, share, average)
