"""A population of devices: how fast each computes, sends and receives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.systems.measured import FLASH_KB_PER_S, KILOBYTE

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Devices:
    """Devices, as arrays of one entry each.

    Attributes:
        compute: (devices,) how many times as long as the reference device each computes.
        upload: (devices,) mean speed from the device, in bytes/s.
        download: (devices,) mean speed to it, in bytes/s.
        upload_variation: (devices,) standard deviation of the speed of a transfer, as a share of
            the mean.
        download_variation: (devices,) likewise.
    """

    compute: Floats
    upload: Floats
    download: Floats
    upload_variation: Floats
    download_variation: Floats

    def __post_init__(self) -> None:
        """Refuse speeds that are not positive and finite.

        Raises:
            InvalidArgumentError: an entry is not.
        """
        for name, values in vars(self).items():
            least = values >= 0 if name.endswith("variation") or name == "compute" else values > 0
            if not len(values) or len(values) != len(self.compute):
                raise InvalidArgumentError(
                    f"`{name}` must have one entry per device, got {len(values)}"
                )
            if not np.all(least & np.isfinite(values)):
                raise InvalidArgumentError(
                    f"`{name}` must be positive and finite for every device, got others"
                )

    def __len__(self) -> int:
        """Return the number of devices."""
        return len(self.compute)

    def take(self, rows: NDArray[np.integer]) -> Devices:
        """Return some of the devices, in this order."""
        return Devices(**{name: values[rows] for name, values in vars(self).items()})


def alike(number: int, compute: float, upload: float, download: float) -> Devices:
    """Return devices without any difference."""
    same = [np.full(number, value, np.float64) for value in (compute, upload, download, 0.0, 0.0)]
    return Devices(*same)


def lognormal(
    number: int,
    seed: int,
    *,
    compute_sigma: float,
    upload: tuple[float, float],
    download: tuple[float, float],
    correlation: float,
    variation: float,
) -> Devices:
    """Draw devices: compute times and speeds are log-normal.

    Args:
        number: of devices.
        seed: what is drawn; the first devices are the same in any number of them.
        compute_sigma: standard deviation of ln(compute); the median is 1.
        upload: median, in bytes/s, and standard deviation of its logarithm.
        download: likewise.
        correlation: of the logarithms of both speeds.
        variation: see `Devices`, in both directions.
    """
    deviates = stream(seed, "devices").standard_normal((number, 3)).T
    compute, down, own = deviates
    up = correlation * down + np.sqrt(1.0 - correlation**2) * own
    varies = np.full(number, variation, np.float64)
    return Devices(
        np.exp(compute_sigma * compute),
        upload[0] * np.exp(upload[1] * up),
        download[0] * np.exp(download[1] * down),
        varies,
        varies,
    )


def drawn_of(measured: Devices, number: int, seed: int, compute_sigma: float | None) -> Devices:
    """Draw devices of measured ones, with replacement.

    Args:
        measured: the measured devices.
        number: of devices.
        seed: what is drawn.
        compute_sigma: see `lognormal`; None leaves computation as it was measured.
    """
    rng = stream(seed, "measured_devices")
    found = measured.take((rng.random(number) * len(measured)).astype(np.intp))
    if compute_sigma is None:
        return found
    compute = np.exp(compute_sigma * stream(seed, "devices").standard_normal((number, 3))[:, 0])
    return Devices(**{**vars(found), "compute": compute})


def of_flash(rows: NDArray[np.float64] | None = None) -> Devices:
    """Return measured network speeds: of FLASH's 19 phones, unless others are given.

    Args:
        rows: (devices, 4) mean and standard deviation down, then up, in kB/s.
    """
    table = np.array(FLASH_KB_PER_S if rows is None else rows, dtype=np.float64)
    down, down_sd, up, up_sd = table.T
    with np.errstate(divide="ignore", invalid="ignore"):
        varies = up_sd / up, down_sd / down
    return Devices(np.ones(len(table)), up * KILOBYTE, down * KILOBYTE, *varies)
