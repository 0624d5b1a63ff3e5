"""The analytic clock of FedHPO-Bench, and the clock of times that a user recorded.

Wang et al. (2022), FedHPO-Bench, Eq. 1 and Proposition 1, defaults of Appendix E.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import numpy as np

from fedhpo_gym.core import files
from fedhpo_gym.core.arrays import AnyIntegers, Floats
from fedhpo_gym.core.checks import Range, validate_call
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.evaluation.records import Cost, num_sampled_clients
from fedhpo_gym.systems.base import MOST, SLOWEST, Amount, JobDurations, System, Work
from fedhpo_gym.systems.devices import Draw

WORK_COLUMNS: Final = (
    "num_parameters", "sampled_clients", "local_epochs", "minibatch_steps", "samples",
)  # fmt: skip
TIME_COLUMNS: Final = ("communication_s", "computation_s")


@dataclass(frozen=True)
class RoundRecord:
    """A measured round: the work of one round, and seconds of messages and of computation."""

    work: Work
    communication_s: float
    computation_s: float

    @property
    def time_s(self) -> float:
        """Seconds of the round."""
        return self.communication_s + self.computation_s


@dataclass(frozen=True, kw_only=True)
class RecordedModel(System):
    """A clock that looks up rounds in a CSV file; docs/cost_model.md lists the columns.

    A round costs the mean of the recorded rounds with the same work, in the columns that the file
    has. Recorded times include the server's, so that `server_compute_s` has no effect, and
    `compute` only decides by which work rounds are looked up.
    """

    path: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise InvalidArgumentError("`path` must name a file of recorded rounds, got none.")
        derived = self._table
        del derived  # it stays read

    def _cost(self, work: Work) -> Cost:
        columns, means = self._table
        key = tuple(_amount(work, name) for name in columns)
        if key not in means:
            description = ", ".join(f"{n}={v}" for n, v in zip(columns, key, strict=True))
            raise InvalidArgumentError(
                f"`path` must hold rounds like every one that is charged, and {self.path} has none "
                f"with {description}; fit a model to it with `fedhpo_gym.systems.calibrate`."
            )
        communication_s, computation_s = (work.rounds * mean for mean in means[key])
        return self._charged(work, communication_s, computation_s)

    @cached_property
    def _table(self) -> tuple[tuple[str, ...], dict[tuple[float, ...], tuple[float, ...]]]:
        """The columns of work, and the mean seconds of messages and of computation by work."""
        columns, rows = _read(self.path)
        seconds: dict[tuple[float, ...], list[tuple[float, float]]] = {}
        for row in rows:
            key = tuple(row[name] for name in columns)
            seconds.setdefault(key, []).append((row[TIME_COLUMNS[0]], row[TIME_COLUMNS[1]]))
        return columns, {
            key: tuple(math.fsum(column) / len(each) for column in zip(*each, strict=True))
            for key, each in seconds.items()
        }


@validate_call
def read_records(path: str) -> list[RoundRecord]:
    """Read measured rounds, for `calibrate`, of the same columns as `RecordedModel` reads."""
    columns, rows = _read(path)
    if "num_parameters" not in columns:
        raise _damaged(path, "it has no column `num_parameters`")
    return [_record(row) for row in rows]


def _record(row: dict[str, float]) -> RoundRecord:
    clients = int(row.get("sampled_clients", 1))
    work = Work(
        int(row["num_parameters"]),
        1,
        clients,
        float(clients),
        row.get("local_epochs", 1.0),
        row.get("minibatch_steps"),
        row.get("samples"),
        clients,
    )
    return RoundRecord(work, row[TIME_COLUMNS[0]], row[TIME_COLUMNS[1]])


def _amount(work: Work, name: str) -> float:
    amount = getattr(work, name)
    if amount is None:
        raise InvalidArgumentError(
            f"`path` must not have the column {name!r} where the number of samples of clients is "
            "unknown; leave it out, or give `samples_per_client`."
        )
    return float(amount)


def _read(path: str) -> tuple[tuple[str, ...], list[dict[str, float]]]:
    """Return the columns of work that a file of rounds has, and its rows as numbers."""
    file = Path(path)
    try:
        with file.open("rb") as handle:
            content = handle.read(files.max_bytes() + 1)
    except (OSError, ValueError) as error:  # a path may hold what no path can
        raise MissingDataError(
            f"the file of recorded rounds {file} cannot be read ({error}); write it, or choose "
            "another system model"
        ) from error
    files.require_bytes(len(content), file)
    try:
        lines = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        names = lines.fieldnames or ()
        if len(set(names)) < len(names):
            raise _damaged(path, f"it names a column twice: {', '.join(names)[:200]}")
        return _numbers(path, list(lines))
    except (ValueError, csv.Error) as error:
        if isinstance(error, DamagedDataError):
            raise
        raise _damaged(path, str(error)) from error


def _numbers(
    path: str, rows: list[dict[str, Any]]
) -> tuple[tuple[str, ...], list[dict[str, float]]]:
    if not rows:
        raise _damaged(path, "it has no rounds")
    names = tuple(rows[0])
    for name in TIME_COLUMNS:
        if name not in names:
            raise _damaged(path, f"it has no column `{name}`")
    if unknown := sorted(set(map(str, names)) - {*WORK_COLUMNS, *TIME_COLUMNS}):
        raise _damaged(path, f"it has the unknown column {unknown[0]!r}")
    parsed = []
    for index, row in enumerate(rows):
        numbers = {name: float(row[name] or "nothing") for name in names}
        wrong = [name for name, value in numbers.items() if not 0 <= value <= MOST]
        if wrong:
            raise _damaged(path, f"`{wrong[0]}` of round {index} is {numbers[wrong[0]]!r}")
        if not any(numbers[name] for name in TIME_COLUMNS):
            raise _damaged(path, f"round {index} takes no time, and rounds take some")
        parsed.append(numbers)
    return tuple(name for name in WORK_COLUMNS if name in names), parsed


def _damaged(path: str, why: str) -> DamagedDataError:
    return DamagedDataError(
        f"{path} is no file of recorded rounds: {why}; write one line of numbers per round, under "
        f"a header of {', '.join(TIME_COLUMNS)} and any of {', '.join(WORK_COLUMNS)}"
    )


Mode = Literal["cross_silo", "cross_device", "point_to_point"]

MEBIBYTE: Final = 1024.0 * 1024.0
"""Bytes in what the paper calls a megabyte."""

Speed: TypeAlias = Annotated[float, Range(SLOWEST, math.inf, "[)")]
_MAX_EXPONENT: Final = 690.0  # exp(690) = 1e299 s leaves room to multiply by the rounds
_EULER_GAMMA: Final = 0.5772156649015329
_EXACT_HARMONIC: Final = 100_000
_exp = np.frompyfunc(math.exp, 1, 1)  # numpy's own differs in the last bits
Number = float | Floats


@dataclass(frozen=True, kw_only=True)
class SystemModel(System):
    """The analytic clock, Eq. 1; docs/cost_model.md describes its fields."""

    mode: Mode = "cross_silo"
    client_upload_bytes_per_s: Speed = 0.25 * MEBIBYTE
    client_download_bytes_per_s: Speed = 0.75 * MEBIBYTE
    server_upload_bytes_per_s: Speed = 0.25 * MEBIBYTE
    server_download_bytes_per_s: Speed = 0.75 * MEBIBYTE
    client_compute_mean_s: Amount = 1.0
    max_connections: Speed = 65535

    def _cost(self, work: Work) -> Cost:
        """Return the cost by Eq. 1 with the expected straggler of Proposition 1.

        Communication counts `work.client_share` clients as a real number, as the original code
        does; computation and bytes count whole clients, at least one.
        """
        up_bytes, down_bytes = self.message_bytes(work)
        communication_s = work.rounds * float(
            self._communication_s(up_bytes, down_bytes, work.client_share)
        )
        client_s = self.client_compute_mean_s * self.units(work)
        computation_s = work.rounds * (
            client_s * harmonic(work.sampled_clients) + self.server_compute_s
        )
        return self._charged(work, communication_s, computation_s)

    def times_s(
        self, works: Sequence[Work], which: AnyIntegers, rounds: AnyIntegers, rates: Floats
    ) -> Floats:
        """Return the (B,) `time_s` of planned works; synchronous rounds are computed as arrays."""
        if any(work.reports for work in works):
            return super().times_s(works, which, rounds, rates)
        sizes = np.array([self.message_bytes(work) for work in works], np.float64)[which]
        units = np.array([self.units(work) for work in works], np.float64)[which]
        clients = np.array([work.num_clients for work in works], np.float64)[which]
        communication_s = self._communication_s(sizes[:, 0], sizes[:, 1], clients * rates)
        sampled, where = np.unique(num_sampled_clients(rates, clients), return_inverse=True)
        stragglers = np.array([harmonic(int(cohort_size)) for cohort_size in sampled], np.float64)[
            where
        ]
        client_s = self.client_compute_mean_s * units
        computation_s = rounds * (client_s * stragglers + self.server_compute_s)
        return np.asarray(rounds * communication_s + computation_s, dtype=np.float64)

    def job_means(self, work: Work) -> JobDurations:
        """Return how long jobs take; clients that train at once share the server's link."""
        up_bytes, down_bytes = self.message_bytes(work)
        other_s = self._communication_s(up_bytes, down_bytes, work.client_share)
        compute_s = self.client_compute_mean_s * self.client_units(work, work.num_clients)
        return JobDurations(np.full(work.num_clients, float(other_s)), compute_s)

    def job(self, work: Work, client: int, start_s: float, draw: Draw) -> tuple[float, bool]:
        """Return the seconds of one job, exponential as in Eq. 1, and that it reports."""
        means = self.job_means(work)
        deviate = draw.stream("client computation").standard_exponential()
        return float(means.other_s[client] + deviate * means.compute_s[client]), True

    def _communication_s(self, up_bytes: Number, down_bytes: Number, clients: Number) -> Floats:
        """Return the communication time of one round, in seconds (T_comm of Eq. 1)."""
        upload_s = up_bytes / self.client_upload_bytes_per_s
        download_s = down_bytes / self.client_download_bytes_per_s
        if self.mode == "cross_device":
            exponents = np.minimum(clients - self.max_connections, _MAX_EXPONENT)
            return np.asarray(upload_s + download_s + _exp(exponents), np.float64)
        send_s = clients * down_bytes / self.server_upload_bytes_per_s
        if self.mode == "point_to_point":
            upload_s = np.maximum(clients * up_bytes / self.server_download_bytes_per_s, upload_s)
        return np.asarray(upload_s + np.maximum(send_s, download_s))


@lru_cache(maxsize=4096, typed=True)
@validate_call
def harmonic(n: Annotated[int, Range(1)]) -> float:
    """Return H_n = 1 + 1/2 + ... + 1/n: the expected largest of n unit exponentials."""
    if n > _EXACT_HARMONIC:
        return math.log(n) + _EULER_GAMMA + 1 / (2 * n) - 1 / (12 * n**2)
    return math.fsum((1.0 / np.arange(1, n + 1)).tolist())


CROSS_SILO: Final = SystemModel()
"""Few reliable clients; the defaults of FedHPO-Bench."""

CROSS_DEVICE: Final = replace(CROSS_SILO, mode="cross_device")
"""Very many clients; FedHPO-Bench with a latency that grows with the clients."""


FASTEST: Final = 1e18
"""Bytes/s of a link that the measured rounds do not show."""
_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Calibration:
    """A fitted system model, and what it leaves unexplained.

    Attributes:
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


@validate_call
def calibrate(records: Sequence[RoundRecord], base: SystemModel = CROSS_SILO) -> Calibration:
    """Fit the parameters of Eq. 1 to measured rounds; what is not fitted is the base's.

    Eq. 1 is linear in the inverse bandwidths, in c, and in the server's time, which must not be
    negative. Messages and computation are fitted apart:

    - cross-device: upload / B_up + download / B_down, after the latency of `base`;
    - cross-silo: upload / B_up + n download / B_server. The server's uplink is taken to be what
      clients wait for, as it is by default; their own downlink is then not seen.
    - computation: c times units of `compute` times H_N, plus the server's time.

    Point-to-point is not fitted: which of two links a client waits for does not show in a sum.
    """
    if not records:
        raise InvalidArgumentError("`records` must hold at least one measured round, got none.")
    if base.mode == "point_to_point":
        raise InvalidArgumentError(
            "`base` must be cross-silo or cross-device to be fitted, got mode 'point_to_point'."
        )
    columns, latency_s, tied = _message_columns(records, base)
    sent_s = np.array([record.communication_s for record in records])
    inverse = _non_negative("client and server bandwidths", columns, sent_s - latency_s)
    units = [base.units(record.work) * harmonic(record.work.sampled_clients) for record in records]
    busy = np.stack([np.array(units), np.ones(len(records))], axis=1)
    busy_s = np.array([record.computation_s for record in records])
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
    up, down = np.array([base.message_bytes(record.work) for record in records]).T
    share = np.array([record.work.client_share for record in records])
    nothing = np.zeros(len(records))
    if base.mode == "cross_silo":
        return np.stack([up, share * down], axis=1), nothing, ()
    latency_s = np.exp(np.minimum(share - base.max_connections, math.log(FASTEST)))
    # One compression for all rounds: uploads and downloads are always in the same proportion.
    names = ("client_upload_bytes_per_s", "client_download_bytes_per_s")
    return (up + down)[:, None], latency_s, names


def _non_negative(what: str, columns: Floats, target: Floats) -> Floats:
    """Return the non-negative factors of at most two columns with the least sum of squares."""
    scale = np.abs(columns).max(axis=0)
    scaled = columns / np.where(scale > 0, scale, 1.0)
    if np.linalg.matrix_rank(scaled, tol=_TOLERANCE * len(target)) < columns.shape[1]:
        raise InvalidArgumentError(
            f"`records` must distinguish {what}: measure rounds with different numbers of clients "
            f"(or, for computation, different work); all {len(target)} are alike in it."
        )
    best, least = np.zeros(columns.shape[1]), float(np.sum(target**2))
    for size in range(1, columns.shape[1] + 1):
        for positions in map(list, combinations(range(columns.shape[1]), size)):
            factors = np.linalg.lstsq(scaled[:, positions], target, rcond=None)[0]
            error = float(np.sum((scaled[:, positions] @ factors - target) ** 2))
            if np.all(factors >= 0) and error < least:
                best, least = np.zeros(columns.shape[1]), error
                best[positions] = factors
    return np.asarray(best / np.where(scale > 0, scale, 1.0))
