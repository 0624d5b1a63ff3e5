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


@dataclass(frozen=True)
class Ending:
    """How a round ended.

    Attributes:
        after_s: seconds after its beginning.
        last: position, among the invited, of the client whose report was the last that counted.
        reports: how many counted.
    """

    after_s: float
    last: int
    reports: int


def ending(
    report_s: Floats, survives: NDArray[np.bool_], wanted: int, deadline_s: float = math.inf
) -> Ending:
    """Return when a round ends.

    - It ends with the report that makes `wanted`.
    - With a deadline, the server cannot tell a client that dropped out from a slow one. A round
      that lacks reports ends at the deadline, with those that are there.
    - Without a deadline, the server knows who dropped out, and ends with the last survivor.
    - A round always has one report. If there is none, because all dropped out or are too slow,
      the fastest of the invited is asked again and reports after its time, but not before the
      deadline.

    So inviting more clients, or more speed, never makes a round with a deadline end later.

    Args:
        report_s: (invited,) seconds from the round's beginning to each client's report.
        survives: (invited,) whether a client does not drop out.
        wanted: reports that the server waits for, at least one.
        deadline_s: seconds; infinity for none.
    """
    alive = np.flatnonzero(survives)
    order = alive[np.argsort(report_s[alive], kind="stable")]
    in_time = order[report_s[order] <= deadline_s][:wanted]
    if not len(in_time):
        fastest = int(np.argmin(report_s))
        late_s = deadline_s if deadline_s < math.inf else 0.0
        return Ending(max(late_s, float(report_s[fastest])), fastest, 1)
    last = int(in_time[-1])
    enough = len(in_time) == wanted or deadline_s == math.inf
    return Ending(float(report_s[last]) if enough else deadline_s, last, len(in_time))
