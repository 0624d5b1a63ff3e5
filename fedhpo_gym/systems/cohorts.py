"""Who is invited to a round, and what chance deals them: all but the work that they are given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.systems.base import Floats
from fedhpo_gym.systems.devices import Availability, Devices, Draw


@dataclass(frozen=True, eq=False)
class Invitations:
    """The clients that a server invites, (rounds, invited); what is random belongs to a place.

    So whoever is invited beyond them changes nothing for the first ones.
    """

    clients: NDArray[np.integer]
    wanted: int  # reports that the server waits for
    compute: Floats  # how many times as long as the reference device each computes
    upload: Floats  # bytes/s from each in this round
    download: Floats  # bytes/s to each in this round
    wait_s: Floats  # seconds until each is available
    survives: NDArray[np.bool_]  # whether each does not drop out

    @classmethod
    def joined(cls, rounds: Sequence[Invitations]) -> Invitations:
        """Return rounds with equally many clients as one record."""
        arrays = [name for name in vars(rounds[0]) if name != "wanted"]
        joined = {name: np.concatenate([getattr(one, name) for one in rounds]) for name in arrays}
        return cls(wanted=rounds[0].wanted, **joined)


@dataclass(frozen=True, eq=False)
class Rounds:
    """What some rounds took, (rounds,) each."""

    time_s: Floats  # seconds, without the server's computation
    computation_s: Floats  # of these, seconds in which the last client that counted computed
    reports: NDArray[np.integer]  # reports that counted
    invited: int  # clients that received the model in each
    busy_s: Floats  # seconds in which all that were invited computed, added up
    sent: NDArray[np.integer]  # clients that sent a report, in time or not


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
    """Invite clients to one round."""
    given = np.zeros(0, np.intp) if isinstance(cohort, int) else cohort
    wanted = min(cohort, len(devices)) if isinstance(cohort, int) else len(cohort)
    number = min(len(devices), math.ceil(wanted * (1.0 + over_selection) - 1e-9))
    clients = given
    if len(given) < number:
        order = draw.stream("invited_clients").permutation(len(devices))
        free = np.ones(len(devices), np.bool_)
        free[given] = False
        clients = np.concatenate([given, order[free[order]][: number - len(given)]])
    survives = np.ones(number, np.bool_)
    if dropout:
        survives = draw.stream("dropout").random(number) >= dropout
    wait_s = np.zeros(number)
    if hours is not None:
        wait_s = hours.wait_s(clients % len(hours), start_s)
    return Invitations(
        clients[None],
        wanted,
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
    """Invite clients to one round of each of many courses, drawn uniformly; nobody waits yet."""
    wanted = min(cohort, len(devices))
    number = min(len(devices), math.ceil(wanted * (1.0 + over_selection) - 1e-9))
    clients = _distinct(rng, rounds, len(devices), number)
    upload, download = (
        np.asarray(mean[clients] * _factors(variation[clients], rng.standard_normal(clients.shape)))
        for mean, variation in (
            (devices.upload, devices.upload_variation),
            (devices.download, devices.download_variation),
        )
    )
    survives = rng.random(clients.shape) >= dropout
    compute, wait_s = devices.compute[clients], np.zeros(clients.shape)
    return Invitations(clients, wanted, compute, upload, download, wait_s, survives)


def _distinct(rng: np.random.Generator, rows: int, high: int, number: int) -> NDArray[np.integer]:
    """Return (rows, number) integers below `high`, those of a row drawn without replacement."""
    if number * number > high:
        drawn = rng.permuted(np.tile(np.arange(high), (rows, 1)), axis=1)
        return np.asarray(drawn[:, :number])
    found = rng.integers(high, size=(rows, number))
    while True:  # rows with a client twice are drawn again
        twice = (np.diff(np.sort(found, axis=1), axis=1) == 0).any(axis=1)
        if not twice.any():
            return found
        found[twice] = rng.integers(high, size=(int(twice.sum()), number))


def take_rounds(
    invited: Invitations,
    units: Floats,
    second_per_unit: float,
    message_bytes: tuple[float, float],
    deadline_s: float,
) -> Rounds:
    """Return what rounds take in which the invited do their work of (clients,) units."""
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
    """Return the speeds of one round's transfers: log-normal with these means and variations.

    Under FLASH's normal distribution, cut off at zero, the mean time of a transfer is infinite.
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
    """Return the seconds in which each of (clients,) computes, and those of its two transfers."""
    transfer_s = upload[0] / upload[1] + download[0] / download[1]
    return units * second_per_unit * compute_factor, transfer_s


class Endings(NamedTuple):
    """After how long rounds ended, with whose report (its place), and how many counted."""

    after_s: Floats
    last: NDArray[np.intp]
    reports: NDArray[np.intp]


def endings(
    report_s: Floats, survives: NDArray[np.bool_], wanted: int, deadline_s: float = math.inf
) -> Endings:
    """Return when rounds end, each on its own, of (rounds, invited) reports.

    With a deadline, the server cannot tell a client that dropped out from a slow one. A round
    without a report asks the fastest of the invited again.
    """
    rows = np.arange(len(report_s))
    times = np.where(survives, report_s, np.inf)
    order = np.argsort(times, axis=1, kind="stable")
    in_time = np.count_nonzero(survives & (report_s <= deadline_s), axis=1)
    reports = np.minimum(in_time, wanted)
    fastest = np.argmin(report_s, axis=1)
    last = np.where(reports > 0, order[rows, np.maximum(reports, 1) - 1], fastest)
    after_s = report_s[rows, last]
    if deadline_s < math.inf:
        after_s = np.where(reports < wanted, np.maximum(after_s, deadline_s), after_s)
    return Endings(after_s, last, np.maximum(reports, 1))
