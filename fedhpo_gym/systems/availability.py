"""When clients can take part: intervals of the day, drawn or measured, that repeat."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream

DAY_S: Final = 86_400.0
SLOTS: Final = 144
"""Slots of ten minutes in a day: drawn availability changes at their borders."""

_MARGIN = 1e-6  # what FLGo takes off, so that beta = 0 leaves a positive deviation
_PORTION = 65_536  # clients drawn at a time: 75 MB
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Availability:
    """Intervals in which clients are available; those of a client repeat with its period.

    Attributes:
        period_s: (clients,) seconds after which a client's intervals repeat.
        client: (intervals,) whose interval it is, in ascending order.
        start_s: (intervals,) its beginning, ascending for each client, in [0, period].
        end_s: (intervals,) its end, likewise; a client is still available then.
    """

    period_s: Floats
    client: NDArray[np.intp]
    start_s: Floats
    end_s: Floats

    @classmethod
    def of_intervals(cls, clients: Sequence[tuple[float, Floats]]) -> Availability:
        """Make it of (period, (intervals, 2) beginnings and ends) per client.

        Raises:
            InvalidArgumentError: a client is never available, or its intervals are not finite, in
                order, and within a positive period.
        """
        for index, (period_s, intervals) in enumerate(clients):
            flat = intervals.reshape(-1)
            if not flat.size or not 0 < period_s < math.inf:
                raise InvalidArgumentError(
                    "`clients` must each have an interval and a positive, finite period, got "
                    f"{len(intervals)} and {period_s!r} of client {index}"
                )
            if not (flat[0] >= 0 and flat[-1] <= period_s and np.all(np.diff(flat) >= 0)):
                raise InvalidArgumentError(
                    f"`clients` must have intervals in order, within [0, {period_s:g}], got "
                    f"others of client {index}"
                )
        counts = [len(intervals) for _, intervals in clients]
        both = np.concatenate([intervals for _, intervals in clients]).astype(np.float64)
        return cls(
            np.array([period for period, _ in clients], dtype=np.float64),
            np.repeat(np.arange(len(clients)), counts),
            np.ascontiguousarray(both[:, 0]),
            np.ascontiguousarray(both[:, 1]),
        )

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.period_s)

    @cached_property
    def _ends(self) -> Floats:
        """Where intervals end on one line for all clients: client, and share of its period."""
        return np.asarray(self.client + 0.5 * self.end_s / self.period_s[self.client])

    @cached_property
    def _first(self) -> NDArray[np.intp]:
        """(clients + 1,) where the intervals of each client begin."""
        return np.searchsorted(self.client, np.arange(len(self.period_s) + 1))

    def wait_s(self, clients: NDArray[np.integer], time_s: float | Floats) -> Floats:
        """Return the seconds from a time until each of some clients is available: 0 if it is.

        The end of a wait, `time_s + wait_s`, never falls when `time_s` grows: who asks later is
        not served earlier.
        """
        period = self.period_s[clients]
        phase = np.fmod(time_s, period)
        first, last = self._first[clients], self._first[clients + 1]
        found = np.searchsorted(self._ends, clients + 0.5 * phase / period, side="left")
        found = np.clip(found, first, last)
        wraps = found == last
        begin = self.start_s[np.where(wraps, first, found)] + np.where(wraps, period, 0.0)
        wait: Floats = np.maximum(begin - phase, 0.0)
        return wait


def drawn(kind: str, number: int, beta: float, seed: int) -> Availability:
    """Draw in which slots of a day clients are available; every day is the same.

    The rates are those of Ribero et al. (2022), arXiv:2205.06730, as FLGo implements them.
    Client i has p_i = c_i / max c with c_i ~ LogNormal(0, -ln(1 - beta)). It is available in a slot
    with probability p_i ("lognormal"), or (0.4 sin(2 pi t) + 0.5) p_i, where t is the share of the
    day that is over when the slot ends ("sine"). A client that would never be available is so in
    the slot in which it came closest.

    Args:
        kind: "lognormal" or "sine".
        number: of clients.
        beta: how much clients differ, in [0, 1).
        seed: what is drawn.
    """
    sigma = -math.log(1.0 - beta - _MARGIN) if beta > 0 else 0.0
    rates = np.exp(sigma * stream(seed, "availability_rates").standard_normal(number))
    rates /= rates.max()
    rng = stream(seed, "availability_slots")
    ends = (np.arange(SLOTS) + 1) / SLOTS
    day = 0.4 * np.sin(2 * np.pi * ends) + 0.5 if kind == "sine" else np.ones(SLOTS)
    parts = []
    for some in np.array_split(rates, math.ceil(number / _PORTION)):
        short = rng.random((len(some), SLOTS)) - some[:, None] * day
        parts.append((short < 0) | (short == short.min(axis=1, keepdims=True)))
    client, first, last = (np.concatenate(p) for p in zip(*_runs_of(parts), strict=True))
    slot_s = DAY_S / SLOTS
    return Availability(np.full(number, DAY_S), client, first * slot_s, last * slot_s)


def _runs_of(parts: list[NDArray[np.bool_]]) -> Iterator[tuple[NDArray[np.intp], ...]]:
    """Yield whose the runs of True are, their first slots, and the slots that end them."""
    before = 0
    for available in parts:
        edges = np.diff(np.pad(available.astype(np.int8), ((0, 0), (1, 1))), axis=1)
        client, first = np.nonzero(edges == 1)
        yield client + before, first, np.nonzero(edges == -1)[1]
        before += len(available)
