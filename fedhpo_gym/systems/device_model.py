"""The system model of single devices: clients differ in speeds, availability and faults.

`SYSTEM_MODELS` offers it as "devices", and `System.cost` calls it. A round that happened is charged
with the random numbers of its course. A planned round costs an expectation, computed from
`PLANNED_ROUNDS` simulated rounds. These use common random numbers for all configurations, so that
configurations differ in cost by their work only.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import Range, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import Cost
from fedhpo_gym.systems import devices as populations
from fedhpo_gym.systems import traces
from fedhpo_gym.systems.base import (
    MOST,
    SLOWEST,
    Amount,
    CourseHistory,
    JobDurations,
    System,
    Whole,
    Work,
)
from fedhpo_gym.systems.devices import (
    DAY_S,
    KILOBYTE,
    Availability,
    Devices,
    Draw,
    Invitations,
    drawn,
)

PLANNED_ROUNDS: Final = 256
"""Simulated rounds whose mean is the cost of a planned one; also the most simulated courses."""
_LEAST_COURSES = 16
_AT_ONCE = 2**16  # invited clients of all courses that are simulated together
_MAX_MEANS = 4096
_MAX_LIVED = 256  # kinds of work whose courses are cached: 256 of 1,000 rounds take 15 MB
_MAX_KEPT = 1000  # largest cohort whose plan is cached: 12 MB
_ENERGIES = ("client_compute_w", "upload_j_per_byte", "download_j_per_byte")
Speed: TypeAlias = Annotated[float, Range(SLOWEST, MOST)]
Spread: TypeAlias = Annotated[float, Range(0, 10)]
"""A standard deviation in logs; draws stay finite."""
Below1: TypeAlias = Annotated[float, Range(0, 0.999)]
Energy: TypeAlias = Annotated[float, Range(0, 1e9)]


class _Total(NamedTuple):
    """Sums over rounds; `other_s` is all time except for computation."""

    other_s: float
    computation_s: float
    reports: float
    invited: float
    busy_s: float
    sent: float


def _summed(rounds: populations.Rounds) -> _Total:
    columns = (
        rounds.time_s - rounds.computation_s,
        rounds.computation_s,
        rounds.reports,
        np.full(len(rounds.time_s), rounds.invited),
        rounds.busy_s,
        rounds.sent,
    )
    return _Total(*[math.fsum(column.tolist()) for column in columns])


class _LivedCourses:
    """Simulated courses, which run in parallel, and the means of their totals.

    With limited availability, the cost of a round depends on the time of day at its start, so that
    whole courses must be simulated.
    """

    def __init__(self, courses: int, seed: int) -> None:
        self._rng = stream(seed, "planned_courses")
        self._now_s = np.zeros(courses)
        self._sums = [np.zeros(len(_Total._fields))]
        self._deviations = [0.0]

    @property
    def rounds(self) -> int:
        """Number of simulated rounds."""
        return len(self._sums) - 1

    def mean(self, rounds: int) -> _Total:
        """Return the mean totals of the first rounds."""
        return _Total(*self._sums[rounds].tolist())

    def deviation_s(self, rounds: int) -> float:
        """Return the standard deviation of the time of the first rounds."""
        return self._deviations[rounds]

    def add(
        self,
        invited: Callable[[int, np.random.Generator], Invitations],
        take_rounds: Callable[[Invitations], populations.Rounds],
        hours: Availability,
        server_s: float,
    ) -> None:
        """Simulate one more round of all courses; draws do not depend on their work."""
        who = invited(len(self._now_s), self._rng)
        wait_s = hours.wait_s(who.clients % len(hours), self._now_s[:, None])
        rounds = take_rounds(replace(who, wait_s=wait_s))
        self._now_s = self._now_s + rounds.time_s + server_s
        self._sums.append(self._sums[-1] + np.array(_summed(rounds)) / len(self._now_s))
        self._deviations.append(float(np.std(self._now_s)))


@dataclass
class _DrawCache:
    """Caches of draws and results."""

    populations: dict[int, Devices] = field(default_factory=dict)
    hours: dict[int, Availability] = field(default_factory=dict)
    plans: dict[tuple[int, int], Invitations] = field(default_factory=dict)
    courses: dict[tuple[object, ...], _LivedCourses] = field(default_factory=dict)
    means: dict[tuple[object, ...], _Total] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DeviceModel(System):
    """A system model with a device for every client; docs/cost_model.md describes its fields.

    A past round costs what it took, and a planned one the expectation over simulated rounds. In
    these, all clients take part equally often, and cohorts are the same for all configurations.
    A trial therefore always costs the same, more work never costs less, and configurations differ
    in cost by their work only.
    """

    client_compute_s: Amount = 1.0
    devices: Literal["lognormal", "flash", "fedscale", "alike"] = "lognormal"
    devices_path: str = ""
    compute_sigma: Spread = 0.6
    upload_median_bytes_per_s: Speed = 3102.6 * KILOBYTE
    download_median_bytes_per_s: Speed = 5171.7 * KILOBYTE
    upload_sigma: Spread = 0.701
    download_sigma: Spread = 0.484
    bandwidth_correlation: Annotated[float, Range(-1, 1)] = 0.448
    bandwidth_variation: Spread = 0.0
    availability: Literal["always", "lognormal", "sine", "fedscale", "flash"] = "always"
    availability_path: str = ""
    availability_beta: Below1 = 0.1
    over_selection: Annotated[float, Range(0, 1e6)] = 0.0
    dropout: Below1 = 0.0
    deadline_s: Amount = 0.0
    client_compute_w: Energy = 0.0
    upload_j_per_byte: Energy = 0.0
    download_j_per_byte: Energy = 0.0
    seed: Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, needing, may in (
            ("devices", ("fedscale",), ("flash", "fedscale")),
            ("availability", ("fedscale", "flash"), ("fedscale", "flash")),
        ):
            kind = getattr(self, name)
            path = getattr(self, f"{name}_path")
            if bool(path) != (kind in needing) and not (path and kind in may):
                raise InvalidArgumentError(
                    f"`{name}_path` must name a file for `{name}` of {needing}, and be empty where "
                    f"no file is read, got {short_repr(path)} for {kind!r}."
                )
        if self.devices == "fedscale" and self.compute != "samples":
            raise InvalidArgumentError(
                "`compute` must be 'samples' for devices of FedScale, whose time is measured per "
                f"sample, got {self.compute!r}."
            )
        derived = (self.measured, self.trace)
        del derived  # the properties stay cached

    @cached_property
    def measured(self) -> Devices | None:
        """The measured devices; None if devices are drawn from distributions."""
        readers = {"fedscale": traces.read_fedscale_devices, "flash": traces.read_flash_speeds}
        read = readers.get(self.devices)
        return None if read is None else read(self.devices_path)

    @cached_property
    def trace(self) -> Availability | None:
        """The measured availability of clients; None if it is drawn."""
        if self.availability == "fedscale":
            return traces.read_fedscale_availability(self.availability_path)
        if self.availability == "flash":
            return traces.read_flash_availability(self.availability_path)
        return None

    def population(self, num_clients: int) -> Devices:
        """Return the devices of the clients of a federation."""
        if num_clients not in self._kept.populations:
            self._kept.populations[num_clients] = self._population(num_clients)
        return self._kept.populations[num_clients]

    def hours(self, num_clients: int) -> Availability | None:
        """Return the availability of clients (None: always); client i has row i modulo rows."""
        if self.availability == "always" or self.trace is not None:
            return self.trace
        if num_clients not in self._kept.hours:
            beta = self.availability_beta
            self._kept.hours[num_clients] = drawn(self.availability, num_clients, beta, self.seed)
        return self._kept.hours[num_clients]

    def _cost(self, work: Work) -> Cost:
        # Computation is that of the last client in time, and of the server. All other time, that is
        # transfers and waiting for clients, counts as communication.
        up_bytes, down_bytes = self.message_bytes(work)
        total = self._sums(work)
        computation_s = total.computation_s + work.rounds * self.server_compute_s
        return Cost(
            time_s=total.other_s + computation_s,
            communication_s=total.other_s,
            computation_s=computation_s,
            upload_bytes=up_bytes * total.reports,
            download_bytes=down_bytes * total.invited,
            rounds=work.rounds,
        )

    @property
    def knows_energy(self) -> bool:
        return any(getattr(self, name) for name in _ENERGIES)

    def energy_j(self, work: Work) -> float:
        """Return joules: all invited clients compute, and all that do not drop out send."""
        self.require_energy(asynchronous=bool(work.reports))
        up_bytes, down_bytes = self.message_bytes(work)
        total = self._sums(work)
        received_j = total.invited * (down_bytes * self.download_j_per_byte)
        sent_j = total.sent * (up_bytes * self.upload_j_per_byte)
        return math.fsum((total.busy_s * self.client_compute_w, received_j, sent_j))

    def _sums(self, work: Work) -> _Total:
        past = work.happened
        return self._planned(work) if past is None else self._taken(work, past)

    def _taken(self, work: Work, happened: CourseHistory) -> _Total:
        """Return the totals of past rounds."""
        num_clients, time_s, totals = _clients_of(work), happened.start_s, []
        for index, sampled in enumerate(happened.sampled):
            draw = Draw(happened.seed, (self.seed, happened.first_round + index))
            cohort = np.flatnonzero(sampled)
            who = self._invite(num_clients, cohort if len(cohort) else 1, time_s, draw)
            totals.append(_summed(self._rounds(work, who)))
            time_s += totals[-1].other_s + totals[-1].computation_s + self.server_compute_s
        return _Total(*[math.fsum(column) for column in zip(*totals, strict=True)])

    def _planned(self, work: Work) -> _Total:
        """Return the expected totals of planned rounds."""
        num_clients = _clients_of(work)
        if self.hours(num_clients) is not None:
            return self._lived(work).mean(work.rounds)
        key = self._key(work)
        if key not in self._kept.means:
            if len(self._kept.means) >= _MAX_MEANS:
                self._kept.means.clear()
            plan = self._plan(num_clients, work.sampled_clients)
            parts = [_summed(self._rounds(work, who)) for who in plan]
            sums = [math.fsum(column) for column in zip(*parts, strict=True)]
            self._kept.means[key] = _Total(*[total / PLANNED_ROUNDS for total in sums])
        return _Total(*[work.rounds * total for total in self._kept.means[key]])

    def _key(self, work: Work) -> tuple[object, ...]:
        """Return the cache key of planned rounds."""
        units = self.client_units(work, work.num_clients).tobytes()
        return (*self.message_bytes(work), work.sampled_clients, units)

    def _lived(self, work: Work) -> _LivedCourses:
        """Return simulated courses of some work, with at least its number of rounds."""
        key, num_clients = self._key(work), work.num_clients
        invited = math.ceil(work.sampled_clients * (1.0 + self.over_selection))
        if key not in self._kept.courses:
            if len(self._kept.courses) >= _MAX_LIVED:
                self._kept.courses.clear()
            courses = min(max(_AT_ONCE // invited, _LEAST_COURSES), PLANNED_ROUNDS)
            self._kept.courses[key] = _LivedCourses(courses, self.seed)
        lived, hours = self._kept.courses[key], self.hours(num_clients)
        while lived.rounds < work.rounds and hours is not None:
            lived.add(
                lambda courses, rng: populations.invite_uniformly(
                    self.population(num_clients),
                    work.sampled_clients,
                    courses,
                    rng,
                    over_selection=self.over_selection,
                    dropout=self.dropout,
                ),
                lambda who: self._rounds(work, who),
                hours,
                self.server_compute_s,
            )
        return lived

    def ample_s(self, work: Work) -> float:
        """Return the mean seconds and four standard deviations between courses."""
        if work.reports or work.happened is not None:
            return super().ample_s(work)
        num_clients, mean_s = _clients_of(work), self.cost(work).time_s
        if self.hours(num_clients) is not None:
            return mean_s + 4.0 * self._lived(work).deviation_s(work.rounds)
        plan = self._plan(num_clients, work.sampled_clients)
        times = [self._rounds(work, who).time_s for who in plan]
        return mean_s + 4.0 * float(np.std(np.concatenate(times))) * math.sqrt(work.rounds)

    def _rounds(self, work: Work, who: Invitations) -> populations.Rounds:
        """Return the durations of some rounds of the same work."""
        units, sizes = self.client_units(work, work.num_clients), self.message_bytes(work)
        return populations.take_rounds(
            who, units, self.client_compute_s, sizes, self.deadline_s or math.inf
        )

    def _plan(self, num_clients: int, cohort: int) -> Iterable[Invitations]:
        """Return the invitations of planned rounds, which are the same for all work."""
        stored_plan = self._kept.plans.get((num_clients, cohort))
        if stored_plan is not None:
            return [stored_plan]
        invited = (
            self._invite(num_clients, who, 0.0, Draw(self.seed, (index,)))
            for index, who in enumerate(self._cohorts(num_clients, cohort))
        )
        if cohort > _MAX_KEPT:
            return invited
        self._kept.plans[num_clients, cohort] = Invitations.joined(list(invited))
        return [self._kept.plans[num_clients, cohort]]

    def _cohorts(self, num_clients: int, cohort: int) -> Iterator[NDArray[np.integer]]:
        """Yield cohorts in which all clients take part equally often, for a precise mean."""
        rng = stream(self.seed, "planned_cohorts")
        places = np.arange(cohort)
        cycle = num_clients // math.gcd(num_clients, cohort)
        for index in range(PLANNED_ROUNDS):
            if index % cycle == 0:
                order = rng.permutation(num_clients)
            yield order[(index % cycle * cohort + places) % num_clients]

    def _invite(
        self, num_clients: int, cohort: NDArray[np.integer] | int, start_s: float, draw: Draw
    ) -> Invitations:
        return populations.invite(
            self.population(num_clients),
            self.hours(num_clients),
            cohort,
            start_s,
            draw,
            over_selection=self.over_selection,
            dropout=self.dropout,
        )

    def job_means(self, work: Work) -> JobDurations:
        """Return the expected durations of jobs; the wait is the mean over times of a day."""
        for name in ("over_selection", "deadline_s"):
            if value := getattr(self, name):
                raise InvalidArgumentError(
                    f"`{name}` must be 0 for asynchronous algorithms, which wait for no cohort, "
                    f"got {value!r}; leave it out"
                )
        num_clients = _clients_of(work)
        devices, hours = self.population(num_clients), self.hours(num_clients)
        compute_s, transfer_s = populations.client_seconds(
            self.client_units(work, num_clients),
            self.client_compute_s,
            devices.compute,
            (self.message_bytes(work)[0], devices.upload / (1.0 + devices.upload_variation**2)),
            (self.message_bytes(work)[1], devices.download / (1.0 + devices.download_variation**2)),
        )
        wait_s = np.zeros(num_clients)
        if hours is not None:
            rows = np.arange(num_clients) % len(hours)
            times = DAY_S * np.arange(PLANNED_ROUNDS) / PLANNED_ROUNDS
            wait_s = np.mean([hours.wait_s(rows, time_s) for time_s in times.tolist()], axis=0)
        return JobDurations(wait_s + transfer_s, compute_s, self.dropout, wait_s, hours)

    def job(self, work: Work, client: int, start_s: float, draw: Draw) -> tuple[float, bool]:
        who = self._invite(_clients_of(work), np.array([client]), start_s, draw)
        rounds = self._rounds(work, who)  # without a deadline: `job_means` rejects it
        return float(rounds.time_s[0]), bool(who.survives[0, 0])

    def _population(self, num_clients: int) -> Devices:
        median = self.upload_median_bytes_per_s, self.download_median_bytes_per_s
        if self.devices == "alike":
            return populations.alike(num_clients, 1.0, *median)
        if self.measured is not None:
            sigma = self.compute_sigma if self.devices == "flash" else None
            return populations.drawn_of(self.measured, num_clients, self.seed, sigma)
        return populations.lognormal(
            num_clients,
            self.seed,
            compute_sigma=self.compute_sigma,
            upload=(median[0], self.upload_sigma),
            download=(median[1], self.download_sigma),
            correlation=self.bandwidth_correlation,
            variation=self.bandwidth_variation,
        )

    @cached_property
    def _kept(self) -> _DrawCache:
        return _DrawCache()


def _clients_of(work: Work) -> int:
    if work.num_clients < 1:
        raise InvalidArgumentError(
            "`work` must have `num_clients` for a model of single devices, got none; use "
            "`Work.of_course`."
        )
    return work.num_clients
