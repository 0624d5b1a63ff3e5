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

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms import ALGORITHMS
from fedhpo_gym.evaluation.records import FIDELITIES, Fidelity
from fedhpo_gym.objectives import (
    NO_PRIVACY,
    PrivacyLedger,
    PrivacyLedgers,
    ledger_of,
    poisson_curve,
    renyi_curve,
)
from fedhpo_gym.space import Value
from fedhpo_gym.tasks.federated import Task

DELTA: Final = 1e-5
"""The delta at which epsilon is stated."""
_CURVES = (renyi_curve, poisson_curve)
"""Renyi divergences at `SEARCH_ORDERS`: of a fixed number of clients, and of a Poisson sample."""


def is_private(algorithm: str) -> bool:
    """Return whether uploads of an algorithm are Gaussian mechanisms; others protect nothing."""
    return bool(ALGORITHMS[algorithm].private)


def privacy_spent(
    task: Task, columns: Mapping[str, NDArray[Any]]
) -> PrivacyLedger | PrivacyLedgers:
    """Return what B evaluations spend; it depends on no data. One ledger where nothing is private.

    Shapes: `columns` (B,).
    """
    mechanism = ALGORITHMS[task.algorithm]
    if not mechanism.private:
        return NO_PRIVACY
    decisive = (*mechanism.private, *task.architecture)
    names = [*FIDELITIES, *(name for name in decisive if name in columns)]
    queries = list(zip(*(columns[name].tolist() for name in names), strict=True))

    def vector(rounds: int, rate: float, *values: Value) -> NDArray[np.float64]:
        values_of_query = {**task.all_settings, **dict(zip(names[2:], values, strict=True))}
        share = Fidelity(rounds, rate).sampled_clients(task.num_clients) / task.num_clients
        noise = _noise_multiplier(task, values_of_query, share)
        return _ledger(mechanism.poisson, noise, rounds, share).vector()

    vectors = {query: vector(*query) for query in set(queries)}
    return PrivacyLedgers(np.stack([vectors[query] for query in queries]))


def renyi_spent(
    task: Task,
    configuration: Mapping[str, Value],
    rounds: int,
    client_sample_rate: float,
    *,
    horizon: int | None = None,
    steps: int | None = None,
) -> NDArray[np.float64]:
    """Return the (orders,) Renyi divergences, at `SEARCH_ORDERS`, that some rounds spend.

    Noise that is planned for a whole course is planned for `horizon` rounds, by default the task's
    most. With `steps` divergences are a bound: the noise is rounded down to one of so many in an
    octave, so that few are ever computed.
    """
    values = {**task.all_settings, **configuration}
    clients = Fidelity(rounds, client_sample_rate).sampled_clients(task.num_clients)
    share = clients / task.num_clients
    noise = _noise_multiplier(task, values, share, horizon)
    if steps is not None and 0.0 < noise < math.inf:
        noise = 2.0 ** (math.floor(steps * math.log2(noise)) / steps)
    return rounds * _curve(ALGORITHMS[task.algorithm].poisson, noise, share)


def _noise_multiplier(
    task: Task, values: Mapping[str, Value], share: float, horizon: int | None = None
) -> float:
    return ALGORITHMS[task.algorithm].noise_multiplier(
        values, horizon or task.max_round, share, lambda: task.parameters_of(values)
    )


@lru_cache(maxsize=4096)
def _curve(poisson: bool, noise_multiplier: float, share: float) -> NDArray[np.float64]:
    """Return what a round spends; `poisson` as in `Algorithm`."""
    curve = _CURVES[poisson](noise_multiplier, 1, share)
    curve.flags.writeable = False
    return curve


@lru_cache(maxsize=4096)
def _ledger(poisson: bool, noise_multiplier: float, rounds: int, share: float) -> PrivacyLedger:
    return ledger_of((rounds * _curve(poisson, noise_multiplier, share)).tolist(), DELTA)
