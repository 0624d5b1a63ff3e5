"""What an FL algorithm adds to a problem: dimensions of the space, and settings fixed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fedhpo_gym.core.checks import as_number
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.space import Dimension


@dataclass(frozen=True)
class Setting:
    """A hyperparameter outside the search space.

    Attributes:
        default: value of problems that do not say another.
        low: smallest value.
        high: largest value.
        instead: the setting that decides where this one is 0, and means nothing elsewhere.
    """

    default: float
    low: float
    high: float
    instead: str = ""

    def validate(self, name: str, value: object) -> float:
        """Return a value, checked."""
        number = as_number(value)
        if number is None or not self.low <= number <= self.high:
            raise InvalidArgumentError(
                f"setting {name!r} must be a number in [{self.low:g}, {self.high:g}], got {value!r}"
            )
        return float(number)


@dataclass(frozen=True)
class AlgorithmSpec:
    """What an algorithm reads from a configuration, beyond what local training reads.

    Attributes:
        dimensions: what is searched.
        settings: what is fixed, by name.
        asynchronous: clients report when they are done, and a round is one aggregation.
        copies: how many times the size of the model every message has.
    """

    dimensions: tuple[Dimension, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    asynchronous: bool = False
    copies: int = 1


_MOMENTUM = (
    Dimension("server_momentum", 0.0, 0.9, "float", bins=2, scope="server"),
    Dimension("server_learning_rate", 0.1, 1.0, "float", bins=3, scope="server"),
)

_WIDE_RATE = Dimension("server_learning_rate", 0.1, 3.0, "float", log=True, bins=4, scope="server")

_ADAPTIVE = AlgorithmSpec(
    (Dimension("server_learning_rate", 0.001, 1.0, "float", log=True, bins=4, scope="server"),),
    {
        "adaptivity": Setting(1e-3, 1e-9, 1.0),
        "first_decay": Setting(0.9, 0.0, 0.9999),
        "second_decay": Setting(0.99, 0.0, 0.9999),
    },
)

_STEPS = ("server_optimizer", ("sgd", "adam", "yogi"))
ADAPTS = ("server_optimizer", ("adam", "yogi"))
"""When settings of adaptive servers mean anything."""

_SERVEROPT = AlgorithmSpec(
    (
        Dimension("mu", 1e-4, 1.0, "float", log=True, bins=5),
        Dimension.of_categories(
            "server_optimizer", ("none", "sgd", "adam", "yogi"), scope="server"
        ),
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
    ),
    {"second_decay": Setting(0.99, 0.0, 0.9999)},
)

BUFFER = "buffer_size"
"""Reports that an asynchronous aggregation waits for; 1 where nothing says more."""

_LATE = {
    "hinge_slope": Setting(0.0, 0.0, 1e6),
    "hinge_after": Setting(4.0, 0.0, 1e6),
    "mu": Setting(0.0, 0.0, 1e6),
}

ALGORITHMS: Mapping[str, AlgorithmSpec] = MappingProxyType(
    {
        "fedavg": AlgorithmSpec(),
        "fedopt": AlgorithmSpec(_MOMENTUM),
        "fednova": AlgorithmSpec(_MOMENTUM),
        "fedprox": AlgorithmSpec((Dimension("mu", 0.1, 5.0, "float", values=(0.1, 1.0, 5.0)),)),
        "nbafl": AlgorithmSpec(
            settings={
                "epsilon": Setting(20.0, 1e-6, 1e12),
                "w_clip": Setting(0.1, 1e-6, 1e6),
                "constant": Setting(1.0, 0.0, 100.0),
                "mu": Setting(0.0, 0.0, 1e6),
            }
        ),
        "dpfedavg": AlgorithmSpec(
            (
                Dimension("update_clip", 0.01, 10.0, "float", log=True, bins=4, scope="server"),
                Dimension("server_momentum", 0.0, 0.9, "float", bins=2, scope="server"),
                _WIDE_RATE,
            ),
            {
                "noise_multiplier": Setting(1.0, 0.0, 1e6),
                "epsilon": Setting(0.0, 0.0, 1e6, instead="noise_multiplier"),
                "delta": Setting(1e-5, 1e-12, 0.5),
                "clip_rate": Setting(0.0, 0.0, 1.0),
                "clip_quantile": Setting(0.5, 0.0, 1.0),
                "count_noise": Setting(5.0, 0.6, 1e6),
            },
        ),
        "scaffold": AlgorithmSpec((_WIDE_RATE,), copies=2),
        "fedadam": _ADAPTIVE,
        "fedyogi": _ADAPTIVE,
        "serveropt": _SERVEROPT,
        "fedbn": AlgorithmSpec(),
        "ditto": AlgorithmSpec(
            (Dimension("regularization", 0.001, 1.0, "float", log=True, bins=4),),
        ),
        "local": AlgorithmSpec(copies=0),
        "fedasync": AlgorithmSpec(
            (
                Dimension("mixing", 0.1, 1.0, "float", bins=4, scope="server"),
                Dimension("staleness_exponent", 0.0, 1.0, "float", bins=3, scope="server"),
            ),
            _LATE,
            asynchronous=True,
        ),
        "fedbuff": AlgorithmSpec(
            (
                Dimension(BUFFER, 1, 16, "int", log=True, bins=5, scope="server"),
                Dimension("server_learning_rate", 0.1, 1.0, "float", bins=3, scope="server"),
            ),
            {"staleness_exponent": Setting(0.5, 0.0, 10.0), **_LATE},
            asynchronous=True,
        ),
    }
)
"""By name. FedOpt: paper Table 8; FedNova: the same server.
DP-FedAvg: around the norms and rates that Andrew et al. (2021) tune; SCAFFOLD: around the rate 1
of Karimireddy et al. (2020).
FedProx, NbAFL: the original's scripts. FedAdam, FedYogi: from
the ranges that Reddi et al. (2021) tune in. Ditto: our choice, around FederatedScope's 0.1.
ServerOpt: the grids of Reddi et al. and, for mu, of Li et al. (2020), and what is a decade around.
FedAsync: mixing and exponents around those of Xie et al. (2019). FedBuff: buffers around the 10 of
Nguyen et al. (2022)."""

TRAINING: Mapping[str, Setting] = MappingProxyType(
    {
        "learning_rate": Setting(math.nan, 0.0, 1e6),
        "weight_decay": Setting(0.0, 0.0, 1e6),
        "batch_size": Setting(math.nan, 1, 2**31 - 1),
        "step_size": Setting(1, 1, 10**6),
        "momentum": Setting(0.0, 0.0, 0.9999),
        "rate_decay": Setting(1.0, 1e-9, 1.0),
    }
)
"""What local training reads of any model; most spaces search it. NaN: there is no default."""


def check_settings(
    problem: str,
    own: Mapping[str, Setting],
    searched: tuple[str, ...],
    settings: Mapping[str, object],
) -> dict[str, float]:
    """Return settings, checked: known, in their range, and not searched at the same time."""
    known = {**TRAINING, **own}
    if not isinstance(settings, Mapping):
        raise InvalidArgumentError(
            f"`settings` must be a mapping from names to numbers, got {settings!r}"
        )
    checked = {}
    for name, value in settings.items():
        if name in searched:
            raise InvalidArgumentError(
                f"`settings` must be outside the search space {searched}, got {name}={value!r}"
            )
        if name not in known:
            free = ", ".join(sorted(set(known) - set(searched))) or "none"
            raise InvalidArgumentError(
                f"`settings` of {problem} must be among: {free}; got {name}={value!r}"
            )
        checked[name] = known[name].validate(name, value)
    return checked
