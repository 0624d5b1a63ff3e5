"""From what FederatedScope says of its clients to arrays; nothing that it says is evaluated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import as_number, shown
from fedhpo_gym.core.errors import WorkerLostError
from fedhpo_gym.evaluation.records import METRICS, SPLITS

NAMES: Mapping[str, str] = {"loss": "avg_loss", "accuracy": "acc", "f1": "f1"}
"""Our metrics -> FederatedScope's, which begin with the split."""
SLACK = 1e-6
"""How far above 1 a mean of shares may be by rounding."""
BOUNDS: Mapping[str, tuple[float, float]] = {
    "loss": (0.0, math.inf),
    "accuracy": (0.0, 1.0 + SLACK),
    "f1": (0.0, 1.0 + SLACK),
}
"""What each metric lies between: no loss of the tasks is below zero."""
MOST_SAMPLES = 2**53
MAX_NORM = 1e30
"""The largest norm of an update that is told, as by our engine."""


def client_metrics(clients: object, num_samples: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return (clients, splits, metrics) of what was said of all clients after a round.

    Entries of splits in which a client has no samples are 0.

    Args:
        clients: number of the client, from "1" on -> its metrics by FederatedScope's names.
        num_samples: (clients, splits).

    Raises:
        WorkerLostError: a client, a split or a metric is missing, a value is no number, a loss is
            below zero, or another metric is not between 0 and 1.
    """
    known = _mapping("clients", clients)
    number = len(num_samples)
    if set(known) != {str(client) for client in range(1, number + 1)}:
        raise unreadable("clients", f"must be 1 to {number}, got {shown(sorted(known)[:10])}")
    found = np.zeros((number, len(SPLITS), len(METRICS)), dtype=np.float32)
    for client in range(number):
        said = _mapping(f"client {client + 1}", known[str(client + 1)])
        for at, split in enumerate(SPLITS):
            if num_samples[client, at]:
                values = [value(said, f"{split}_{NAMES[m]}", *BOUNDS[m]) for m in METRICS]
                with np.errstate(over="ignore"):  # a loss beyond float32 is infinite
                    found[client, at] = values
    return found


def first_metrics(clients: object, num_samples: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return `client_metrics` of a model that nobody has trained: all are finite.

    Raises:
        WorkerLostError: see `client_metrics`; or one is not finite.
    """
    found = client_metrics(clients, num_samples)
    if not is_finite(found):
        raise unreadable("clients", "must have finite metrics before the first round")
    return found


def sample_counts(clients: object, num_clients: int) -> NDArray[np.int64]:
    """Return (clients, splits) numbers of samples that FederatedScope counts.

    Raises:
        WorkerLostError: see `client_metrics`.
    """
    known = _mapping("clients", clients)
    if set(known) != {str(client) for client in range(1, num_clients + 1)}:
        raise unreadable("clients", f"must be 1 to {num_clients}, got {len(known)} of them")
    counts = [
        [_count(_mapping("client", known[str(i)]), f"{s}_total") for s in SPLITS]
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
    numbers = {str(client + 1): client for client in range(num_clients)}
    for name, said in _mapping("clients", message.get("clients")).items():
        if name not in numbers:
            raise unreadable("clients", f"must be 1 to {num_clients}, got {shown(name)}")
        yield numbers[name], _mapping(f"client {name}", said)


def cohorts(said: object, rounds: int, num_clients: int) -> list[list[int]]:
    """Return the clients, from 0 on, that will train in each of some rounds.

    Raises:
        WorkerLostError: these are no cohorts of so many rounds.
    """
    each: list[Any] = said if isinstance(said, list) else [None]
    if len(each) != rounds or not all(_is_cohort(one, num_clients) for one in each):
        raise unreadable(
            "cohorts",
            f"must be {rounds} lists of clients from 1 to {num_clients}, got {shown(said)}",
        )
    return [[number - 1 for number in one] for one in each]


def _is_cohort(said: Any, num_clients: int) -> bool:
    known = range(1, num_clients + 1)
    ints = isinstance(said, list) and all(
        type(number) is int and number in known for number in said
    )
    return ints and 0 < len(said) == len({*said})


def bounded_norm(said: Mapping[str, Any]) -> float:
    """Return the norm of an update as a report holds it: finite, as those of our engine are.

    Raises:
        WorkerLostError: there is none.
    """
    norm = value(said, "norm", 0.0)
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
        raise unreadable(name, f"must be a whole number, got {shown(value)}")
    return value


def value(
    said: Mapping[str, Any], name: str, low: float = -math.inf, high: float = math.inf
) -> float:
    """Return a number from `low` to `high`; NaN is one, where a course left the finite numbers.

    Raises:
        WorkerLostError: it is no number, or out of this range.
    """
    found = said.get(name)
    number = found if isinstance(found, float) else as_number(found)  # NaN is a number here
    if number is None:
        raise unreadable(name, f"must be a number, got {shown(found)}")
    if number < low or number > high:
        raise unreadable(name, f"must be a number from {low:g} to {high:g}, got {shown(found)}")
    return float(number)


def _count(said: Mapping[str, Any], name: str) -> int:
    """Return a number of samples; FederatedScope may write it as a float."""
    number = value(said, name, 0, MOST_SAMPLES) if name in said else 0
    if number != number or number % 1:
        raise unreadable(name, f"must be a whole number, got {shown(number)}")
    return int(number)


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise unreadable(name, f"must be an object, got {shown(value)}")
    return value


def unreadable(name: str, rule: str) -> WorkerLostError:
    """Build (not raise) the error for something that breaks a rule."""
    return WorkerLostError(f"FederatedScope said something unreadable: `{name}` {rule}")
