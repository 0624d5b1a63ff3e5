"""One group of courses that are trained asynchronously: a round is an aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.fl.algorithms import Asynchronous
from fedhpo_gym.fl.algorithms.asynchronous import BUFFER
from fedhpo_gym.fl.draws import Names
from fedhpo_gym.fl.feedback import Observer
from fedhpo_gym.fl.flights import Even, Flying, Job, Queue, until_aggregation
from fedhpo_gym.fl.items import Items, split_items
from fedhpo_gym.fl.lockstep import Lockstep
from fedhpo_gym.fl.models import Parameters
from fedhpo_gym.fl.models.base import fit
from fedhpo_gym.fl.packing import Course
from fedhpo_gym.fl.records import MAX_LOCAL_BYTES, CourseState, Feedback


class Made(NamedTuple):
    """What a client received, and what it made of it: parameters, without items."""

    received: Parameters
    local: Parameters


class AsynchronousLockstep(Lockstep):
    """Trains courses of an `Asynchronous` algorithm.

    A client's training is computed when it begins, with the hyperparameters of that moment, and
    counts when virtual time has come to its end. Two models are kept for every client that trains.
    """

    _algorithm: Asynchronous

    def __init__(self, positions: Sequence[int], *others: Any) -> None:
        """See `Lockstep.__init__`.

        Raises:
            InvalidArgumentError: a part of the model stays with the clients.
        """
        super().__init__(positions, *others)
        self._flying = [Flying(Queue(), {}) for _ in positions]
        self._numbers: list[int] = []
        if self.personal_names:
            raise InvalidArgumentError(
                f"`algorithm` must not be {self._algorithm.name!r} for a model of which a part "
                f"stays with the clients, such as {min(self.personal_names)!r}; use a synchronous "
                "one"
            )

    def configure(self, courses: Sequence[Course]) -> None:
        """See `Lockstep.configure`; what clients have begun they finish as they began it."""
        super().configure(courses)
        self._clocks = [course.clock or Even() for course in courses]
        self._reports = [int(course.configuration.get(BUFFER, 1)) for course in courses]

    def step(self, feedback: Feedback | None, index: int, metrics: bool) -> None:
        """Train until every course has had one more aggregation; see `Group.step`."""
        observer = self._observer(feedback, index, metrics)
        self._settings.begin_round(self._started + self.elapsed, self._horizon)
        took, started, arrived = np.zeros(len(self._flying)), [], []
        for course, flying in enumerate(self._flying):
            queue, new, done = until_aggregation(
                flying.queue,
                self._version(course),
                reports=self._reports[course],
                at_once=int(self.roster.num_sampled[course]),
                num_clients=self.prepared.num_clients,
                clock=self._clocks[course],
                seed=self.prepared.federation.seed,
            )
            took[course] = queue.now_s - flying.queue.now_s
            started += [(course, job) for job in new]
            arrived += [(course, job) for job in done]
            self._flying[course] = Flying(queue, flying.made)
        self.seconds = took
        self._begin(started)
        if observer is not None:
            self._report(arrived, observer)
        average = self._mean(arrived)
        self.elapsed += 1
        self._commit(self.parameters, average)
        for course, flying in enumerate(self._flying):
            kept = {job.number: flying.made[job.number] for job in flying.queue.flying}
            self._flying[course] = replace(flying, made=kept)

    def _begin(self, started: Sequence[tuple[int, Job]]) -> None:
        """Train what clients begin, all of them from the models as they are."""
        if not started:
            return
        items = self._items(started)
        items = items.take(np.lexsort((-items.steps, items.width)))
        size = sum(value.numel() * value.element_size() for value in self.parameters.values())
        made: list[dict[int, Made]] = [dict(flying.made) for flying in self._flying]
        for part in split_items(items, size // len(self._flying), MAX_LOCAL_BYTES):
            local = self._train(part, self.parameters)
            for index, course in enumerate(part.course.tolist()):
                made[course][self._numbers[part.batch_key[index]]] = Made(
                    {name: value[:, course].clone() for name, value in self.parameters.items()},
                    {name: value[:, index].clone() for name, value in local.items()},
                )
        for course, flying in enumerate(self._flying):
            self._flying[course] = replace(flying, made=made[course])

    def _mean(self, arrived: Sequence[tuple[int, Job]]) -> Parameters:
        """Return the mean of discounted updates; of running statistics, what they become."""
        weights = self._discounts(arrived)
        total = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        for (course, job), weight in zip(arrived, weights, strict=True):
            made = self._flying[course].made[job.number]
            for name, local in made.local.items():
                current = self.parameters[name][:, course]
                follows = self._algorithm.from_current or name in self._model.buffers
                before = current if follows else made.received[name]
                total[name][:, course] += weight / self._reports[course] * (local - before)
        rate = self._algorithm.rate(self._context()).clamp(max=1.0)
        for name in self._model.buffers:
            total[name] = self.parameters[name] + fit(rate, total[name]) * total[name]
        return total

    def _discounts(self, arrived: Sequence[tuple[int, Job]]) -> Tensor:
        """Return (reports,): how much each counts, by how old it is."""
        ages = [float(self._version(course) - job.version) for course, job in arrived]
        context = self._context(self._items(arrived))
        found: Tensor = self._algorithm.discount(torch.tensor(ages, device=self._device), context)
        return found

    def _report(self, arrived: Sequence[tuple[int, Job]], observer: Observer) -> None:
        """Let the observer see reports when they arrive."""
        items = self._items(arrived)
        made = [self._flying[course].made[job.number] for course, job in arrived]
        received, local = (
            {name: torch.stack([one[i][name] for one in made], dim=1) for name in self.parameters}
            for i in range(2)
        )
        observer.add(items, received, local)
        observer.see(items, received, local)

    def _items(self, jobs: Sequence[tuple[int, Job]]) -> Items:
        """Return the items of jobs; random numbers are named by a job, as by a round elsewhere."""
        self._numbers = [job.number for _, job in jobs]
        return self.roster.items_of(
            np.array([course for course, _ in jobs]),
            np.array([job.client for _, job in jobs]),
            np.arange(len(jobs)),
        )

    def _names(self, items: Items | None) -> Names:
        if items is None:
            return super()._names(None)
        return Names(self.prepared.federation.seed, self._numbers, items.drawers)

    def _version(self, course: int) -> int:
        return int(self._started[course]) + self.elapsed

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
        """See `Lockstep.get`."""
        return replace(super().get(row), flying=self._flying[row])

    def put(self, row: int, state: CourseState) -> None:
        """See `Lockstep.put`."""
        super().put(row, state)
        if isinstance(state.flying, Flying):
            self._flying[row] = state.flying
