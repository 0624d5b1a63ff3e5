"""Writing entries into FederatedScope's configuration, none of which may be ignored."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

_OPTIMIZERS = ("train.optimizer", "fedopt.optimizer")
"""Where FederatedScope takes any name, and hands it to the optimizer of torch."""


def write(config: Any, entries: dict[str, Any]) -> None:
    """Write entries, by dotted name.

    Raises:
        KeyError: FederatedScope knows no such key, and would ignore it.
    """
    for key, value in entries.items():
        path, _, name = key.rpartition(".")
        node = config
        for part in filter(None, path.split(".")):
            if part not in node:
                raise KeyError(_unknown(key))
            node = node[part]
        if name not in node and not (path in _OPTIMIZERS and _takes(entries, path, name)):
            raise KeyError(_unknown(key))
        setattr(node, name, value)


def require_unchanged(config: Any, entries: dict[str, Any]) -> None:
    """Check that a configuration that is ready still says what was written.

    Raises:
        ValueError: FederatedScope changed an entry, or dropped it.
    """
    for key, value in entries.items():
        node = config
        for part in key.split("."):
            node = node.get(part) if hasattr(node, "get") else None
        if node != value and not (isinstance(value, list) and list(node or ()) == value):
            raise ValueError(
                f"FederatedScope would not follow its configuration entry {key!r}: {value!r} was "
                f"written, and it holds {node!r}"
            )


def _takes(entries: dict[str, Any], path: str, name: str) -> bool:
    kind = getattr(importlib.import_module("torch.optim"), entries.get(path + ".type", "SGD"), None)
    return kind is not None and name in inspect.signature(kind).parameters


def _unknown(key: str) -> str:
    return f"FederatedScope knows no configuration entry {key!r}, and would ignore it"
