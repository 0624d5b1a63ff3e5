"""Courses that are trained asynchronously: a round is an aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.fl.algorithms import Asynchronous
from fedhpo_gym.fl.algorithms.asynchronous import BUFFER
from fedhpo_gym.fl.compiled.group import CourseGroup, Numbers
from fedhpo_gym.fl.compiled.training import Items, add_updates
from fedhpo_gym.fl.flights import Even, Flying, Job, Queue, until_aggregation
from fedhpo_gym.fl.models.description import fit
from fedhpo_gym.fl.packing import Course
from fedhpo_gym.fl.records import CourseState, Feedback


class Made(NamedTuple):
    """What a client received, and what it made of it: (numbers,) each."""

    received: Numbers
    local: Numbers


class AsynchronousGroup(CourseGroup):
    """Trains courses of an `Asynchronous` algorithm.

    A client's training is computed when it begins, with the hyperparameters of that moment, and
    counts when virtual time has come to its end. Two models are kept for every client that trains.
    """

    _algorithm: Asynchronous

    def __init__(self, positions: Sequence[int], courses: Sequence[Course], *others: Any) -> None:
        """See `CourseGroup.__init__`.

        Raises:
            InvalidArgumentError: a part of the model stays with the clients.
        """
        self._flying = [Flying(Queue(), {}) for _ in courses]
        super().__init__(positions, courses, *others)
        if self._personal_names:
            raise InvalidArgumentError(
                f"`algorithm` must not be {self._algorithm.name!r} for a model of which a part "
                f"stays with the clients, such as {min(self._personal_names)!r}; use a synchronous "
                "one"
            )

    def configure(self, courses: Sequence[Course]) -> None:
        """See `CourseGroup.configure`; what clients have begun they finish as they began it."""
        super().configure(courses)
        self._clocks = [course.clock or Even() for course in courses]
        self._reports = [int(course.configuration.get(BUFFER, 1)) for course in courses]

    def restart(self, row: int) -> None:
        """See `CourseGroup.restart`."""
        super().restart(row)
        self._flying[row] = Flying(Queue(), {})

    def step(self, feedback: Feedback | None, index: int, metrics: bool) -> None:
        """Train until every course has had one more aggregation."""
        self._chosen.begin_round(self._finished)
        took, arrived = np.zeros(len(self._flying)), []
        started: list[tuple[int, Job]] = []
        for row, flying in enumerate(self._flying):
            queue, new, done = until_aggregation(
                flying.queue,
                int(self._finished[row]),
                reports=self._reports[row],
                at_once=int(self._chosen.num_sampled[row]),
                num_clients=self._clients,
                clock=self._clocks[row],
                seed=self.problem.federation.seed,
            )
            took[row] = queue.now_s - flying.queue.now_s
            started += [(row, job) for job in new]
            arrived += [(row, job) for job in done]
            self._flying[row] = Flying(queue, flying.made)
        self.seconds = took
        self._begin(started)
        if feedback is not None:
            self._show(arrived, feedback, index, metrics)
        average = self._mean(arrived)
        self._finished += 1
        self._commit(self._numbers, average)
        for row, flying in enumerate(self._flying):
            kept = {job.number: flying.made[job.number] for job in flying.queue.flying}
            self._flying[row] = replace(flying, made=kept)

    def _begin(self, started: Sequence[tuple[int, Job]]) -> None:
        """Train what clients begin, all of them from the models as they are."""
        if not started:
            return
        items = _items_of(started)
        received = self._numbers[items.course]
        local = received.copy()
        self._train(items, local)
        made: list[dict[int, Made]] = [dict(flying.made) for flying in self._flying]
        for place, (row, job) in enumerate(started):
            made[row][job.number] = Made(received[place], local[place])
        for row, flying in enumerate(self._flying):
            self._flying[row] = replace(flying, made=made[row])

    def _mean(self, arrived: Sequence[tuple[int, Job]]) -> Numbers:
        """Return the mean of discounted updates; of running statistics, what they become."""
        total = np.zeros_like(self._numbers)
        buffers = self.problem.model.buffers
        views, means = self._layout.views(self._numbers), self._layout.views(total)
        weights = self._discounts(arrived)
        for (row, job), weight in zip(arrived, weights, strict=True):
            made = self._flying[row].made[job.number]
            share = weight / np.float32(self._reports[row])
            received, local = (self._layout.views(one[None]) for one in made)
            for name, value in local.items():
                follows = self._algorithm.from_current or name in buffers
                before = views[name][:, row] if follows else received[name][:, 0]
                means[name][:, row] += share * (value[:, 0] - before)
        rate = np.minimum(self._algorithm.rate(self._context()), np.float32(1.0))
        for name in buffers:
            means[name][...] = views[name] + fit(rate, means[name]) * means[name]
        return total

    def _discounts(self, arrived: Sequence[tuple[int, Job]]) -> NDArray[np.float32]:
        """Return (reports,): how much each counts, by how old it is."""
        ages = [float(self._finished[row] - job.version) for row, job in arrived]
        staleness = np.array(ages, dtype=np.float32)
        found = self._algorithm.discount(staleness, self._context(_items_of(arrived)))
        return np.asarray(found)

    def _show(
        self, arrived: Sequence[tuple[int, Job]], feedback: Feedback, index: int, metrics: bool
    ) -> None:
        """Note reports when they arrive."""
        items = _items_of(arrived)
        made = [self._flying[row].made[job.number] for row, job in arrived]
        received, local = (np.stack([one[i] for one in made]) for i in range(2))
        samples = self.problem.num_samples[items.client]
        total = np.bincount(items.course, samples, minlength=len(self.positions))
        weight = (samples / np.maximum(total, 1)[items.course]).astype(np.float32)
        mean = self._no_updates()
        add_updates(items, weight, received, local, mean)
        self._observe(feedback, index, items, mean, received, local, metrics)

    def sampled(self, ahead: int = 0) -> NDArray[np.bool_]:
        """Refuse: who trains in a round is known when it is over.

        Raises:
            InvalidArgumentError: always.
        """
        raise InvalidArgumentError(
            "`sampled` must not be asked of asynchronous courses, whose clients begin when others "
            f"are done, got {ahead} rounds ahead; use a synchronous algorithm"
        )

    def get(self, row: int) -> CourseState:
        """See `CourseGroup.get`."""
        return replace(super().get(row), flying=self._flying[row])

    def put(self, row: int, state: CourseState) -> None:
        """See `CourseGroup.put`."""
        super().put(row, state)
        if isinstance(state.flying, Flying):
            self._flying[row] = state.flying


def _items_of(jobs: Sequence[tuple[int, Job]]) -> Items:
    """Return the items of jobs; random numbers are named by a job, as by a round elsewhere."""
    columns = ([row for row, _ in jobs], [job.client for _, job in jobs])
    numbers = [job.number for _, job in jobs]
    return Items(*(np.array(values, dtype=np.int64) for values in (*columns, numbers)))
