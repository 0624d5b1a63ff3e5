"""A crew without processes, for tests of what is made of a study: starting one takes seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

from fedhpo_gym.processes import Done, Work

J = TypeVar("J")


class CrewHere(Generic[J]):
    """Does the jobs of a `Crew` in this process; what a job raises ends the test."""

    def __init__(self, _size: int, work: Work[J]) -> None:
        self._work = work

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def do(self, jobs: Iterable[J], advance: Callable[[], None]) -> list[Any]:
        return [done.result for done in self.each(jobs, advance)]

    def each(
        self, jobs: Iterable[J], advance: Callable[[], None], _timeout_s: float = math.inf
    ) -> Iterator[Done[J]]:
        for job in jobs:
            yield Done(job, result=self._work(job, advance))
