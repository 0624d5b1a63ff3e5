"""What every system model shares: work, messages, and clients, waited for or not."""

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
"""The lowest speed, in bytes/s, and the most seconds and bytes of one thing: every cost is then a
finite number."""
Positive: TypeAlias = Annotated[float, Range(0, MOST, "(]")]
Amount: TypeAlias = Annotated[float, Range(0, MOST)]
Share: TypeAlias = Annotated[float, Range(0, 1, "(]")]
Whole: TypeAlias = Annotated[int, Range(0, 2**32, "[)")]
NEEDS_SAMPLES: Final = ("steps", "samples")
"""Rules that need to know how many samples clients have."""


@dataclass(frozen=True, kw_only=True)
class System(CheckedFields, ABC):
    """Turns work into simulated seconds and bytes; docs/cost_model.md says what its fields mean."""

    bytes_per_parameter: Positive = 4
    upload_compression: Share = 1.0
    download_compression: Share = 1.0
    compute: Compute = "constant"
    samples_per_client: Whole = 0
    server_compute_s: Amount = 0.0

    def cost(self, work: Work) -> Cost:
        """Return what the work of some rounds costs."""
        return self._cost(work) if not work.reports else reported_cost(self, work)

    def ample_s(self, work: Work) -> float:
        """Return seconds that courses of planned work hardly ever exceed, for default budgets."""
        if not work.reports:
            return self.cost(work).time_s
        mean_s, deviation_s = _planned_s(self, work, self.job_means(work))
        return mean_s + 4.0 * deviation_s

    @abstractmethod
    def _cost(self, work: Work) -> Cost:
        """Return what the work of some synchronous rounds costs."""

    def _charged(self, work: Work, communication_s: float, computation_s: float) -> Cost:
        """Return the cost of these seconds, and of a message each way for every sampled client."""
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
        """Whether `energy_j` has an answer for synchronous work."""
        return False

    def energy_j(self, work: Work) -> float:
        """Return the joules that clients need for some synchronous rounds."""
        raise self._no_energy()

    def require_energy(self, *, asynchronous: bool = False) -> None:
        """Refuse to tell energies that this system does not know."""
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
        """Return how long clients are expected to take for a job of asynchronous training."""
        raise self._no_clients()

    def _no_clients(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            "`system['model']` must be 'analytic' or 'devices' for asynchronous algorithms, whose "
            f"clients take their time each on its own, got {type(self).__name__}"
        )

    def job(self, work: Work, client: int, start_s: float, draw: Draw) -> tuple[float, bool]:
        """Return the seconds of one job of a client, and whether it then reports."""
        raise self._no_clients()

    def client_units(self, work: Work, num_clients: int) -> Floats:
        """Return in how many units of `compute` each of the clients counts its round."""
        each, clients = None, work.clients
        if clients is not None and self.compute != "constant":
            of = {"epochs": clients.epochs, "steps": clients.steps, "samples": clients.samples}
            each = of[self.compute]
        return np.full(num_clients, self.units(work)) if each is None else each

    def times_s(
        self, works: Sequence[Work], which: AnyIntegers, rounds: AnyIntegers, rates: Floats
    ) -> Floats:
        """Return the (B,) `time_s` that `cost` has for many planned works, bit for bit.

        The (B,) rounds and rates take the place of those of `works[which]`.
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
        """Return in how many units of `compute` the client with most work counts its round."""
        units = {
            "constant": 1.0,
            "epochs": work.local_epochs,
            "steps": work.minibatch_steps,
            "samples": work.samples,
        }[self.compute]
        if units is None:
            raise InvalidArgumentError(
                f"`compute` must be 'constant' or 'epochs' where nobody knows how many samples a "
                f"client has, got {self.compute!r}."
            )
        return units


@dataclass(frozen=True, eq=False)
class ClientWork:
    """What each client computes in a round, (clients,): local epochs, minibatch steps, samples."""

    epochs: Floats
    steps: Floats | None = None
    samples: Floats | None = None


@dataclass(frozen=True, eq=False)
class CourseHistory:
    """Rounds that a course has really taken: which, who trained, and when they began.

    Attributes:
        seed: of the course.
        first_round: rounds that the course had taken before.
        start_s: simulated second at which the first of these rounds begins.
        sampled: (rounds, clients) who trained.
        seconds: (rounds,) simulated seconds of aggregations, for asynchronous algorithms only.
    """

    seed: int
    first_round: int
    start_s: float
    sampled: NDArray[np.bool_]
    seconds: Floats | None = None


@dataclass(frozen=True)
class Work:
    """The work of some rounds of one course, of the client that computes most in a round.

    Attributes:
        num_parameters: parameters of the model that is exchanged.
        client_share: the real number `client_sample_rate * num_clients`, as Eq. 1 counts it.
        minibatch_steps: of a client in a round; None where nobody knows how many samples it has.
        samples: training samples a client reads in a round, once per epoch; None likewise.
        num_clients: clients of the federation; 0 where nobody says.
        clients: the same of each client; None where all are alike.
        happened: the rounds, if they are past; None where they are only planned, as in trials.
        reports: how many an asynchronous aggregation waits for; 0: rounds are synchronous.
        copies: how many times the size of the model every message has.
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
        """Training samples that all clients read, at most where they are planned; None: unknown."""
        if self.clients is None or self.clients.samples is None:
            return None
        if self.happened is not None:
            return float(np.where(self.happened.sampled, self.clients.samples, 0.0).sum())
        most = np.sort(self.clients.samples)[-self.sampled_clients :]
        return float(self.rounds * most.sum())

    def of_rounds(self, rounds: int, client_sample_rate: float) -> Self:
        """Return the work of so many planned rounds with cohorts of another size."""
        sampled = Fidelity(rounds, client_sample_rate).sampled_clients(self.num_clients)
        share = self.num_clients * client_sample_rate
        return replace(self, rounds=rounds, sampled_clients=sampled, client_share=share)


COURSES: Final = 64
"""Simulated courses whose mean is the cost of planned aggregations."""


@dataclass(frozen=True, eq=False)
class JobDurations:
    """How long jobs of clients take on average: from the begin of one to its report."""

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
    """A system as the engine asks it: how long jobs of one course take."""

    system: System
    work: Work

    def __post_init__(self) -> None:
        self.system.job_means(self.work)

    @property
    def server_s(self) -> float:
        """Seconds of an aggregation."""
        return self.system.server_compute_s

    def job(self, seed: int, number: int, client: int, start_s: float) -> tuple[float, bool]:
        """Return the seconds of a client's `number`-th job of a course, and if it reports."""
        system_seed = int(getattr(self.system, "seed", 0))
        return self.system.job(self.work, client, start_s, Draw(seed, (system_seed, number)))


def reported_cost(system: System, work: Work) -> Cost:
    """Return what some aggregations cost.

    Those that happened cost the virtual time that they took, planned ones what they are expected to
    take: in the long run where clients are always available, else in the mean of simulated courses.
    Computation is told apart from all other time by its share in the jobs of all clients.
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

    Without hours, the deviation is that of as many independent times between reports, as large as
    exponential jobs of these clients would make it.
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
        1 << (work.rounds - 1).bit_length(),  # the first of more are the same
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
    # Of each course, those that train are the first `at_once`, the others are idle.
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
        )  # whoever is done is idle, too
        leaving = client[course, first_done]
        client[course, first_done] = client[course, next_client]
        client[course, next_client] = leaving
        flying_s[course, first_done] = done_s(client[course, first_done], now_s)
    return ends_s


def between_reports_s(job_s: Floats, at_once: int) -> float:
    """Return the mean seconds between two reports, in the long run, of jobs of (clients,) seconds.

    M of N clients train at once. Whoever is done makes room for one of the idle, drawn uniformly.
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
