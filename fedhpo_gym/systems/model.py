"""The analytic system model of FedHPO-Bench: simulated seconds and bytes of a course.

Wang et al. (2022), FedHPO-Bench, Eq. 1 and Proposition 1, defaults of Appendix E.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.checks import as_number
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Cost
from fedhpo_gym.systems.work import Work
from fedhpo_gym.typed import as_typed

Floats = NDArray[np.float64]
Mode = Literal["cross_silo", "cross_device"]
Compute = Literal["constant", "epochs", "steps", "samples"]

MODES: Final[tuple[Mode, ...]] = ("cross_silo", "cross_device")
COMPUTE_RULES: Final[tuple[Compute, ...]] = ("constant", "epochs", "steps", "samples")
NEEDS_SAMPLES: Final = ("steps", "samples")
"""Rules that need to know how many samples clients have."""
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
        compute: What c is the time of. ``"constant"``: a round, whatever is trained (the paper).
            ``"epochs"``, ``"steps"``, ``"samples"``: one local epoch, one minibatch step, or one
            sample of the client that computes most in a round.
        client_compute_mean_s: Mean c of the exponential computation time of a client, in seconds
            per unit of ``compute``.
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
    compute: Compute = "constant"
    client_compute_mean_s: float = 1.0
    server_compute_s: float = 0.0
    max_connections: int = 65535

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("mode", "compute"):
            as_typed(name, getattr(self, name), str)
        if self.mode not in MODES:
            raise InvalidArgumentError(f"`mode` must be one of {MODES}, got {self.mode!r}.")
        if self.compute not in COMPUTE_RULES:
            raise InvalidArgumentError(
                f"`compute` must be one of {COMPUTE_RULES}, got {self.compute!r}."
            )
        for name in _POSITIVE:
            number = as_number(value := getattr(self, name))
            if number is None or not 0 < number < math.inf:
                raise InvalidArgumentError(f"`{name}` must be positive and finite, got {value!r}.")
            object.__setattr__(self, name, number)
        for name in ("client_compute_mean_s", "server_compute_s"):
            number = as_number(value := getattr(self, name))
            if number is None or not 0 <= number < math.inf:
                raise InvalidArgumentError(
                    f"`{name}` must be non-negative and finite, got {value!r}."
                )
            object.__setattr__(self, name, number)

    def cost(self, work: Work) -> Cost:
        """Return what the work of some rounds costs.

        Eq. 1 with the expected straggler of Proposition 1: a round takes the communication
        time, plus c * H_N for the slowest of N sampled clients, plus the server's time. c counts
        as often as `compute` says. Where clients have unequal work, all are charged the most of
        one, so that the straggler's expected time is never too short.

        Communication counts `work.client_share` clients as a real number, as the original
        code does; computation and bytes count whole clients, at least one.

        Raises:
            InvalidArgumentError: `compute` follows what the work does not say.
        """
        message_bytes = float(work.num_parameters * self.bytes_per_parameter)
        communication_s = work.rounds * self._communication_s(message_bytes, work.client_share)
        client_s = self.client_compute_mean_s * self._units(work)
        computation_s = work.rounds * (
            client_s * harmonic(work.sampled_clients) + self.server_compute_s
        )
        exchanged_bytes = work.rounds * work.sampled_clients * message_bytes
        return Cost(
            time_s=communication_s + computation_s,
            communication_s=communication_s,
            computation_s=computation_s,
            upload_bytes=exchanged_bytes,
            download_bytes=exchanged_bytes,
            rounds=work.rounds,
        )

    def times_s(
        self,
        num_parameters: Floats,
        local_epochs: Floats,
        rounds: NDArray[np.integer],
        rates: Floats,
        num_clients: int,
    ) -> Floats:
        """Return the (B,) `time_s` that `cost` has for many works, bit for bit.

        Args:
            num_parameters: (B,) parameters of the models that are exchanged.
            local_epochs: (B,) local epochs of a client in a round.
            rounds: (B,) communication rounds.
            rates: (B,) client sample rates.
            num_clients: clients in the federation.

        Raises:
            InvalidArgumentError: `compute` follows how many samples clients have.
        """
        message_bytes = num_parameters * self.bytes_per_parameter
        shares = num_clients * rates
        upload_s = message_bytes / self.client_upload_bytes_per_s
        download_s = message_bytes / self.client_download_bytes_per_s
        if self.mode == "cross_silo":
            send_s = shares * message_bytes / self.server_upload_bytes_per_s
            communication_s = upload_s + np.maximum(send_s, download_s)
        else:
            latency_s = [self._latency_s(share) for share in shares.tolist()]
            communication_s = upload_s + download_s + np.array(latency_s)
        sampled, where = np.unique(
            np.maximum(np.floor(rates * num_clients + 1e-9), 1.0), return_inverse=True
        )
        stragglers = np.array([harmonic(int(number)) for number in sampled])[where]
        units = local_epochs if self.compute == "epochs" else np.ones(len(rounds))
        if self.compute in NEEDS_SAMPLES:
            raise self._unknown_samples()
        client_s = self.client_compute_mean_s * units
        computation_s = rounds * (client_s * stragglers + self.server_compute_s)
        return np.asarray(rounds * communication_s + computation_s, dtype=np.float64)

    def _units(self, work: Work) -> float:
        """Return how often a client takes c seconds in a round."""
        units = {
            "constant": 1.0,
            "epochs": work.local_epochs,
            "steps": work.minibatch_steps,
            "samples": work.samples,
        }[self.compute]
        if units is None:
            raise self._unknown_samples()
        return units

    def _unknown_samples(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"`compute` must be 'constant' or 'epochs' where nobody knows how many samples a "
            f"client has, got {self.compute!r}."
        )

    def _communication_s(self, message_bytes: float, clients: float) -> float:
        """Return the communication time of one round, in seconds (T_comm of Eq. 1)."""
        upload_s = message_bytes / self.client_upload_bytes_per_s
        download_s = message_bytes / self.client_download_bytes_per_s
        if self.mode == "cross_silo":
            send_s = clients * message_bytes / self.server_upload_bytes_per_s
            return upload_s + max(send_s, download_s)
        return upload_s + download_s + self._latency_s(clients)

    def _latency_s(self, clients: float) -> float:
        return math.exp(min(clients - self.max_connections, _MAX_EXPONENT))


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
