"""Hyperparameters of single clients in a configuration: the key `name@client`.

A configuration holds the value of all clients under `name`, and exceptions under `name@client`,
with clients counted from 0. This module alone builds and reads such keys; everything that computes
with them takes an array with a value per client.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedhpo_gym.core.arrays import Floats

_SEPARATOR = "@"


def client_key(name: str, client: int) -> str:
    """Return the key of one client's value."""
    return f"{name}{_SEPARATOR}{client}"


def split_key(key: str) -> tuple[str, int | None]:
    """Return name and client of a key; the client is None in the key of all clients."""
    name, separator, client = key.rpartition(_SEPARATOR)
    return (name, int(client)) if separator else (key, None)


def base_name(key: str) -> str:
    """Return the name of the hyperparameter in a key."""
    return key.partition(_SEPARATOR)[0]


def shared_names(keys: Iterable[str]) -> list[str]:
    """Return the keys that are of all clients, in their order."""
    return [key for key in keys if _SEPARATOR not in key]


def split_clients(
    configuration: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """Return the values of all clients, and by client those that differ."""
    shared: dict[str, Any] = {}
    by_client: dict[int, dict[str, Any]] = {}
    for key, value in configuration.items():
        name, client = split_key(key)
        (shared if client is None else by_client.setdefault(client, {}))[name] = value
    return shared, by_client


def client_values(
    configurations: Sequence[Mapping[str, Any]], name: str, defaults: Sequence[float], clients: int
) -> Floats:
    """Return the (B, clients) values of a hyperparameter.

    Args:
        configurations: B of them.
        name: the hyperparameter.
        defaults: (B,) values where a configuration does not name it.
        clients: number of clients.
    """
    values = np.empty((len(configurations), clients))
    pairs = zip(configurations, defaults, strict=True)
    values[:] = [[configuration.get(name, default)] for configuration, default in pairs]
    prefix = f"{name}{_SEPARATOR}"
    for row, configuration in zip(values, configurations, strict=True):
        for key, value in configuration.items():
            if key.startswith(prefix):
                row[int(key.removeprefix(prefix))] = value
    return values
