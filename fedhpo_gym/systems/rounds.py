"""When a round of single devices ends: over-selection, dropout, and a deadline."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def client_seconds(
    units: Floats,
    second_per_unit: float,
    compute_factor: Floats,
    upload: tuple[float, Floats],
    download: tuple[float, Floats],
) -> tuple[Floats, Floats]:
    """Return how long each client computes, and how long its two transfers take, in seconds.

    With units of minibatch steps and one speed in both directions, the sum is what APPFL 1.12
    charges (`vsim.ClientProfile.duration`).

    Args:
        units: (clients,) what a client's time is counted in, such as its minibatch steps.
        second_per_unit: seconds that the reference device needs for one.
        compute_factor: (clients,) how many times as long each client needs.
        upload: bytes to the server, and (clients,) bytes/s.
        download: bytes from the server, and (clients,) bytes/s.
    """
    transfer_s = upload[0] / upload[1] + download[0] / download[1]
    return units * second_per_unit * compute_factor, transfer_s


@dataclass(frozen=True, eq=False)
class Endings:
    """How some rounds ended.

    Attributes:
        after_s: (rounds,) seconds after their beginnings.
        last: (rounds,) position, among the invited, of the client whose report was the last that
            counted.
        reports: (rounds,) how many counted.
    """

    after_s: Floats
    last: NDArray[np.intp]
    reports: NDArray[np.intp]


def endings(
    report_s: Floats, survives: NDArray[np.bool_], wanted: int, deadline_s: float = math.inf
) -> Endings:
    """Return when rounds end, each on its own.

    - A round ends with the report that makes `wanted`.
    - With a deadline, the server cannot tell a client that dropped out from a slow one. A round
      that lacks reports ends at the deadline, with those that are there.
    - Without a deadline, the server knows who dropped out, and ends with the last survivor.
    - A round always has one report. If there is none, because all dropped out or are too slow,
      the fastest of the invited is asked again and reports after its time, but not before the
      deadline.

    So inviting more clients, or more speed, never makes a round with a deadline end later.

    Args:
        report_s: (rounds, invited) seconds from a round's beginning to each client's report.
        survives: (rounds, invited) whether a client does not drop out.
        wanted: reports that the server waits for, at least one.
        deadline_s: seconds; infinity for none.
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
