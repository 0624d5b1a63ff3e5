"""Optimizers of the server (Reddi et al., 2021): FedAdam, FedYogi, and a choice among optimizers.

`algorithms/__init__.py` registers the three classes, and `tasks/natural.py` searches over
`ServerOpt`, in which the optimizer itself is a hyperparameter. The courses of a batch may use
different optimizers. `ServerOpt` therefore computes all of them with masks of ones and zeros
instead of branches.
"""

from abc import abstractmethod
from typing import ClassVar

from fedhpo_gym.algorithms.base import Algorithm, Array, Context, Parameters, fit, flags
from fedhpo_gym.algorithms.settings import Setting
from fedhpo_gym.space import Dimension

FIRST, SECOND = "first moment of ", "second moment of "


class Moments(Algorithm):
    """The server keeps moments m and v of every parameter, at first 0 and adaptivity^2."""

    def init_state(self, parameters: Parameters, context: Context) -> Parameters:
        start = context.hyperparameters["adaptivity"] ** 2
        zeros = {name: value - value for name, value in parameters.items()}
        first = {FIRST + name: zero for name, zero in zeros.items()}
        return first | {SECOND + name: zero + fit(start, zero) for name, zero in zeros.items()}


class Adaptive(Moments):
    """The server takes an adaptive step along the clients' mean update D = w' - w.

    With w the global model and w' the clients' average:
    m <- first_decay m + (1 - first_decay) D, v <- `second_moment`(v, D^2),
    w <- w + server_learning_rate m / (sqrt(v) + adaptivity); m starts at 0 and v at adaptivity^2.
    There is no bias correction, as in the paper. The paper's names are eta for
    server_learning_rate, tau for adaptivity, beta_1 and beta_2 for the decays. The range of the
    learning rate is that of the paper.
    """

    dimensions = (
        Dimension("server_learning_rate", 0.001, 1.0, "float", log=True, bins=4, scope="server"),
    )
    settings: ClassVar = {
        "adaptivity": Setting(1e-3, 1e-9, 1.0),
        "first_decay": Setting(0.9, 0.0, 0.9999),
        "second_decay": Setting(0.99, 0.0, 0.9999),
    }

    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
        settings = context.hyperparameters
        updated, moments = {}, {}
        for name, value in parameters.items():
            rate, tau, first_decay, second_decay = (fit(x, value) for x in settings.values())
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


KINDS = ("none", "sgd", "adam", "yogi")
_STEPS = ("server_optimizer", KINDS[1:])
ADAPTS = ("server_optimizer", KINDS[2:])
"""Condition under which settings of adaptive servers are active."""

NONE, SGD, ADAM, YOGI = range(4)
"""Codes of `server_optimizer` in configurations of numbers."""


class ServerOpt(Moments):
    """Clients as in FedProx, and a server of FedAvg, FedOpt, FedAdam or FedYogi, with equal bits.

    With w the global model, w' the clients' average and D = w' - w:

    - none: w <- w'.
    - sgd: m <- server_momentum m + D, w <- w + server_learning_rate m.
    - adam, yogi: m <- server_momentum m + (1 - server_momentum) D, v as in `FedAdam` or `FedYogi`,
      w <- w + server_learning_rate m / (sqrt(v) + adaptivity).

    Moments that an optimizer does not use stay at 0 or are not read. With mu = 0 there is no pull.
    Ranges are the grids of Reddi et al., and of Li et al. (2020) for mu, widened by a decade.
    """

    name = "serveropt"
    dimensions = (
        Dimension("mu", 1e-4, 1.0, "float", log=True, bins=5),
        Dimension.of_categories("server_optimizer", KINDS, scope="server"),
        Dimension(
            "server_learning_rate",
            0.001,
            10.0,
            "float",
            log=True,
            bins=5,
            scope="server",
            active=_STEPS,
        ),
        Dimension("server_momentum", 0.0, 0.95, "float", bins=4, scope="server", active=_STEPS),
        Dimension(
            "adaptivity", 1e-5, 0.1, "float", log=True, bins=5, scope="server", active=ADAPTS
        ),
    )
    settings: ClassVar = {"second_decay": Setting(0.99, 0.0, 0.9999)}
    inactive: ClassVar = {"server_learning_rate": 1.0, "server_momentum": 0.0, "adaptivity": 1e-3}

    def pull(self, context: Context) -> Array:
        return context.hyperparameters["mu"]

    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
        settings = context.hyperparameters
        # Masks of ones and zeros are exact: x * 1 + y * 0 = x for finite y.
        plain, sgd, yogi = (flags(settings["server_optimizer"] == one) for one in (NONE, SGD, YOGI))
        adaptive = 1.0 - plain - sgd
        gain = adaptive * (1.0 - settings["server_momentum"]) + (1.0 - adaptive)
        updated, moments = {}, {}
        for name, value in parameters.items():
            rate, momentum, tau, decay = (
                fit(settings[one], value)
                for one in ("server_learning_rate", "server_momentum", "adaptivity", "second_decay")
            )
            is_plain, is_adaptive, is_yogi = (fit(one, value) for one in (plain, adaptive, yogi))
            update = average[name] - value
            first = momentum * state[FIRST + name] + fit(gain, value) * update
            square = (is_adaptive * update) ** 2
            before = state[SECOND + name]
            adam = decay * before + (1.0 - decay) * square
            sign = flags(before > square) - flags(before < square)
            second = is_yogi * (before - (1.0 - decay) * square * sign) + (1.0 - is_yogi) * adam
            divisor = is_adaptive * (second**0.5 + tau) + (1.0 - is_adaptive)
            stepped = value + rate * first / divisor
            updated[name] = is_plain * average[name] + (1.0 - is_plain) * stepped
            moments[FIRST + name], moments[SECOND + name] = first, second
        return updated, moments
