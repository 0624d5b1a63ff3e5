"""Courses of one federation and model shape: their state, and one round of all of them.

Clients of asynchronous courses do not wait for each other: a round is an aggregation in virtual
time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms.asynchronous import BUFFER, Asynchronous
from fedhpo_gym.algorithms.base import (
    VARIATE,
    Algorithm,
    Context,
    Parameters,
    checked_update,
    fit,
    with_shapes,
)
from fedhpo_gym.algorithms.fedavg import FedAvg
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.fl.course import MAX_LOCAL_BYTES, Course, CourseState, Feedback, JobClock, Needs
from fedhpo_gym.fl.hyperparameters import Hyperparameters
from fedhpo_gym.fl.participants import Items, Names, Roster
from fedhpo_gym.fl.trainer import LocalResult, Rows, Terms, Trainer, Values

_MAX_JOINED = 2**12
"""Items of the rounds that are one call."""
_HOOKS = ("init_state", "broadcast", "reports", "correction", "upload", "server_update")
_OTHERS = ("keeps_copy", "sends_updates", "keeps_variates", "poisson", "asynchronous")


def only_averages(algorithm: Algorithm) -> bool:
    """Return whether nothing but a pull of local steps tells an algorithm from `FedAvg`."""
    same = (getattr(type(algorithm), name) is getattr(FedAvg, name) for name in _HOOKS)
    return all(same) and not any(getattr(algorithm, name) for name in _OTHERS)


class Group:
    """Courses of one federation and model shape, which train as one."""

    def __init__(
        self,
        positions: Sequence[int],
        courses: Sequence[Course],
        needed: Sequence[Needs],
        trainer: Trainer,
        algorithm: Algorithm,
        horizon: int,
    ) -> None:
        self.positions = np.array(positions)  # (courses,) where they stand in the batch
        self._trainer = trainer
        self._algorithm = algorithm
        self._horizon = horizon
        self._clients = trainer.federation.num_clients
        number = len(courses)
        self._finished = np.zeros(number, dtype=np.int64)
        # (courses,) round in which a course left the finite numbers; 0 if none.
        self.diverged_at = np.zeros(number, dtype=np.int64)
        self._parameters = trainer.initial(number)
        everybody = np.repeat(np.arange(number), self._clients)
        self._personal = trainer.take(trainer.kept_of(self._parameters), everybody)
        self._variates = trainer.zeros(len(everybody)) if algorithm.keeps_variates else None
        self._needs: list[Needs] = []
        self._roster: Roster | None = None
        joins = trainer.joins_rounds and only_averages(algorithm) and not trainer.kept
        self._room = MAX_LOCAL_BYTES // (2 * trainer.row_bytes) if joins else 0
        self._pulls = type(algorithm).pull is not FedAvg.pull
        self.configure(courses, needed)
        self._server: Parameters = {}
        self._server = algorithm.init_state(self._trained(self._parameters), self._context())

    def configure(self, courses: Sequence[Course], needed: Sequence[Needs]) -> None:
        """Take the hyperparameters of the courses from here on."""
        if list(needed) != self._needs:
            self._roster = None
        self._courses, self._needs = courses, list(needed)
        self._settings = Hyperparameters(courses, self._trainer, self._algorithm, self._horizon)
        self._begin_round()

    def _begin_round(self) -> None:
        self._settings.begin_round(self._finished, self.diverged_at > 0)

    @property
    def roster(self) -> Roster:
        """Who trains in the rounds to come."""
        if self._roster is None:
            self._roster = Roster(
                self._needs,
                self._finished.tolist(),
                self._trainer.federation,
                poisson=self._algorithm.poisson,
                min_rows=self._trainer.min_rows,
                longest_first=self._trainer.longest_first,
            )
        return self._roster

    def restart(self, rows: Sequence[int]) -> None:
        """Set some courses back to round 0."""
        begun = type(self)(
            rows,
            [self._courses[row] for row in rows],
            [self._needs[row] for row in rows],
            self._trainer,
            self._algorithm,
            self._horizon,
        )
        for place, row in enumerate(rows):
            self.put(row, begun.get(place))

    def at_once(self, local_metrics: bool) -> int:
        """Return how many rounds may be one call of `run`; 0 where a round is `step`."""
        items = int(self.roster.num_sampled.sum())
        if items > self._room or local_metrics:
            return 0
        return 1 if self._settings.decays else max(_MAX_JOINED // max(items, 1), 1)

    def run(
        self, feedback: Feedback | None, index: int, evaluated: NDArray[np.bool_], metrics: bool
    ) -> Sequence[NDArray[np.float32]]:
        """Take some rounds; return (courses, clients, splits, metrics) after those evaluated.

        Args:
            feedback: what the clients report; the first round is that of `index` there.
            evaluated: (rounds,), at most `at_once`.
            metrics: whether clients also measure what they receive and make of it.
        """
        if not self.at_once(metrics and feedback is not None):
            self.step(feedback, index, metrics)
            return [self.measure()] if evaluated[0] else []
        self._begin_round()
        items, number = self.roster.ahead(len(evaluated))
        compared = np.empty((0 if feedback is None else len(items), 2), dtype=np.float32)
        pull = self._algorithm.pull(self._context(items)) if self._pulls else None
        state = self._finished, self.diverged_at
        found = self._trainer.advance(
            self._parameters, items, number, self._settings, pull, state, evaluated, compared
        )
        self.roster.elapsed += len(evaluated)
        if feedback is not None:
            at = self.positions[items.course], index + number, items.client
            feedback.sampled[at] = True
            feedback.update_norm[at], feedback.alignment[at] = compared.T
        return list(found)

    def step(self, feedback: Feedback | None, index: int, metrics: bool) -> None:
        """Run one communication round of every course."""
        trainer, algorithm, number = self._trainer, self._algorithm, len(self.positions)
        self._begin_round()
        items = self.roster.items()
        before, context = self._trained(self._parameters), self._context()
        sent = algorithm.broadcast(before, context)
        start = self._parameters
        if sent is not before:
            sent = with_shapes(f"`broadcast` of {algorithm.name!r}", sent, before)
            start = trainer.replaced(start, sent)
        average = trainer.zeros(number)
        reports = {n: 1.0 * zeros for n, zeros in algorithm.reports(before, context).items()}
        changes: list[tuple[Items, Parameters]] = []
        kept = feedback is not None or algorithm.sends_updates
        parts = trainer.portions(items, self.roster)
        mean = None if feedback is None else trainer.no_updates(number)
        cut = [] if mean is None else self._add_cut(parts, start, mean)
        for part in parts:
            result = self._train(part, start, kept=kept)
            if feedback is not None:
                if part not in cut:
                    self._add_updates(result, start, mean)
                self._observe(result, start, mean, feedback, index, metrics)
            own, said = self._upload(result)
            trainer.add(average, reports, own, said, result)
            if self._variates is not None:
                changes.append((part, said))
        if algorithm.poisson:
            nobody = np.bincount(items.course, minlength=number) == 0
            statistics, former = trainer.views(average), trainer.views(start)
            for name in trainer.model.buffers & statistics.keys():
                statistics[name][:, nobody] = former[name][:, nobody]
        self._end_round(average, reports)
        for part, said in changes:
            self._change_variates(part, said)

    def _train(self, items: Items, start: Values, *, kept: bool) -> LocalResult:
        """Train a portion; what it received is kept if that is asked for."""
        trainer, algorithm, names = self._trainer, self._algorithm, self._names(items)
        context = self._context(items)
        pull = algorithm.pull(context)
        shared = trainer.shared(items, start)
        local = trainer.receive(start, items, "local", shared)
        received = None
        if kept or pull is not None or algorithm.keeps_copy:
            received = trainer.receive(start, items, "received", shared)
        if algorithm.keeps_copy:
            own = self._with_own(local, items)
            trainer.run(own, items, self._settings, names, Terms(pull, received))
            self._keep(items, own)
            trainer.run(local, items, self._settings, names, Terms())
            return LocalResult(items, received, local, shared)
        if trainer.kept:
            local = self._with_own(local, items)
            received = None if received is None else self._with_own(received, items)
        terms = Terms(pull, received, shared, algorithm.correction(context))
        trainer.run(local, items, self._settings, names, terms)
        self._keep(items, local)
        return LocalResult(items, received, local, shared)

    def _with_own(self, values: Values, items: Items) -> Values:
        """Return values of items with what their clients keep."""
        own = self._trainer.take(self._personal, self._rows(items))
        return self._trainer.with_kept(values, own)

    def _keep(self, items: Items, own: Values) -> None:
        """Keep what stays with the clients; one that diverged keeps its last finite model."""
        if not self._trainer.kept:
            return
        mine = self._trainer.kept_of(own)
        finite = np.flatnonzero(self._trainer.finite(mine))
        rows = self._rows(items)[finite]
        self._trainer.put(self._personal, rows, self._trainer.take(mine, finite))

    def _upload(self, result: LocalResult) -> tuple[Values, Parameters]:
        """Return what clients send: parameters, and all of it by name."""
        local = result.local
        if self._algorithm.sends_updates:
            local = self._trainer.updates(local, result.received)
        own = self._trained(local)
        said = self._algorithm.upload(own, self._context(result.items))
        if said is own:
            return local, own
        said = with_shapes(f"`upload` of {self._algorithm.name!r}", said, own)
        return self._trainer.replaced(local, said), said

    def _add_cut(self, parts: Sequence[Items], start: Values, mean: Values) -> list[Items]:
        """Add to the mean updates of courses that are cut into several portions; return these."""
        number = np.zeros(len(self.positions), dtype=np.int64)
        for part in parts:
            number[np.unique(part.course)] += 1
        cut = [part for part in parts if (number[part.course] > 1).any()]
        everybody = np.arange(len(self.positions) * self._clients)
        personal = self._trainer.take(self._personal, everybody) if cut else self._personal
        for part in cut:
            self._add_updates(self._train(part, start, kept=True), start, mean)
        self._personal = personal
        return cut

    def _add_updates(self, result: LocalResult, start: Values, mean: Values) -> None:
        for items, received, local in self._trainer.written_out(result, start):
            self._trainer.add_updates(items, received, local, mean)

    def _observe(
        self,
        result: LocalResult,
        start: Values,
        mean: Values,
        feedback: Feedback,
        index: int,
        metrics: bool,
    ) -> None:
        """Note what clients report of a round, compared with the mean updates of their courses."""
        trainer = self._trainer
        for items, received, local in trainer.written_out(result, start):
            at = self.positions[items.course], index, items.client
            feedback.sampled[at] = True
            found = trainer.compare(items, received, local, mean)
            feedback.update_norm[at], feedback.alignment[at] = found
            if metrics:
                feedback.before[at] = trainer.measure_own(received, items.client)
                feedback.after[at] = trainer.measure_own(local, items.client)

    def _end_round(self, average: Values, reports: Parameters) -> None:
        """Finish a round; a course that met a non-finite number keeps its last finite state."""
        self._finished += 1
        self.roster.elapsed += 1
        trainer = self._trainer
        means = {**self._trained(average), **reports}
        trained, algorithm = self._trained(self._parameters), self._algorithm
        result = algorithm.server_update(trained, means, self._server, self._context())
        updated, server = checked_update(algorithm.name, result, trained, self._server)
        values = trainer.with_personal(average, self._parameters)
        if updated is not means:
            values = trainer.replaced(values, updated)
        finite = trainer.finite(values, server.values())
        if not finite.all():
            self.freeze(~finite)
        live = self.diverged_at == 0
        if not live.all():
            values = trainer.where(live, values, self._parameters)
            server = {n: trainer.choose(live, v, self._server[n]) for n, v in server.items()}
        self._parameters, self._server = values, server

    def _change_variates(self, items: Items, said: Parameters) -> None:
        """Add to the variates of clients what they sent; courses that diverged keep theirs."""
        live = np.flatnonzero(self.diverged_at[items.course] == 0)
        rows = self._rows(items)[live]
        for name, value in self._trained(self._variates).items():
            value[:, rows] += said[VARIATE + name][:, live]

    def measure(self) -> NDArray[np.float32]:
        """Return (courses, clients, splits, metrics) of the model each client would use.

        Courses whose metrics are not finite diverge.
        """
        metrics = self._measured()
        finite: NDArray[np.bool_] = np.asarray(np.isfinite(metrics).all(axis=(1, 2, 3)))
        if not finite.all():
            self.freeze(~finite)
        return metrics

    def _measured(self) -> NDArray[np.float32]:
        trainer, found = self._trainer, []
        if not trainer.kept:
            return trainer.measure(self._parameters)
        for client in range(self._clients):
            rows = np.arange(len(self.positions)) * self._clients + client
            own = trainer.with_kept(self._parameters, trainer.take(self._personal, rows))
            found.append(trainer.measure(own, client))
        return np.concatenate(found, axis=1)

    def sampled(self, ahead: int = 0) -> NDArray[np.bool_]:
        """Return (courses, clients): who trains in the next round, or some rounds ahead of it."""
        return self.roster.sampled(ahead)

    def freeze(self, diverged: NDArray[np.bool_]) -> None:
        """Mark (courses,) as diverged in this round and stop training them."""
        new = diverged & (self.diverged_at == 0)
        self.diverged_at[new] = self._finished[new]

    def get(self, row: int) -> CourseState:
        """Return a copy of the state of one course."""
        own, clients = np.array([row]), self._clients_of(row)
        return CourseState(
            {n: v[:, own][:, 0] for n, v in self._trainer.views(self._parameters).items()},
            {n: v[:, own][:, 0] for n, v in self._server.items()},
            {n: v[:, clients] for n, v in self._trainer.kept_views(self._personal).items()},
            int(self._finished[row]),
            int(self.diverged_at[row]),
            variates={n: v[:, clients] for n, v in self._trained(self._variates).items()},
        )

    def put(self, row: int, state: CourseState) -> None:
        """Set the state of one course."""
        clients = self._clients_of(row)
        for mine, values, where in (
            (self._trainer.views(self._parameters), state.parameters, row),
            (self._server, state.server, row),
            (self._trainer.kept_views(self._personal), state.personal, clients),
            (self._trained(self._variates), state.variates, clients),
        ):
            for name, value in values.items():
                mine[name][:, where] = value
        self._finished[row], self.diverged_at[row] = state.round, state.diverged_at
        self._roster = None

    def _clients_of(self, row: int) -> Rows:
        return np.arange(row * self._clients, (row + 1) * self._clients)

    def _rows(self, items: Items) -> Rows:
        """Return the place of each item among the clients of all courses."""
        return items.course * self._clients + items.client

    def _trained(self, values: Values | None) -> Parameters:
        """Return views of the parameters that the server's optimiser updates."""
        return {} if values is None else self._trainer.views(values, self._trainer.untrained)

    def _context(self, items: Items | None = None) -> Context:
        def variates() -> Parameters:
            if items is None or self._variates is None:
                return {}
            return self._trained(self._trainer.take(self._variates, self._rows(items)))

        return self._settings.context(
            items, self.roster, self._names(items), self._server, variates
        )

    def _names(self, items: Items | None) -> Names:
        return self.roster.names(items)


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
    """What a client received, and what it made of it: one row each."""

    received: Values
    local: Values


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
    clock: JobClock,
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
            drawn = stream(seed, "asynchronous clients", begun).integers(len(idle))
            client = idle[int(drawn)]
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

    def configure(self, courses: Sequence[Course], needed: Sequence[Needs]) -> None:
        """Take the courses' hyperparameters; clients finish what they began as they began it."""
        super().configure(courses, needed)
        self._clocks = [course.clock or OneSecondEach() for course in courses]
        self._reports = [int(course.configuration.get(BUFFER, 1)) for course in courses]

    def step(self, feedback: Feedback | None, index: int, metrics: bool) -> None:
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
            kept = {job.number: flight.models[job.number] for job in flight.queue.in_flight}
            self._flights[row] = replace(flight, models=kept)

    def _begin(self, started: Sequence[tuple[int, Job]]) -> None:
        """Train what clients begin, all of them from the models as they are."""
        if not started:
            return
        models = [dict(flight.models) for flight in self._flights]
        take, items = self._trainer.take, self.roster.sorted(self._items(started))
        for part in self._trainer.portions(items, self.roster):
            local = self._train(part, self._parameters, kept=False).local
            for index, row in enumerate(part.course.tolist()):
                models[row][self._numbers[part.batch_key[index]]] = LocalModel(
                    take(self._parameters, np.array([row])), take(local, np.array([index]))
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
        for (row, job), weight in zip(arrived, discounts, strict=True):
            received, local = map(trainer.views, self._flights[row].models[job.number])
            share = weight / self._reports[row]
            for name, value in local.items():
                follows = self._algorithm.from_current or name in buffers
                before = current[name][:, row] if follows else received[name][:, 0]
                means[name][:, row] += share * (value[:, 0] - before)
        rate = self._algorithm.rate(self._context()).clip(max=1.0)
        for name in buffers:
            means[name][:] = current[name] + fit(rate, means[name]) * means[name]
        return total

    def _report(
        self, arrived: Sequence[tuple[int, Job]], feedback: Feedback, index: int, metrics: bool
    ) -> None:
        """Note reports when they arrive."""
        models = [self._flights[row].models[job.number] for row, job in arrived]
        received, local = map(self._trainer.concatenated, zip(*models, strict=True))
        result = LocalResult(self._items(arrived), received, local, {})
        mean = self._trainer.no_updates(len(self.positions))
        self._add_updates(result, self._parameters, mean)
        self._observe(result, self._parameters, mean, feedback, index, metrics)

    def _items(self, jobs: Sequence[tuple[int, Job]]) -> Items:
        """Return the items of jobs; random numbers are named by a job, as by a round elsewhere."""
        self._numbers = [job.number for _, job in jobs]
        return self.roster.items_of(
            np.array([row for row, _ in jobs]),
            np.array([job.client for _, job in jobs]),
            np.arange(len(jobs)),
        )

    def _names(self, items: Items | None) -> Names:
        if items is None:
            return super()._names(None)
        return Names(self._trainer.federation.seed, self._numbers, items.drawers)

    def sampled(self, ahead: int = 0) -> NDArray[np.bool_]:
        raise InvalidArgumentError(
            "`sampled` must not be asked of asynchronous courses, whose clients begin when others "
            f"are done, got {ahead} rounds ahead; use a synchronous algorithm"
        )

    def get(self, row: int) -> CourseState:
        return replace(super().get(row), in_flight=self._flights[row])

    def put(self, row: int, state: CourseState) -> None:
        super().put(row, state)
        if isinstance(state.in_flight, InFlight):
            self._flights[row] = state.in_flight
