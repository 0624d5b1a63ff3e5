"""FedAdam and FedYogi (Reddi et al., 2021, Algorithm 2): adaptive steps on the server."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from fedhpo_gym.algorithms.base import Algorithm, Array, Context, Parameters, fit, flags
from fedhpo_gym.algorithms.settings import Setting
from fedhpo_gym.space import Dimension

FIRST, SECOND = "first moment of ", "second moment of "


class Adaptive(Algorithm):
    """The server takes an adaptive step along the clients' mean update D = w' - w.

    With w the global model and w' the clients' average:
    m <- first_decay m + (1 - first_decay) D, v <- `second_moment`(v, D^2),
    w <- w + server_learning_rate m / (sqrt(v) + adaptivity); m starts at 0 and v at adaptivity^2.
    There is no bias correction, as in the paper. The paper's names are eta for
    server_learning_rate, tau for adaptivity, beta_1 and beta_2 for the decays. Rates are from the
    ranges that they tune in.
    """

    dimensions = (
        Dimension("server_learning_rate", 0.001, 1.0, "float", log=True, bins=4, scope="server"),
    )
    settings: ClassVar = {
        "adaptivity": Setting(1e-3, 1e-9, 1.0),
        "first_decay": Setting(0.9, 0.0, 0.9999),
        "second_decay": Setting(0.99, 0.0, 0.9999),
    }

    def init_state(self, parameters: Parameters, context: Context) -> Parameters:
        return first_moments(parameters, context)

    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
        given = context.hyperparameters
        updated, moments = {}, {}
        for name, value in parameters.items():
            rate, tau, first_decay, second_decay = (fit(x, value) for x in given.values())
            update = average[name] - value
            first = first_decay * state[FIRST + name] + (1.0 - first_decay) * update
            second = self.second_moment(state[SECOND + name], update * update, second_decay)
            updated[name] = value + rate * first / (second**0.5 + tau)
            moments[FIRST + name], moments[SECOND + name] = first, second
        return updated, moments

    @abstractmethod
    def second_moment(self, moment: Array, square: Array, decay: Array) -> Array:
        """Return the next second moment."""


class FedAdam(Adaptive):
    """v <- second_decay v + (1 - second_decay) D^2."""

    name = "fedadam"

    def second_moment(self, moment: Array, square: Array, decay: Array) -> Array:
        return decay * moment + (1.0 - decay) * square


class FedYogi(Adaptive):
    """v <- v - (1 - second_decay) D^2 sign(v - D^2)."""

    name = "fedyogi"

    def second_moment(self, moment: Array, square: Array, decay: Array) -> Array:
        sign = flags(moment > square) - flags(moment < square)
        return moment - (1.0 - decay) * square * sign


def first_moments(parameters: Parameters, context: Context) -> Parameters:
    """Return m and v before the first round: 0 and adaptivity^2."""
    start = context.hyperparameters["adaptivity"] ** 2
    zeros = {name: value - value for name, value in parameters.items()}
    first = {FIRST + name: zero for name, zero in zeros.items()}
    return first | {SECOND + name: zero + fit(start, zero) for name, zero in zeros.items()}
