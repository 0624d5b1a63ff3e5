"""FL algorithms, one class each: its hyperparameters, its messages and its hooks.

Hooks use arithmetic that numpy and torch share; no module here needs torch or numba.
"""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType

from fedhpo_gym.algorithms.asynchronous import Asynchronous, FedAsync, FedBuff
from fedhpo_gym.algorithms.base import Algorithm
from fedhpo_gym.algorithms.dpfedavg import DPFedAvg
from fedhpo_gym.algorithms.fedavg import Ditto, FedAvg, FedBN, FedProx, Local
from fedhpo_gym.algorithms.fedopt import FedNova, FedOpt
from fedhpo_gym.algorithms.nbafl import NbAFL
from fedhpo_gym.algorithms.scaffold import Scaffold
from fedhpo_gym.algorithms.serveropt import FedAdam, FedYogi, ServerOpt
from fedhpo_gym.algorithms.settings import TRAINING
from fedhpo_gym.core.checks import short_repr, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError, unknown_name
from fedhpo_gym.core.plugins import Registry, import_named, remember_plugin, require_subclass
from fedhpo_gym.evaluation.records import Fidelity

_KINDS: tuple[type[Algorithm], ...] = (
    FedAvg,
    FedOpt,
    FedProx,
    NbAFL,
    FedAdam,
    FedYogi,
    FedBN,
    Ditto,
    Local,
    FedAsync,
    FedBuff,
    ServerOpt,
    FedNova,
    DPFedAvg,
    Scaffold,
)

_BUILT_IN: dict[str, Algorithm] = {kind.name: kind() for kind in _KINDS}

REGISTERED: Registry[Algorithm] = Registry("algorithm", lambda: _BUILT_IN)
"""Algorithms that users have added, by name."""

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(ChainMap(REGISTERED, _BUILT_IN))
"""Every algorithm by name, those of users last."""


@validate_call
def register_algorithm(kind: type[Algorithm]) -> None:
    """Add an algorithm of your own, which environments then take by its `name`.

    Worker processes import the module that calls this, so it stands in a module, not in a prompt.

    Args:
        kind: a subclass of `Algorithm` with a `name`, which is made without arguments.

    Raises:
        InvalidArgumentError: this package, or another class, has that name, it is no algorithm or
            cannot be made, one of its hyperparameters has the name of a fidelity, a setting or a
            dimension of the server has one of local training, or it is asynchronous and asks for
            what needs rounds.
    """
    require_subclass("algorithm", short_repr(kind), kind, Algorithm, "server_update")
    if fidelity_clashes := {d.name for d in kind.dimensions} & {
        field.name for field in fields(Fidelity)
    }:
        raise InvalidArgumentError(
            f"`dimensions` of {short_repr(kind)} must have other names than fidelities, got "
            f"{sorted(fidelity_clashes)}"
        )
    try:
        algorithm = kind()
    except (Exception, SystemExit) as error:
        raise InvalidArgumentError(
            f"`algorithm` must be a class that is made without arguments, got {short_repr(kind)}, "
            f"which raised {type(error).__name__}: {error}"
        ) from error
    if clashes := algorithm.server_names & TRAINING.keys():
        raise InvalidArgumentError(
            f"settings and dimensions of the server of {short_repr(kind)} must have other names "
            f"than those of local training, which would read them too, got {sorted(clashes)}; "
            f"rename them, as in 'server_{min(clashes)}'"
        )
    _check_asynchronous(kind, algorithm)
    other = type(REGISTERED[algorithm.name]) if algorithm.name in REGISTERED else kind
    if (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
        raise InvalidArgumentError(
            f"`name` of {short_repr(kind)} must be that of no other class, got {algorithm.name!r}, "
            f"which is {short_repr(other)}'s; give it another name"
        )
    REGISTERED.add(algorithm.name, lambda: algorithm)


def _check_asynchronous(kind: type[Algorithm], algorithm: Algorithm) -> None:
    """Refuse what asynchronous training would leave out."""
    if algorithm.asynchronous != isinstance(algorithm, Asynchronous):
        raise InvalidArgumentError(
            f"`asynchronous` must be true of subclasses of `Asynchronous` and of no others, got "
            f"{short_repr(kind)}; `fedhpo_gym.algorithms.asynchronous` describes them"
        )
    if not isinstance(algorithm, Asynchronous):
        return
    if not isinstance(getattr(algorithm, "from_current", None), bool):
        raise InvalidArgumentError(f"`from_current` of {short_repr(kind)} must be True or False")
    of_rounds = ("keeps_copy", "keeps_variates", "poisson", "private")
    clashes = [repr(name) for name in of_rounds if getattr(algorithm, name)]
    clashes += ["'reports'"] if kind.reports is not Algorithm.reports else []
    if algorithm.sends_updates and algorithm.from_current:
        # Who sends an update does not know the global model of its arrival.
        clashes.append("'sends_updates' where `from_current` is True")
    if clashes:
        raise InvalidArgumentError(
            f"an asynchronous algorithm must not have {', '.join(clashes)}, got "
            f"{short_repr(kind)}; leave it out, or derive it from a synchronous one"
        )


@validate_call
def get_algorithm(name: str) -> Algorithm:
    """Return an algorithm by name, or the one that `module:Class` names, which is then registered.

    Raises:
        UnknownNameError: no such algorithm.
        InvalidArgumentError: `module:Class` cannot be imported, or is no algorithm.
    """
    return ALGORITHMS[algorithm_name(name)]


@validate_call
def algorithm_name(name: str) -> str:
    """Return the name of an algorithm that a caller, but no file and no record, names."""
    if ":" in name:
        kind = import_named("algorithm", "a subclass of Algorithm", name)
        require_subclass("algorithm", name, kind, Algorithm, "server_update")
        register_algorithm(kind)
        remember_plugin(register_algorithm, name, kind.name)
        return str(kind.name)
    if name not in ALGORITHMS:
        error = unknown_name("algorithm", name, ALGORITHMS)
        raise UnknownNameError(f"{error} One of your own is named `module:Class`.")
    return name


__all__ = [
    "ALGORITHMS",
    "REGISTERED",
    "Algorithm",
    "Asynchronous",
    "algorithm_name",
    "get_algorithm",
    "register_algorithm",
]
