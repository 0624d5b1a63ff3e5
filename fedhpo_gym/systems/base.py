"""The base of system models: `System` turns the `Work` of rounds into simulated time and bytes.

Environments charge every trial or step through `System.cost`; `model.py` and `device_model.py`
implement synchronous rounds. This module computes the cost of asynchronous aggregations for all of
them, because it needs only the durations of jobs (`JobDurations`). `Work` describes rounds that are
planned, whose cost is an expectation, or that happened, whose cost is exact.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import AnyIntegers, Floats
from fedhpo_gym.core.checks import CheckedFields, Range, coerce
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Cost, Fidelity
from fedhpo_gym.systems.devices import Availability, Draw

Compute = Literal["constant", "epochs", "steps", "samples"]

SLOWEST, MOST = 1e-6, 1e18
"""Lowest speed in bytes/s, and largest single duration (s) or size (bytes): every cost is then
finite."""
Positive: TypeAlias = Annotated[float, Range(0, MOST, "(]")]
Amount: TypeAlias = Annotated[float, Range(0, MOST)]
Share: TypeAlias = Annotated[float, Range(0, 1, "(]")]
Whole: TypeAlias = Annotated[int, Range(0, 2**32, "[)")]
NEEDS_SAMPLES: Final = ("steps", "samples")
"""Rules of `compute` that need the sample counts of clients."""


@dataclass(frozen=True, kw_only=True)
class System(CheckedFields, ABC):
    """Turns work into simulated seconds and bytes; docs/cost_model.md describes its fields."""

    bytes_per_parameter: Positive = 4
    upload_compression: Share = 1.0
    download_compression: Share = 1.0
    compute: Compute = "constant"
    samples_per_client: Whole = 0
    server_compute_s: Amount = 0.0

    def cost(self, work: Work) -> Cost:
        """Return the cost of the work of some rounds."""
        return self._cost(work) if not work.reports else reported_cost(self, work)

    def ample_s(self, work: Work) -> float:
        """Return seconds that courses of planned work rarely exceed, for default budgets.

        This is the mean plus four standard deviations.
        """
        if not work.reports:
            return self.cost(work).time_s
        mean_s, deviation_s = _planned_s(self, work, self.job_means(work))
        return mean_s + 4.0 * deviation_s

    @abstractmethod
    def _cost(self, work: Work) -> Cost:
        """Return the cost of the work of some synchronous rounds."""

    def _charged(self, work: Work, communication_s: float, computation_s: float) -> Cost:
        """Return the cost of some seconds, and of a message each way for every sampled client."""
        up_bytes, down_bytes = self.message_bytes(work)
        messages = work.rounds * work.sampled_clients
        return Cost(
            time_s=communication_s + computation_s,
            communication_s=communication_s,
            computation_s=computation_s,
            upload_bytes=messages * up_bytes,
            download_bytes=messages * down_bytes,
            rounds=work.rounds,
        )

    @property
    def knows_energy(self) -> bool:
        """Whether `energy_j` is defined for synchronous work."""
        return False

    def energy_j(self, work: Work) -> float:
        """Return the energy of clients in some synchronous rounds, in joules."""
        raise self._no_energy()

    def require_energy(self, *, asynchronous: bool = False) -> None:
        """Raise an error if this system has no energies."""
        if not self.knows_energy:
            raise self._no_energy()
        if asynchronous:
            raise InvalidArgumentError(
                "energy is known of synchronous rounds only, whose clients are invited together; "
                "got an asynchronous algorithm: leave energy out, or choose another algorithm"
            )

    def _no_energy(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            "energy is known where devices have a power: give at least one of `client_compute_w`, "
            "`upload_j_per_byte` and `download_j_per_byte` with system={'model': 'devices'}, got "
            f"{type(self).__name__} without them"
        )

    def job_means(self, work: Work) -> JobDurations:
        """Return the expected durations of jobs of asynchronous training."""
        raise self._no_clients()

    def _no_clients(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            "`system['model']` must be 'analytic' or 'devices' for asynchronous algorithms, whose "
            f"clients have separate durations, got {type(self).__name__}"
        )

    def job(self, work: Work, client: int, start_s: float, draw: Draw) -> tuple[float, bool]:
        """Return the seconds of one job of a client, and whether it reports."""
        raise self._no_clients()

    def client_units(self, work: Work, num_clients: int) -> Floats:
        """Return (num_clients,) units of `compute` in the round of each client."""
        each, clients = None, work.clients
        if clients is not None and self.compute != "constant":
            of = {"epochs": clients.epochs, "steps": clients.steps, "samples": clients.samples}
            each = of[self.compute]
        return np.full(num_clients, self.units(work)) if each is None else each

    def times_s(
        self, works: Sequence[Work], which: AnyIntegers, rounds: AnyIntegers, rates: Floats
    ) -> Floats:
        """Return the (B,) `time_s` of `cost` for planned works, with the same bits.

        The (B,) rounds and rates replace those of `works[which]`.
        """
        keys = list(zip(which.tolist(), rounds.tolist(), rates.tolist(), strict=True))
        times = {
            (index, num_rounds, rate): self.cost(works[index].of_rounds(num_rounds, rate)).time_s
            for index, num_rounds, rate in {*keys}
        }
        return np.array([times[key] for key in keys], dtype=np.float64)

    def message_bytes(self, work: Work) -> tuple[float, float]:
        """Return the bytes of a message to the server, and of one to a client."""
        full_bytes = float(work.num_parameters * work.copies * self.bytes_per_parameter)
        return full_bytes * self.upload_compression, full_bytes * self.download_compression

    def units(self, work: Work) -> float:
        """Return the units of `compute` in the round of the client with most work."""
        units = {
            "constant": 1.0,
            "epochs": work.local_epochs,
            "steps": work.minibatch_steps,
            "samples": work.samples,
        }[self.compute]
        if units is None:
            raise InvalidArgumentError(
                f"`compute` must be 'constant' or 'epochs' where the number of samples of clients "
                f"is unknown, got {self.compute!r}."
            )
        return units


@dataclass(frozen=True, eq=False)
class ClientWork:
    """Work of each client in a round, (clients,): local epochs, minibatch steps, samples."""

    epochs: Floats
    steps: Floats | None = None
    samples: Floats | None = None


@dataclass(frozen=True, eq=False)
class CourseHistory:
    """Rounds of a course that happened: their numbers, cohorts and start.

    Attributes:
        seed: seed of the course.
        first_round: number of earlier rounds of the course.
        start_s: simulated second at which the first of these rounds begins.
        sampled: (rounds, clients) whether a client trained.
        seconds: (rounds,) simulated seconds of aggregations, for asynchronous algorithms only.
    """

    seed: int
    first_round: int
    start_s: float
    sampled: NDArray[np.bool_]
    seconds: Floats | None = None


@dataclass(frozen=True)
class Work:
    """The work of some rounds of one course; per-client fields are of the client with most work.

    Attributes:
        num_parameters: parameters of the model that is exchanged.
        client_share: the real number `client_sample_rate * num_clients`, as Eq. 1 counts it.
        minibatch_steps: steps of a client in a round; None if its number of samples is unknown.
        samples: training samples that a client reads in a round, once per epoch; None likewise.
        num_clients: clients of the federation; 0 if unknown.
        clients: the work of each client; None if all are equal.
        happened: the history of past rounds; None for planned rounds, as in trials.
        reports: number of reports per asynchronous aggregation; 0 for synchronous rounds.
        copies: size of a message, in sizes of the model.
    """

    num_parameters: int
    rounds: int
    sampled_clients: int
    client_share: float
    local_epochs: float = 1.0
    minibatch_steps: float | None = None
    samples: float | None = None
    num_clients: int = 0
    clients: ClientWork | None = field(default=None, compare=False, repr=False)
    happened: CourseHistory | None = field(default=None, compare=False, repr=False)
    reports: int = 0
    copies: int = 1

    @classmethod
    def of_course(
        cls, num_parameters: int, num_clients: int, fidelity: Fidelity, **others: Any
    ) -> Self:
        """Return the work of `fidelity.round` rounds in a federation, with other fields by name."""
        for name, value in (("num_parameters", num_parameters), ("num_clients", num_clients)):
            coerce(name, value, Annotated[int, Range(1)])
        for name in ("local_epochs", "minibatch_steps", "samples"):
            if (amount := others.get(name)) is not None and not amount >= 0:
                raise InvalidArgumentError(f"`{name}` must be non-negative, got {amount!r}.")
        return cls(
            int(num_parameters),
            fidelity.round,
            fidelity.sampled_clients(int(num_clients)),
            num_clients * fidelity.client_sample_rate,
            num_clients=int(num_clients),
            **others,
        )

    @property
    def samples_read(self) -> float | None:
        """Training samples that all clients read, an upper bound if planned; None if unknown."""
        if self.clients is None or self.clients.samples is None:
            return None
        if self.happened is not None:
            return float(np.where(self.happened.sampled, self.clients.samples, 0.0).sum())
        most = np.sort(self.clients.samples)[-self.sampled_clients :]
        return float(self.rounds * most.sum())

    def of_rounds(self, rounds: int, client_sample_rate: float) -> Self:
        """Return the planned work of other rounds, with cohorts of another size."""
        sampled = Fidelity(rounds, client_sample_rate).sampled_clients(self.num_clients)
        share = self.num_clients * client_sample_rate
        return replace(self, rounds=rounds, sampled_clients=sampled, client_share=share)


COURSES: Final = 64
"""Simulated courses whose mean is the cost of planned aggregations."""


@dataclass(frozen=True, eq=False)
class JobDurations:
    """Mean durations of the jobs of clients, from their start to their report."""

    other_s: Floats  # (clients,) seconds of transfers and waiting
    compute_s: Floats  # (clients,) seconds of computation
    dropout: float = 0.0  # probability that a job brings no report
    wait_s: Floats | float = 0.0  # (clients,) of `other_s`, the mean wait until one is available
    hours: Availability | None = None  # when clients are available; None: always

    @property
    def job_s(self) -> Floats:
        """(clients,) seconds of a job, waiting included."""
        return self.other_s + self.compute_s


@dataclass(frozen=True, eq=False)
class JobClock:
    """The interface of a system for the engine: durations of the jobs of one course."""

    system: System
    work: Work

    def __post_init__(self) -> None:
        self.system.job_means(self.work)

    @property
    def server_s(self) -> float:
        """Seconds of an aggregation."""
        return self.system.server_compute_s

    def job(self, seed: int, number: int, client: int, start_s: float) -> tuple[float, bool]:
        """Return the seconds of the `number`-th job of a course, and whether it reports."""
        system_seed = int(getattr(self.system, "seed", 0))
        return self.system.job(self.work, client, start_s, Draw(seed, (system_seed, number)))


def reported_cost(system: System, work: Work) -> Cost:
    """Return the cost of some asynchronous aggregations.

    Past aggregations cost their virtual time. Planned ones cost their expected time: the long-run
    mean if clients are always available, else the mean of simulated courses. Time is split into
    computation and communication by the shares of these in the jobs of all clients.
    """
    means = system.job_means(work)
    arrive = 1.0 - means.dropout
    server_s = work.rounds * system.server_compute_s
    if work.happened is not None and work.happened.seconds is not None:
        flying_s = max(math.fsum(work.happened.seconds.tolist()) - server_s, 0.0)
    else:
        flying_s = _planned_s(system, work, means)[0] - server_s
    computation_s = flying_s * float(means.compute_s.sum() / means.job_s.sum()) + server_s
    communication_s = flying_s + server_s - computation_s
    up_bytes, down_bytes = system.message_bytes(work)
    reports = work.rounds * work.reports
    return Cost(
        time_s=flying_s + server_s,
        communication_s=communication_s,
        computation_s=computation_s,
        upload_bytes=reports * up_bytes,
        download_bytes=reports / arrive * down_bytes,
        rounds=work.rounds,
    )


def _planned_s(system: System, work: Work, means: JobDurations) -> tuple[float, float]:
    """Return the mean and the standard deviation of the seconds of planned aggregations.

    Without hours, the deviation is that of a sum of independent times between reports, each as for
    exponential jobs of these clients.
    """
    if means.hours is None:
        job_s, reports = means.job_s, work.rounds * work.reports
        between_s = between_reports_s(job_s, work.sampled_clients) / (1.0 - means.dropout)
        spread = math.sqrt(1.0 + float(np.var(job_s)) / float(np.mean(job_s)) ** 2)
        mean_s = work.rounds * (work.reports * between_s) + work.rounds * system.server_compute_s
        return mean_s, between_s * spread * math.sqrt(reports)
    ends_s = _flights_s(
        np.ascontiguousarray(means.job_s - means.wait_s, np.float64).tobytes(),
        means.hours,
        1 << (work.rounds - 1).bit_length(),  # power of 2: fewer cache entries
        work.reports,
        work.sampled_clients,
        means.dropout,
        system.server_compute_s,
        int(getattr(system, "seed", 0)),
    )
    ends_of_work_s = ends_s[:, work.rounds - 1]
    return float(ends_of_work_s.mean()), float(ends_of_work_s.std())


@lru_cache(maxsize=64)
def _flights_s(
    job_s: bytes,
    hours: Availability,
    rounds: int,
    reports: int,
    at_once: int,
    dropout: float,
    server_s: float,
    seed: int,
) -> Floats:
    """Return the (courses, rounds) seconds after which aggregations of simulated courses end."""
    own_s, rng = np.frombuffer(job_s, np.float64), stream(seed, "planned_flights")
    num_clients, course = len(own_s), np.arange(COURSES)
    # (courses, clients): the first `at_once` clients of a row train, the others are idle.
    client = rng.permuted(np.tile(np.arange(num_clients), (COURSES, 1)), axis=1)
    now_s, arrived = np.zeros(COURSES), np.zeros(COURSES, np.int64)
    ends_s = np.full((COURSES, rounds), np.inf)

    def done_s(who: NDArray[np.integer], begin_s: Floats) -> Floats:
        return np.asarray(begin_s + hours.wait_s(who % len(hours), begin_s) + own_s[who])

    flying_s = done_s(client[:, :at_once], np.zeros((COURSES, 1)))
    while arrived.min() < rounds * reports:
        first_done = np.argmin(flying_s, axis=1)
        now_s = flying_s[course, first_done]
        survives = rng.random(COURSES) >= dropout
        arrived += survives
        ready = survives & (arrived % reports == 0)
        within = ready & (arrived <= rounds * reports)
        now_s = now_s + np.where(ready, server_s, 0.0)
        flying_s += np.where(ready, server_s, 0.0)[:, None]
        ends_s[course[within], arrived[within] // reports - 1] = now_s[within]
        next_client = at_once - 1 + rng.integers(num_clients - at_once + 1, size=COURSES)
        next_client = np.where(
            next_client == at_once - 1, first_done, next_client
        )  # the client that finished is idle as well
        leaving = client[course, first_done]
        client[course, first_done] = client[course, next_client]
        client[course, next_client] = leaving
        flying_s[course, first_done] = done_s(client[course, first_done], now_s)
    return ends_s


def between_reports_s(job_s: Floats, at_once: int) -> float:
    """Return the long-run mean seconds between two reports, for jobs of (clients,) seconds.

    M of N clients train at a time. A client that finishes is replaced by a random idle one.
    The clients that train are then a reversible process, in which a set S has a probability
    proportional to the product of its T_i, whatever the distributions of the times with these means
    are (the insensitivity of such systems; Kelly, 1979). So with the elementary symmetric
    polynomials e_k of T_1, ..., T_N the time between reports is e_M / ((N - M + 1) e_(M - 1)).
    """
    return _between_reports_s(np.ascontiguousarray(job_s, np.float64).tobytes(), at_once)


@lru_cache(maxsize=512)
def _between_reports_s(job_s: bytes, at_once: int) -> float:
    times = np.frombuffer(job_s, np.float64)
    unit = float(times.mean())
    logs = np.full(at_once + 1, -np.inf)  # of e_0, ..., e_M of the clients so far
    logs[0] = 0.0
    for log in np.log(times / unit).tolist():
        logs[1:] = np.logaddexp(logs[1:], logs[:-1] + log)
    return unit * math.exp(logs[-1] - logs[-2]) / (len(times) - at_once + 1)
