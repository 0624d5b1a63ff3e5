"""The analytic system model of FedHPO-Bench: simulated seconds and bytes of a course.

Wang et al. (2022), FedHPO-Bench, Eq. 1 and Proposition 1, defaults of Appendix E.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Cost, Fidelity

Mode = Literal["cross_silo", "cross_device"]

MODES: Final[tuple[Mode, ...]] = ("cross_silo", "cross_device")
MEBIBYTE: Final = 1024.0 * 1024.0
"""Bytes in what the paper calls a megabyte."""

_POSITIVE: Final = (
    "client_upload_bytes_per_s",
    "client_download_bytes_per_s",
    "server_upload_bytes_per_s",
    "bytes_per_parameter",
    "max_connections",
)
_MAX_EXPONENT: Final = 690.0  # exp(690) = 1e299 s leaves room to multiply by the rounds
_EULER_GAMMA: Final = 0.5772156649015329
_EXACT_HARMONIC: Final = 100_000


@dataclass(frozen=True)
class SystemModel:
    """Bandwidths, latency, and computation times of a federation.

    A variant is ``dataclasses.replace(CROSS_SILO, server_compute_s=1.0)``.

    Attributes:
        mode: ``"cross_silo"``: the server sends to its clients one by one, without latency.
            ``"cross_device"``: it sends to all at once, with a latency of
            ``exp(clients - max_connections)`` seconds, capped near 1e299.
        client_upload_bytes_per_s: Bandwidth from a client, in bytes/s.
        client_download_bytes_per_s: Bandwidth to a client, in bytes/s.
        server_upload_bytes_per_s: Bandwidth from the server, in bytes/s; cross-silo only.
        bytes_per_parameter: Size of one model parameter in a message.
        client_compute_mean_s: Mean c of the exponential computation time of a client and
            round, in seconds.
        server_compute_s: Computation time of the server in a round, in seconds.
        max_connections: Number of clients at which the latency reaches one second;
            cross-device only.

    Raises:
        InvalidArgumentError: A field is out of its range.
    """

    mode: Mode = "cross_silo"
    client_upload_bytes_per_s: float = 0.25 * MEBIBYTE
    client_download_bytes_per_s: float = 0.75 * MEBIBYTE
    server_upload_bytes_per_s: float = 0.25 * MEBIBYTE
    bytes_per_parameter: float = 4
    client_compute_mean_s: float = 1.0
    server_compute_s: float = 0.0
    max_connections: int = 65535

    def __post_init__(self) -> None:
        """Check every field."""
        if self.mode not in MODES:
            raise InvalidArgumentError(f"`mode` must be one of {MODES}, got {self.mode!r}.")
        for name in _POSITIVE:
            value = getattr(self, name)
            if not (_is_finite(value) and value > 0):
                raise InvalidArgumentError(f"`{name}` must be positive and finite, got {value!r}.")
        for name in ("client_compute_mean_s", "server_compute_s"):
            value = getattr(self, name)
            if not (_is_finite(value) and value >= 0):
                raise InvalidArgumentError(
                    f"`{name}` must be non-negative and finite, got {value!r}."
                )

    def cost(self, num_parameters: int, num_clients: int, fidelity: Fidelity) -> Cost:
        """Return what a course of ``fidelity.round`` rounds costs.

        Eq. 1 with the expected straggler of Proposition 1: a round takes the communication
        time, plus c * H_N for the slowest of N sampled clients, plus the server's time.

        Communication counts ``rate * num_clients`` clients as a real number, as the original
        code does; computation and bytes count whole clients, at least one.

        Args:
            num_parameters: Size of the model that is exchanged.
            num_clients: Clients in the federation.
            fidelity: Rounds and the share of clients that take part in each.

        Raises:
            InvalidArgumentError: There is no parameter or no client.
        """
        for name, value in (("num_parameters", num_parameters), ("num_clients", num_clients)):
            if not isinstance(value, int | np.integer) or value < 1:
                raise InvalidArgumentError(f"`{name}` must be an integer >= 1, got {value!r}.")
        rounds = fidelity.round
        sampled = fidelity.sampled_clients(int(num_clients))
        message_bytes = float(int(num_parameters) * self.bytes_per_parameter)
        communication_s = rounds * self._communication_s(
            message_bytes, num_clients * fidelity.client_sample_rate
        )
        computation_s = rounds * (
            self.client_compute_mean_s * harmonic(sampled) + self.server_compute_s
        )
        exchanged_bytes = rounds * sampled * message_bytes
        return Cost(
            time_s=communication_s + computation_s,
            communication_s=communication_s,
            computation_s=computation_s,
            upload_bytes=exchanged_bytes,
            download_bytes=exchanged_bytes,
            rounds=rounds,
        )

    def _communication_s(self, message_bytes: float, clients: float) -> float:
        """Return the communication time of one round, in seconds (T_comm of Eq. 1)."""
        upload_s = message_bytes / self.client_upload_bytes_per_s
        download_s = message_bytes / self.client_download_bytes_per_s
        if self.mode == "cross_silo":
            send_s = clients * message_bytes / self.server_upload_bytes_per_s
            return upload_s + max(send_s, download_s)
        latency_s = math.exp(min(clients - self.max_connections, _MAX_EXPONENT))
        return upload_s + download_s + latency_s


def _is_finite(value: object) -> bool:
    return (
        isinstance(value, int | float | np.number)
        and not isinstance(value, bool)
        and bool(np.isfinite(value))
    )


@lru_cache(maxsize=4096)
def harmonic(n: int) -> float:
    """Return H_n = 1 + 1/2 + ... + 1/n: the expected largest of n unit exponentials.

    FedHPO-Bench, Proposition 1; asymptotic (error below 1e-20) for large n.

    Raises:
        InvalidArgumentError: ``n`` is below 1.
    """
    if n < 1:
        raise InvalidArgumentError(f"`n` must be at least 1, got {n!r}.")
    if n > _EXACT_HARMONIC:
        return math.log(n) + _EULER_GAMMA + 1 / (2 * n) - 1 / (12 * n**2)
    return math.fsum((1.0 / np.arange(1, n + 1)).tolist())


CROSS_SILO: Final = SystemModel()
"""Few reliable clients; the defaults of FedHPO-Bench."""

CROSS_DEVICE: Final = replace(CROSS_SILO, mode="cross_device")
"""Very many clients; FedHPO-Bench with a latency that grows with the clients."""
