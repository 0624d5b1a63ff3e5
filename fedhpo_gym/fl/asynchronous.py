"""Asynchronous courses: clients do not wait for each other, a round is one aggregation.

Time is virtual: a clock says how long the jobs of clients take.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms.asynchronous import BUFFER, Asynchronous
from fedhpo_gym.algorithms.base import Algorithm, fit
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.client_feedback import ClientFeedback
from fedhpo_gym.fl.course import BatchKey, Course, CourseState, TrainingClock
from fedhpo_gym.fl.group import Group
from fedhpo_gym.fl.participants import ClientBatch, StreamNames
from fedhpo_gym.fl.trainer import LocalResult, Values


class Job(NamedTuple):
    """What a client was sent to do; the earliest is done first."""

    done_s: float  # when it is done
    number: int  # jobs of the course that were begun before
    client: int  # who does it
    version: int  # aggregations that the model had which the client received
    reports: bool  # whether the report arrives; it is lost where a client drops out


class OneSecondEach:
    """The clock of clients that all take one second."""

    server_s = 0.0

    def job(self, seed: int, number: int, client: int, start_s: float) -> tuple[float, bool]:
        return 1.0, True


@dataclass(frozen=True)
class Queue:
    """Where a course stands in virtual time."""

    now_s: float = 0.0  # seconds since its beginning
    begun: int = 0  # number of jobs begun so far
    in_flight: tuple[Job, ...] = ()  # jobs that are not done


class LocalModel(NamedTuple):
    """What a client received, what it made of it, and what it sends: one row each."""

    received: Values
    local: Values
    sent: Values


@dataclass(frozen=True, eq=False)
class InFlight:
    """What a course has begun: part of its state."""

    queue: Queue  # the jobs, in virtual time
    models: Mapping[int, LocalModel]  # what will be reported, by number of the job


def until_aggregation(
    queue: Queue,
    version: int,
    *,
    reports: int,
    at_once: int,
    num_clients: int,
    clock: TrainingClock,
    seed: int,
) -> tuple[Queue, Sequence[Job], Sequence[Job]]:
    """Let clients train, idle ones drawn uniformly, until reports are enough to aggregate.

    Reports of an instant are collected before anybody begins; while the server aggregates, all
    wait.
    """
    now_s, begun, in_flight = queue.now_s, queue.begun, list(queue.in_flight)
    started: list[Job] = []
    arrived: list[Job] = []
    while len(arrived) < reports:
        together = bool(in_flight) and min(in_flight).done_s <= now_s
        while len(in_flight) < at_once and not together:
            busy = {job.client for job in in_flight}
            idle = [client for client in range(num_clients) if client not in busy]
            draw = stream(seed, "asynchronous clients", begun).integers(len(idle))
            client = idle[int(draw)]
            seconds, survives = clock.job(seed, begun, client, now_s)
            started.append(Job(now_s + seconds, begun, client, version, survives))
            in_flight.append(started[-1])
            begun += 1
        job = min(in_flight)
        in_flight.remove(job)
        now_s = job.done_s
        if job.reports:
            arrived.append(job)
    later = tuple(job._replace(done_s=job.done_s + clock.server_s) for job in in_flight)
    return (
        replace(queue, now_s=now_s + clock.server_s, begun=begun, in_flight=later),
        started,
        arrived,
    )


class AsynchronousGroup(Group):
    """Courses of an `Asynchronous` algorithm: training is computed when it begins."""

    _algorithm: Asynchronous

    def __init__(self, positions: Sequence[int], *others: Any) -> None:
        self._flights = [InFlight(Queue(), {}) for _ in positions]
        self._numbers: list[int] = []
        super().__init__(positions, *others)
        if personal := self._trainer.personal:
            raise InvalidArgumentError(
                f"`algorithm` must not be {self._algorithm.name!r} for a model of which a part "
                f"stays with the clients, such as {min(personal)!r}; use a synchronous one"
            )

    def configure(self, courses: Sequence[Course], needed: Sequence[BatchKey]) -> None:
        """Take the courses' hyperparameters; clients finish what they began as they began it."""
        super().configure(courses, needed)
        self._clocks = [course.clock or OneSecondEach() for course in courses]
        self._reports = [int(course.configuration.get(BUFFER, 1)) for course in courses]

    def step(self, feedback: ClientFeedback | None, index: int, metrics: bool) -> None:
        """Train until every course has had one more aggregation."""
        self._begin_round()
        took, started, arrived = np.zeros(len(self._flights)), [], []
        for row, flight in enumerate(self._flights):
            queue, new, done = until_aggregation(
                flight.queue,
                int(self._finished[row]),
                reports=self._reports[row],
                at_once=int(self.roster.num_sampled[row]),
                num_clients=self._clients,
                clock=self._clocks[row],
                seed=self._trainer.federation.seed,
            )
            took[row] = queue.now_s - flight.queue.now_s
            started += [(row, job) for job in new]
            arrived += [(row, job) for job in done]
            self._flights[row] = replace(flight, queue=queue)
        if feedback is not None:
            feedback.seconds[self.positions, index] = took
        self._begin(started)
        if feedback is not None:
            self._report(arrived, feedback, index, metrics)
        self._end_round(self._mean(arrived), {})
        for row, flight in enumerate(self._flights):
            models_in_flight = {
                job.number: flight.models[job.number] for job in flight.queue.in_flight
            }
            self._flights[row] = replace(flight, models=models_in_flight)

    def _begin(self, started: Sequence[tuple[int, Job]]) -> None:
        """Train what clients begin, all of them from the models as they are."""
        if not started:
            return
        models = [dict(flight.models) for flight in self._flights]
        take, items = self._trainer.take, self.roster.sorted(self._items(started))
        algorithm = self._algorithm
        start = self._broadcast(self._trained(self._parameters), self._context())
        changes = algorithm.sends_updates or type(algorithm).upload is not Algorithm.upload
        for portion in self._trainer.portions(items, self.roster):
            result = self._train(portion, start, kept=algorithm.sends_updates)
            places = [np.array([index]) for index in range(len(portion.course))]
            # Before `upload`, which may overwrite it.
            local = [take(result.local, row_index) for row_index in places]
            sent = local
            if changes:
                uploaded, _ = self._upload(result, {})
                sent = [take(uploaded, row_index) for row_index in places]
            for index, row in enumerate(portion.course.tolist()):
                models[row][self._numbers[portion.batch_key[index]]] = LocalModel(
                    take(start, np.array([row])), local[index], sent[index]
                )
        self._flights = [
            replace(flight, models=own) for flight, own in zip(self._flights, models, strict=True)
        ]

    def _mean(self, arrived: Sequence[tuple[int, Job]]) -> Values:
        """Return the mean of discounted updates, and the next values of running statistics."""
        trainer, buffers = self._trainer, self._trainer.model.buffers
        total = trainer.zeros(len(self.positions))
        current, means = trainer.views(self._parameters), trainer.views(total)
        ages = np.array([float(self._finished[row] - job.version) for row, job in arrived])
        context = self._context(self._items(arrived))
        discounts = self._algorithm.discount(trainer.array(ages), context)
        discounts = self._one_each("discount", discounts, len(arrived))
        for (row, job), weight in zip(arrived, discounts, strict=True):
            model = self._flights[row].models[job.number]
            received, sent = trainer.views(model.received), trainer.views(model.sent)
            share = weight / self._reports[row]
            for name, value in sent.items():
                follows = self._algorithm.from_current or name in buffers
                update = value[:, 0]
                if follows or not self._algorithm.sends_updates:
                    update = update - (current[name][:, row] if follows else received[name][:, 0])
                means[name][:, row] += share * update
        rate = self._algorithm.rate(self._context())
        rate = self._one_each("rate", rate, len(self.positions)).clip(max=1.0)
        for name in buffers:
            means[name][:] = current[name] + fit(rate, means[name]) * means[name]
        return total

    def _report(
        self,
        arrived: Sequence[tuple[int, Job]],
        feedback: ClientFeedback,
        index: int,
        metrics: bool,
    ) -> None:
        """Note reports when they arrive."""
        models = [self._flights[row].models[job.number] for row, job in arrived]
        received, local, _ = map(self._trainer.concatenated, zip(*models, strict=True))
        result = LocalResult(self._items(arrived), received, local, {})
        mean = self._trainer.no_updates(len(self.positions))
        self._add_updates(result, self._parameters, mean)
        self._observe(result, self._parameters, mean, feedback, index, metrics)

    def _items(self, jobs: Sequence[tuple[int, Job]]) -> ClientBatch:
        """Return the items of jobs; random numbers are named by a job, as by a round elsewhere."""
        self._numbers = [job.number for _, job in jobs]
        return self.roster.items_of(
            np.array([row for row, _ in jobs]),
            np.array([job.client for _, job in jobs]),
            np.arange(len(jobs)),
        )

    def _names(self, items: ClientBatch | None) -> StreamNames:
        if items is None:
            return super()._names(None)
        return StreamNames(self._trainer.federation.seed, self._numbers, items.drawers)

    def sampled(self, ahead: int = 0) -> NDArray[np.bool_]:
        raise InvalidArgumentError(
            "`sampled` must not be called for asynchronous courses, whose clients begin when "
            f"others are done, got {ahead} rounds ahead; use a synchronous algorithm"
        )

    def get(self, row: int) -> CourseState:
        return replace(super().get(row), in_flight=self._flights[row])

    def put(self, row: int, state: CourseState) -> None:
        super().put(row, state)
        if isinstance(state.in_flight, InFlight):
            self._flights[row] = state.in_flight
