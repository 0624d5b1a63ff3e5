"""SCAFFOLD (Karimireddy et al., 2020): control variates correct the drift of local training."""

from __future__ import annotations

from fedhpo_gym.fl.algorithms.base import VARIATE, Algorithm, Context, at_least
from fedhpo_gym.fl.algorithms.fednova import length_of
from fedhpo_gym.fl.models.description import Parameters, fit

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
    hyperparameters = {"server_learning_rate": None}  # noqa: RUF012
    reads_uploads = True
    sends_updates = True
    counts_equally = True
    keeps_variates = True

    def init_state(self, parameters: Parameters, context: Context) -> Parameters:
        """See `Algorithm.init_state`."""
        del context
        return {VARIATE + name: value - value for name, value in parameters.items()}

    def reports(self, parameters: Parameters, context: Context) -> Parameters:
        """See `Algorithm.reports`."""
        return self.init_state(parameters, context)

    def correction(self, context: Context) -> Parameters:
        """See `Algorithm.correction`."""
        state = context.state()
        return {name: state[VARIATE + name] - own for name, own in context.variates().items()}

    def upload(self, parameters: Parameters, context: Context) -> Parameters:
        """See `Algorithm.upload`."""
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
        """See `Algorithm.server_update`."""
        rate = context.hyperparameters["server_learning_rate"]
        share = context.num_sampled / context.num_clients
        updated = {
            name: value + fit(rate, value) * average[name] for name, value in parameters.items()
        }
        kept = {name: value + fit(share, value) * average[name] for name, value in state.items()}
        return updated, kept
