"""One process per installation for all environments of this process, ended with the last one."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedhpo_gym.backends.federatedscope.installation import Installation
from fedhpo_gym.backends.federatedscope.process import Peer


@dataclass
class _Shared:
    peer: Peer
    leases: int = 0


_shared: dict[Installation, _Shared] = {}
_lock = threading.RLock()
_numbers = itertools.count()
_keeping = 0


class Lease:
    """The right to ask an installation's process; the last lease that ends closes it."""

    def __init__(self, installation: Installation) -> None:
        """Take no process yet."""
        self._installation = installation
        self._end: weakref.finalize[[Installation, Peer], Lease] | None = None
        self._peer: Peer | None = None

    def peer(self) -> Peer:
        """Return the process; a new one where the last one has ended.

        Raises:
            FedHPOError: see `Peer`.
        """
        with _lock:
            if self._peer is not None and self._peer.alive:
                return self._peer
            self.close()
            held = _shared.get(self._installation)
            if held is None or not held.peer.alive:
                held = _shared[self._installation] = _Shared(Peer(self._installation))
            held.leases += 1
            self._peer = held.peer
            self._end = weakref.finalize(self, _release, self._installation, held.peer)
            return held.peer

    def close(self) -> None:
        """Give the process back; `peer` takes one again."""
        if self._end is not None:
            self._end()
        self._end = self._peer = None


@contextmanager
def kept() -> Iterator[None]:
    """Keep processes until the body ends, so that environments made one by one share them."""
    global _keeping
    with _lock:
        _keeping += 1
    try:
        yield
    finally:
        with _lock:
            _keeping -= 1
            for installation, held in list(_shared.items()):
                _close_unused(installation, held)


def next_number() -> int:
    """Return a number that no course of this process has had."""
    return next(_numbers)


def _release(installation: Installation, peer: Peer) -> None:
    with _lock:
        held = _shared.get(installation)
        if held is None or held.peer is not peer:
            peer.close()
            return
        held.leases -= 1
        _close_unused(installation, held)


def _close_unused(installation: Installation, held: _Shared) -> None:
    if held.leases <= 0 and not _keeping:
        del _shared[installation]
        held.peer.close()


def close_all() -> None:
    """End every process; `Lease.peer` starts new ones."""
    with _lock:
        for held in list(_shared.values()):
            held.peer.close()
        _shared.clear()


atexit.register(close_all)
# A fork shares its parent's pipes and must never use them.
os.register_at_fork(after_in_child=_shared.clear)
