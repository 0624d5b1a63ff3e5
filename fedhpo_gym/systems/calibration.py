"""Fitting Eq. 1 to measured rounds: least squares without negative times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import checked_types
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.systems.model import CROSS_SILO, SystemModel, harmonic
from fedhpo_gym.systems.recorded import RoundRecord

FASTEST: Final = 1e18
"""Bytes/s of a link that the measured rounds do not show."""
_TOLERANCE = 1e-9

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Calibration:
    """A fitted system model, and what it leaves unexplained.

    Attributes:
        system: the model.
        parameters: what was fitted, by name: for `gymnasium.make(..., system=parameters)`.
        residuals_s: (rounds, 2) measured minus fitted seconds, of messages and of computation.
        tied: bandwidths that the rounds cannot tell apart and that were taken as equal.
    """

    system: SystemModel
    parameters: dict[str, float | str]
    residuals_s: Floats
    tied: tuple[str, ...]

    @property
    def rmse_s(self) -> float:
        """Root of the mean squared residual of a round's whole time, in seconds."""
        return float(np.sqrt(np.mean(np.sum(self.residuals_s, axis=1) ** 2)))


@checked_types
def calibrate(records: Sequence[RoundRecord], base: SystemModel = CROSS_SILO) -> Calibration:
    """Fit the parameters of Eq. 1 to measured rounds.

    Eq. 1 is linear in the inverse bandwidths, in c, and in the server's time, which must not be
    negative. Messages and computation are fitted apart:

    - cross-device: upload / B_up + download / B_down, after the latency of `base`;
    - cross-silo: upload / B_up + n download / B_server. The server's uplink is taken to be what
      clients wait for, as it is by default; their own downlink is then not seen.
    - computation: c times units of `compute` times H_N, plus the server's time.

    Point-to-point is not fitted: which of two links a client waits for does not show in a sum.

    Args:
        records: measured rounds, with different numbers of clients, and models of different sizes
            or different compressions as far as the form needs them.
        base: mode, rule of computation, compression, and what is not fitted.

    Raises:
        InvalidArgumentError: there are no records, a mode is not fitted, or two parameters cannot
            be told apart; says by what.
    """
    if not records:
        raise InvalidArgumentError("`records` must hold at least one measured round, got none.")
    if base.mode == "point_to_point":
        raise InvalidArgumentError(
            "`base` must be cross-silo or cross-device to be fitted, got mode 'point_to_point'."
        )
    columns, latency_s, tied = _message_columns(records, base)
    sent_s = np.array([one.communication_s for one in records])
    inverse = _non_negative("client and server bandwidths", columns, sent_s - latency_s)
    units = [base.units(one.work) * harmonic(one.work.sampled_clients) for one in records]
    busy = np.stack([np.array(units), np.ones(len(records))], axis=1)
    busy_s = np.array([one.computation_s for one in records])
    mean_s, server_s = _non_negative("`client_compute_mean_s` and `server_compute_s`", busy, busy_s)
    links = [FASTEST if value * FASTEST <= 1 else float(1 / value) for value in inverse]
    other = "client_download_bytes_per_s"
    if base.mode == "cross_silo":
        other = "server_upload_bytes_per_s"
    parameters: dict[str, float | str] = {
        "mode": base.mode,
        "compute": base.compute,
        "client_upload_bytes_per_s": links[0],
        other: links[-1],
        "client_compute_mean_s": float(mean_s),
        "server_compute_s": float(server_s),
    }
    if base.mode == "cross_silo":
        parameters["client_download_bytes_per_s"] = FASTEST
    fitted = columns @ inverse + latency_s, busy @ np.array([mean_s, server_s])
    residuals = np.stack([sent_s - fitted[0], busy_s - fitted[1]], axis=1)
    return Calibration(replace(base, **parameters), parameters, residuals, tied)  # type: ignore[arg-type]


def _message_columns(
    records: Sequence[RoundRecord], base: SystemModel
) -> tuple[Floats, Floats, tuple[str, ...]]:
    """Return what the inverse bandwidths are multiplied by, the latencies, and the tied ones."""
    up, down = np.array([base.message_bytes(one.work) for one in records]).T
    share = np.array([one.work.client_share for one in records])
    nothing = np.zeros(len(records))
    if base.mode == "cross_silo":
        return np.stack([up, share * down], axis=1), nothing, ()
    latency_s = np.exp(np.minimum(share - base.max_connections, math.log(FASTEST)))
    # One compression for all rounds: uploads and downloads are always in the same proportion.
    names = ("client_upload_bytes_per_s", "client_download_bytes_per_s")
    return (up + down)[:, None], latency_s, names


def _non_negative(what: str, columns: Floats, target: Floats) -> Floats:
    """Return the non-negative factors with the least sum of squares.

    There are at most two columns, so every choice of positive factors is tried.

    Raises:
        InvalidArgumentError: the columns are not independent.
    """
    scale = np.abs(columns).max(axis=0)
    scaled = columns / np.where(scale > 0, scale, 1.0)
    if np.linalg.matrix_rank(scaled, tol=_TOLERANCE * len(target)) < columns.shape[1]:
        raise InvalidArgumentError(
            f"`records` must tell {what} apart: measure rounds with different numbers of clients "
            f"(or, for computation, different work); all {len(target)} are alike in it."
        )
    best, least = np.zeros(columns.shape[1]), float(np.sum(target**2))
    for size in range(1, columns.shape[1] + 1):
        for chosen in map(list, combinations(range(columns.shape[1]), size)):
            factors = np.linalg.lstsq(scaled[:, chosen], target, rcond=None)[0]
            error = float(np.sum((scaled[:, chosen] @ factors - target) ** 2))
            if np.all(factors >= 0) and error < least:
                best, least = np.zeros(columns.shape[1]), error
                best[chosen] = factors
    return np.asarray(best / np.where(scale > 0, scale, 1.0))
