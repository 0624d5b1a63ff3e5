"""From what FederatedScope says of its clients to arrays; nothing that it says is evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.checks import as_number
from fedhpo_gym.errors import WorkerLostError
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.typed import shown

NAMES: Mapping[str, str] = {"loss": "avg_loss", "accuracy": "acc", "f1": "f1"}
"""Our metrics -> FederatedScope's, which begin with the split."""
MAX_NORM = 1e30
"""The largest norm of an update that is told, as by our engine."""


def client_metrics(clients: object, num_samples: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return (clients, splits, metrics) of what was said of all clients after a round.

    Entries of splits in which a client has no samples are 0.

    Args:
        clients: number of the client, from "1" on -> its metrics by FederatedScope's names.
        num_samples: (clients, splits).

    Raises:
        WorkerLostError: a client, a split or a metric is missing, or a value is no number.
    """
    known = _mapping("clients", clients)
    number = len(num_samples)
    if set(known) != {str(client) for client in range(1, number + 1)}:
        raise _unreadable("clients", f"must be 1 to {number}, got {shown(sorted(known)[:10])}")
    found = np.zeros((number, len(SPLITS), len(METRICS)), dtype=np.float32)
    for client in range(number):
        said = _mapping(f"client {client + 1}", known[str(client + 1)])
        for at, split in enumerate(SPLITS):
            if num_samples[client, at]:
                found[client, at] = [value(said, f"{split}_{NAMES[m]}") for m in METRICS]
    return found


def sample_counts(clients: object, num_clients: int) -> NDArray[np.int64]:
    """Return (clients, splits) numbers of samples that FederatedScope counts.

    Raises:
        WorkerLostError: see `client_metrics`.
    """
    known = _mapping("clients", clients)
    if set(known) != {str(client) for client in range(1, num_clients + 1)}:
        raise _unreadable("clients", f"must be 1 to {num_clients}, got {len(known)} of them")
    counts = [
        [int(_mapping("client", known[str(i)]).get(f"{s}_total", 0)) for s in SPLITS]
        for i in range(1, num_clients + 1)
    ]
    return np.array(counts, dtype=np.int64)


def client_updates(
    message: Mapping[str, Any], num_clients: int
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the clients that trained in a round, from 0 on, and what is said of each.

    Raises:
        WorkerLostError: it is unreadable.
    """
    for name, said in _mapping("clients", message.get("clients")).items():
        if not (name.isdigit() and 1 <= int(name) <= num_clients):
            raise _unreadable("clients", f"must be 1 to {num_clients}, got {shown(name)}")
        yield int(name) - 1, _mapping(f"client {name}", said)


def bounded_norm(said: Mapping[str, Any]) -> float:
    """Return the norm of an update as a report holds it: finite, as those of our engine are.

    Raises:
        WorkerLostError: there is none.
    """
    norm = value(said, "norm")
    return min(norm, MAX_NORM) if norm == norm else 0.0


def is_finite(metrics: NDArray[np.floating]) -> bool:
    """Return whether a course is still among the finite numbers."""
    return bool(np.isfinite(metrics).all())


def whole(message: Mapping[str, Any], name: str) -> int:
    """Return a whole number of a message.

    Raises:
        WorkerLostError: it is none.
    """
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unreadable(name, f"must be a whole number, got {shown(value)}")
    return value


def value(said: Mapping[str, Any], name: str) -> float:
    """Return a number, which may be infinite or none.

    Raises:
        WorkerLostError: it is no number.
    """
    found = said.get(name)
    number = found if isinstance(found, float) else as_number(found)  # NaN is a number here
    if number is None:
        raise _unreadable(name, f"must be a number, got {shown(found)}")
    return float(number)


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _unreadable(name, f"must be an object, got {shown(value)}")
    return value


def _unreadable(name: str, rule: str) -> WorkerLostError:
    return WorkerLostError(f"FederatedScope said something unreadable: `{name}` {rule}")
