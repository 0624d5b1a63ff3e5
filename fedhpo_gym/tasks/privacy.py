"""The differential privacy that an evaluation spends: what an algorithm's noise is worth.

Uploads of a private algorithm are Gaussian mechanisms; `objectives.privacy` composes them over the
rounds of an evaluation. What the accountant assumes:

- The sensitivity the noise was made for: replacing one of a client's n samples moves each clipped
  number by at most 1/n of its range [-w_clip, w_clip] (Wei et al., 2020, Section III). That is
  their assumption about local training, not a fact about SGD. A client uploads d numbers, so the
  vector moves by at most 2 w_clip sqrt(d) / n.
- In each round exactly m of N clients are drawn, so a client takes part with probability m/N.
  Everybody may see who does: nothing is gained from the secrecy of the draw.
- NbAFL: the noise of other clients and of the broadcast is not counted, and running statistics of
  normalisation layers are not protected at all.

DP-FedAvg protects whole clients instead, by noise on what a round adds up, and who takes part is
secret (`objectives.poisson_curve`); what its ledger says is of one client more or less.

NbAFL's own "epsilon" is another number: a promise for one coordinate (no sqrt(d)), over all T
rounds by linear composition, at the delta of its constant c, 1.25 exp(-c^2 / 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import FIDELITIES, Fidelity
from fedhpo_gym.objectives import (
    NO_PRIVACY,
    PrivacyLedger,
    PrivacyLedgers,
    ledger_of,
    planned_noise,
    poisson_curve,
    renyi_curve,
)
from fedhpo_gym.space import Value
from fedhpo_gym.tasks.federated import Task

DELTA: Final = 1e-5
"""The delta at which epsilon is stated."""


@dataclass(frozen=True)
class Mechanism:
    """The Gaussian mechanism that uploads go through.

    Attributes:
        reads: hyperparameters that its noise depends on.
        noise_multiplier: standard deviation of the noise over the sensitivity of an upload, from
            the task, a configuration with the values of `reads`, and the share of the clients that
            takes part in a round.
        curve: Renyi divergences at `SEARCH_ORDERS`, from a noise multiplier, rounds and that share.
    """

    reads: tuple[str, ...]
    noise_multiplier: Callable[[Task, Mapping[str, Value], float], float]
    curve: Callable[[float, int, float], NDArray[np.float64]] = renyi_curve


def _nbafl(task: Task, given: Mapping[str, Value], share: float) -> float:
    """Return w_clip T c / (n epsilon) over 2 w_clip sqrt(d) / n."""
    del share
    noise = task.max_round * float(given["constant"]) / float(given["epsilon"])
    return noise / (2.0 * math.sqrt(task.parameters_of(given)))


def _dpfedavg(task: Task, given: Mapping[str, Value], share: float) -> float:
    """Return z as training has it: in single precision."""
    names = ("noise_multiplier", "epsilon", "delta")
    noise, epsilon, delta = (float(np.float32(given[name])) for name in names)
    return planned_noise(epsilon, delta, task.max_round, share) if epsilon > 0.0 else noise


MECHANISMS: Mapping[str, Mechanism] = MappingProxyType(
    {
        "nbafl": Mechanism(("epsilon", "constant"), _nbafl),
        "dpfedavg": Mechanism(("noise_multiplier", "epsilon", "delta"), _dpfedavg, poisson_curve),
    }
)
"""By algorithm; the others protect nothing."""


def privacy_spent(
    task: Task, columns: Mapping[str, NDArray[Any]]
) -> PrivacyLedger | PrivacyLedgers:
    """Return what B evaluations spend; it depends on no data. One ledger where nothing is private.

    Shapes: `columns` (B,).
    """
    mechanism = MECHANISMS.get(task.algorithm)
    if mechanism is None:
        return NO_PRIVACY
    decisive = (*mechanism.reads, *task.architecture)
    names = [*FIDELITIES, *(name for name in decisive if name in columns)]
    queries = list(zip(*(columns[name].tolist() for name in names), strict=True))

    def vector(rounds: int, rate: float, *values: Value) -> NDArray[np.float64]:
        given = {**task.all_settings, **dict(zip(names[2:], values, strict=True))}
        share = Fidelity(rounds, rate).sampled_clients(task.num_clients) / task.num_clients
        noise = mechanism.noise_multiplier(task, given, share)
        return _ledger(mechanism.curve, noise, rounds, share).vector()

    known = {query: vector(*query) for query in set(queries)}
    return PrivacyLedgers(np.stack([known[query] for query in queries]))


def renyi_spent(
    task: Task, configuration: Mapping[str, Value], rounds: int, client_sample_rate: float
) -> NDArray[np.float64]:
    """Return the (orders,) Renyi divergences, at `SEARCH_ORDERS`, that some rounds spend."""
    values = {**task.all_settings, **configuration}
    mechanism = MECHANISMS[task.algorithm]
    clients = Fidelity(rounds, client_sample_rate).sampled_clients(task.num_clients)
    share = clients / task.num_clients
    noise = mechanism.noise_multiplier(task, values, share)
    return rounds * _curve(mechanism.curve, noise, share)


_Curve = Callable[[float, int, float], NDArray[np.float64]]


@lru_cache(maxsize=4096)
def _curve(made_by: _Curve, noise_multiplier: float, share: float) -> NDArray[np.float64]:
    curve = made_by(noise_multiplier, 1, share)
    curve.flags.writeable = False
    return curve


@lru_cache(maxsize=4096)
def _ledger(made_by: _Curve, noise_multiplier: float, rounds: int, share: float) -> PrivacyLedger:
    return ledger_of(made_by(noise_multiplier, rounds, share).tolist(), DELTA)
