"""Devices of clients: their speeds, availability, invitations to rounds, and durations of rounds.

`DeviceModel` draws or reads devices here and computes the durations of rounds; `model` and `base`
use single functions. Devices and rounds are arrays of many entries, so that hundreds of rounds are
computed together. Random numbers belong to a round and a position in its cohort: inviting more
clients does not change the draws of the first ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Bools, Floats
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream


@dataclass(frozen=True)
class Draw:
    """A seed and keys that name the random numbers of a round; equal draws give equal numbers."""

    seed: int
    keys: tuple[int, ...]

    def stream(self, name: str) -> np.random.Generator:
        """Return a named stream of the round."""
        return stream(self.seed, name, *self.keys)


KILOBYTE: Final = 1024.0

FLASH_KB_PER_S: Final[Floats] = np.loadtxt(
    Path(__file__).with_name("flash_phones.csv"), delimiter=",", skiprows=1
)
"""(phones, 4): mean and standard deviation of download speed, then of upload speed, in kB/s."""


@dataclass(frozen=True, eq=False)
class Devices:
    """Devices, as arrays (devices,)."""

    compute: Floats  # duration of computation, relative to the reference device
    upload: Floats  # mean upload speed in bytes/s
    download: Floats  # mean download speed in bytes/s
    upload_variation: Floats  # standard deviation of a transfer's speed, as a share of the mean
    download_variation: Floats  # likewise

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            least = values >= 0 if name.endswith("variation") or name == "compute" else values > 0
            if not len(values) or len(values) != len(self.compute):
                raise InvalidArgumentError(
                    f"`{name}` must have one entry per device, got {len(values)}"
                )
            if not np.all(least & np.isfinite(values)):
                raise InvalidArgumentError(
                    f"`{name}` must be positive and finite for every device, got other values"
                )

    def __len__(self) -> int:
        return len(self.compute)

    def take(self, rows: NDArray[np.integer]) -> "Devices":
        """Return some of the devices, in this order."""
        return Devices(**{name: values[rows] for name, values in vars(self).items()})


def alike(num_devices: int, compute: float, upload: float, download: float) -> Devices:
    """Return equal devices."""
    same = [
        np.full(num_devices, value, np.float64) for value in (compute, upload, download, 0.0, 0.0)
    ]
    return Devices(*same)


def lognormal(
    num_devices: int,
    seed: int,
    *,
    compute_sigma: float,
    upload: tuple[float, float],
    download: tuple[float, float],
    correlation: float,
    variation: float,
) -> Devices:
    """Draw devices with log-normal compute times and speeds.

    `upload` and `download` are (median in bytes/s, standard deviation of the log); their logs have
    the given correlation.
    """
    deviates = stream(seed, "devices").standard_normal((num_devices, 3)).T
    compute, down, independent = deviates
    up = correlation * down + np.sqrt(1.0 - correlation**2) * independent
    varies = np.full(num_devices, variation, np.float64)
    return Devices(
        np.exp(compute_sigma * compute),
        upload[0] * np.exp(upload[1] * up),
        download[0] * np.exp(download[1] * down),
        varies,
        varies,
    )


def drawn_of(
    measured: Devices, num_devices: int, seed: int, compute_sigma: float | None
) -> Devices:
    """Draw devices from measured ones, with replacement."""
    rng = stream(seed, "measured_devices")
    devices = measured.take((rng.random(num_devices) * len(measured)).astype(np.intp))
    if compute_sigma is None:
        return devices
    compute = np.exp(
        compute_sigma * stream(seed, "devices").standard_normal((num_devices, 3))[:, 0]
    )
    return Devices(**{**vars(devices), "compute": compute})


def of_flash(table: Floats) -> Devices:
    """Return devices of (devices, 4) measured speeds, in the columns of `FLASH_KB_PER_S`."""
    down, down_sd, up, up_sd = table.T
    with np.errstate(divide="ignore", invalid="ignore"):
        varies = up_sd / up, down_sd / down
    return Devices(np.ones(len(table)), up * KILOBYTE, down * KILOBYTE, *varies)


DAY_S: Final = 86_400.0
SLOTS: Final = 144
"""Slots of ten minutes in a day; drawn availability changes only between slots."""

_MARGIN = 1e-6  # subtracted as in FLGo, for a positive deviation at beta = 0
_PORTION = 65_536  # clients that are drawn together: 75 MB


@dataclass(frozen=True, eq=False)
class Availability:
    """Intervals in which clients are available; they repeat with the period of the client."""

    period_s: Floats  # (clients,) seconds after which a client's intervals repeat
    client: NDArray[np.intp]  # (intervals,) client of an interval, in ascending order
    start_s: Floats  # (intervals,) start, ascending for each client, in [0, period]
    end_s: Floats  # (intervals,) end, likewise; the client is still available at the end

    @classmethod
    def of_intervals(cls, clients: Sequence[tuple[float, Floats]]) -> "Availability":
        """Return the availability of (period, (intervals, 2) starts and ends) per client."""
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
                    f"other intervals of client {index}"
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
        return len(self.period_s)

    @cached_property
    def _ends(self) -> Floats:
        """(intervals,) sort keys of interval ends: client + half of the share of its period.

        The keys of client i lie in [i, i + 0.5], so that one search serves all clients.
        """
        return np.asarray(self.client + 0.5 * self.end_s / self.period_s[self.client])

    @cached_property
    def _first(self) -> NDArray[np.intp]:
        """(clients + 1,) index of the first interval of each client."""
        return np.searchsorted(self.client, np.arange(len(self.period_s) + 1))

    def wait_s(self, clients: NDArray[np.integer], time_s: float | Floats) -> Floats:
        """Return the seconds from a time until each of some clients is available, 0 if it is.

        The end of a wait is monotone in `time_s`: a later start never ends earlier.
        """
        period = self.period_s[clients]
        phase = np.fmod(time_s, period)
        first, last = self._first[clients], self._first[clients + 1]
        next_interval = np.searchsorted(self._ends, clients + 0.5 * phase / period, side="left")
        next_interval = np.clip(next_interval, first, last)
        wraps = next_interval == last
        begin = self.start_s[np.where(wraps, first, next_interval)] + np.where(wraps, period, 0.0)
        return np.asarray(np.maximum(begin - phase, 0.0))


def drawn(kind: str, num_clients: int, beta: float, seed: int) -> Availability:
    """Draw the slots of a day in which clients are available; all days are equal.

    The rates are those of Ribero et al. (2022), arXiv:2205.06730, as FLGo implements them. A client
    without any slot gets the slot in which it came closest.
    """
    sigma = -math.log(1.0 - beta - _MARGIN) if beta > 0 else 0.0
    rates = np.exp(sigma * stream(seed, "availability_rates").standard_normal(num_clients))
    rates /= rates.max()
    rng = stream(seed, "availability_slots")
    ends = (np.arange(SLOTS) + 1) / SLOTS
    day = 0.4 * np.sin(2 * np.pi * ends) + 0.5 if kind == "sine" else np.ones(SLOTS)
    runs, before = [], 0
    for portion in np.array_split(rates, math.ceil(num_clients / _PORTION)):
        short = rng.random((len(portion), SLOTS)) - portion[:, None] * day
        available = (short < 0) | (short == short.min(axis=1, keepdims=True))
        edges = np.diff(np.pad(available.astype(np.int8), ((0, 0), (1, 1))), axis=1)
        who, begin = np.nonzero(edges == 1)
        runs.append((who + before, begin, np.nonzero(edges == -1)[1]))
        before += len(portion)
    client, first, last = (np.concatenate(arrays) for arrays in zip(*runs, strict=True))
    slot_s = DAY_S / SLOTS
    return Availability(np.full(num_clients, DAY_S), client, first * slot_s, last * slot_s)


@dataclass(frozen=True, eq=False)
class Invitations:
    """The clients that a server invites, arrays (rounds, invited).

    Random values belong to a position, so that further invitations do not change the first ones.
    """

    clients: NDArray[np.integer]
    wanted: int  # number of reports that the server waits for
    compute: Floats  # duration of computation, relative to the reference device
    upload: Floats  # bytes/s from each in this round
    download: Floats  # bytes/s to each in this round
    wait_s: Floats  # seconds until each is available
    survives: Bools  # whether a client does not drop out

    @classmethod
    def joined(cls, rounds: "Sequence[Invitations]") -> "Invitations":
        """Concatenate rounds with equally many clients."""
        arrays = [name for name in vars(rounds[0]) if name != "wanted"]
        joined = {
            name: np.concatenate([getattr(invitations, name) for invitations in rounds])
            for name in arrays
        }
        return cls(wanted=rounds[0].wanted, **joined)


@dataclass(frozen=True, eq=False)
class Rounds:
    """Durations and counts of some rounds, (rounds,) each."""

    time_s: Floats  # seconds, without the server's computation
    computation_s: Floats  # of these, seconds of computation of the last client in time
    reports: NDArray[np.integer]  # reports in time
    invited: int  # clients that received the model in each round
    busy_s: Floats  # seconds of computation, summed over all invited clients
    sent: NDArray[np.integer]  # clients that sent a report, in time or late


def invite(
    devices: Devices,
    hours: Availability | None,
    cohort: NDArray[np.integer] | int,
    start_s: float,
    draw: Draw,
    *,
    over_selection: float,
    dropout: float,
) -> Invitations:
    """Invite the clients of one round, `cohort` and more by over-selection.

    `cohort` is the clients, or their number if they are to be drawn.
    """
    cohort_clients = np.zeros(0, np.intp) if isinstance(cohort, int) else cohort
    num_reports = min(cohort, len(devices)) if isinstance(cohort, int) else len(cohort)
    num_invited = min(len(devices), math.ceil(num_reports * (1.0 + over_selection) - 1e-9))
    clients = cohort_clients
    if len(cohort_clients) < num_invited:
        order = draw.stream("invited_clients").permutation(len(devices))
        free = np.ones(len(devices), np.bool_)
        free[cohort_clients] = False
        clients = np.concatenate(
            [cohort_clients, order[free[order]][: num_invited - len(cohort_clients)]]
        )
    survives = np.ones(num_invited, np.bool_)
    if dropout:
        survives = draw.stream("dropout").random(num_invited) >= dropout
    wait_s = np.zeros(num_invited)
    if hours is not None:
        wait_s = hours.wait_s(clients % len(hours), start_s)
    return Invitations(
        clients[None],
        num_reports,
        devices.compute[clients][None],
        _speeds(devices.upload, devices.upload_variation, clients, draw, "upload_speeds")[None],
        _speeds(devices.download, devices.download_variation, clients, draw, "download_speeds")[
            None
        ],
        wait_s[None],
        survives[None],
    )


def invite_uniformly(
    devices: Devices,
    cohort: int,
    rounds: int,
    rng: np.random.Generator,
    *,
    over_selection: float,
    dropout: float,
) -> Invitations:
    """Invite uniformly drawn clients to one round of each of many courses, without waits."""
    num_reports = min(cohort, len(devices))
    num_invited = min(len(devices), math.ceil(num_reports * (1.0 + over_selection) - 1e-9))
    clients = _distinct(rng, rounds, len(devices), num_invited)
    upload, download = (
        np.asarray(mean[clients] * _factors(variation[clients], rng.standard_normal(clients.shape)))
        for mean, variation in (
            (devices.upload, devices.upload_variation),
            (devices.download, devices.download_variation),
        )
    )
    survives = rng.random(clients.shape) >= dropout
    compute, wait_s = devices.compute[clients], np.zeros(clients.shape)
    return Invitations(clients, num_reports, compute, upload, download, wait_s, survives)


def _distinct(rng: np.random.Generator, rows: int, high: int, count: int) -> NDArray[np.integer]:
    """Return (rows, count) integers below `high`, drawn without replacement in each row."""
    if count * count > high:
        permutations = rng.permuted(np.tile(np.arange(high), (rows, 1)), axis=1)
        return np.asarray(permutations[:, :count])
    samples = rng.integers(high, size=(rows, count))
    while True:  # rows with a client twice are drawn again
        twice = (np.diff(np.sort(samples, axis=1), axis=1) == 0).any(axis=1)
        if not twice.any():
            return samples
        samples[twice] = rng.integers(high, size=(int(twice.sum()), count))


def take_rounds(
    invited: Invitations,
    units: Floats,
    second_per_unit: float,
    message_bytes: tuple[float, float],
    deadline_s: float,
) -> Rounds:
    """Return the durations of rounds in which invited clients work (clients,) units."""
    compute_s, transfer_s = client_seconds(
        units[invited.clients],
        second_per_unit,
        invited.compute,
        (message_bytes[0], invited.upload),
        (message_bytes[1], invited.download),
    )
    report_s = invited.wait_s + compute_s + transfer_s
    end = endings(report_s, invited.survives, invited.wanted, deadline_s)
    busy_s = compute_s[np.arange(len(compute_s)), end.last]
    return Rounds(
        end.after_s,
        np.minimum(busy_s, end.after_s),
        end.reports,
        report_s.shape[1],
        compute_s.sum(axis=1),
        np.maximum(np.count_nonzero(invited.survives, axis=1), 1),
    )


def _speeds(
    means: Floats, variations: Floats, clients: NDArray[np.integer], draw: Draw, name: str
) -> Floats:
    """Return log-normal speeds of the transfers of one round, with some means and variations.

    FLASH draws from a normal distribution truncated at zero, for which the mean time of a transfer
    would be infinite.
    """
    mean, variation = means[clients], variations[clients]
    if not variation.any():
        return np.asarray(mean)
    return np.asarray(mean * _factors(variation, draw.stream(name).standard_normal(len(mean))))


def _factors(variation: Floats, deviates: Floats) -> Floats:
    """Return log-normal factors of mean 1 with these relative standard deviations."""
    sigma = np.sqrt(np.log1p(variation**2))
    return np.asarray(np.exp(sigma * deviates - 0.5 * sigma**2))


def client_seconds(
    units: Floats,
    second_per_unit: float,
    compute_factor: Floats,
    upload: tuple[float, Floats],
    download: tuple[float, Floats],
) -> tuple[Floats, Floats]:
    """Return the (clients,) seconds of computation, and of both transfers."""
    transfer_s = upload[0] / upload[1] + download[0] / download[1]
    return units * second_per_unit * compute_factor, transfer_s


class RoundCompletion(NamedTuple):
    """Ends of rounds, (rounds,): seconds, position of the last report, and reports in time."""

    after_s: Floats
    last: NDArray[np.intp]
    reports: NDArray[np.intp]


def endings(
    report_s: Floats, survives: Bools, num_reports: int, deadline_s: float = math.inf
) -> RoundCompletion:
    """Return the ends of independent rounds, from the times of (rounds, invited) reports.

    With a deadline, the server cannot distinguish a client that dropped out from a slow one. A
    round without a report invites the fastest client again.
    """
    rows = np.arange(len(report_s))
    times = np.where(survives, report_s, np.inf)
    order = np.argsort(times, axis=1, kind="stable")
    in_time = np.count_nonzero(survives & (report_s <= deadline_s), axis=1)
    reports = np.minimum(in_time, num_reports)
    fastest = np.argmin(report_s, axis=1)
    last = np.where(reports > 0, order[rows, np.maximum(reports, 1) - 1], fastest)
    after_s = report_s[rows, last]
    if deadline_s < math.inf:
        after_s = np.where(reports < num_reports, np.maximum(after_s, deadline_s), after_s)
    return RoundCompletion(after_s, last, np.maximum(reports, 1))
