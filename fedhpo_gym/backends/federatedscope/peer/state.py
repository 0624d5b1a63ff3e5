"""What FederatedScope keeps for a whole process: random generators, log, monitors."""

from __future__ import annotations

import importlib
import logging
import random
from typing import Any

Kept = tuple[Any, Any, Any, list[Any]]


def save() -> Kept:
    """Return the state of the random generators, and the handlers of the log."""
    numpy, torch = importlib.import_module("numpy"), importlib.import_module("torch")
    handlers = list(_log().handlers)
    return random.getstate(), numpy.random.get_state(), torch.get_rng_state(), handlers


def restore(kept: Kept) -> None:
    """Put back what was saved."""
    numpy, torch = importlib.import_module("numpy"), importlib.import_module("torch")
    random.setstate(kept[0])
    numpy.random.set_state(kept[1])
    torch.set_rng_state(kept[2])
    _log().handlers[:] = kept[3]


def quieten() -> None:
    """Log into the course's own file alone; what is printed as well would grow for ever."""
    log = _log()
    log.handlers[:] = [one for one in log.handlers if isinstance(one, logging.FileHandler)]


def close_log() -> None:
    """Close the log of the course that runs."""
    for handler in _log().handlers:
        handler.close()
    _log().handlers[:] = []


def monitors() -> list[Any]:
    """Return FederatedScope's list of the monitors of all courses; it never forgets one."""
    module = importlib.import_module("federatedscope.core.monitors.monitor")
    known: list[Any] = getattr(module, "global_all_monitors", [])
    return known


def _log() -> logging.Logger:
    return logging.getLogger("federatedscope")
