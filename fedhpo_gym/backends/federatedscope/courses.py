"""Courses of round environments, trained by FederatedScope.

`open_courses("federatedscope", ...)` creates `FederatedScopeCourses` for round environments.
FederatedScope cannot save the state of a course. A snapshot is therefore the list of steps that led
to it, each a configuration and a number of rounds, and restoring it trains these steps again unless
the remote course already stands at a prefix of them. Training is deterministic, so that the result
is the same.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fedhpo_gym.backends import training
from fedhpo_gym.backends.base import Configuration, Courses, CourseSnapshot, Metrics, TrainingReport
from fedhpo_gym.backends.federatedscope.backend import (
    LIMIT_S,
    REVISION,
    CourseRequest,
    RemoteCourse,
    checked_limit,
    described,
    hear_nothing,
)
from fedhpo_gym.backends.federatedscope.configuration import (
    CURRENT,
    bounded_norm,
    bounded_value,
    client_metrics,
    client_updates,
    cohort_size,
    first_metrics,
    is_finite,
    local_entries,
    parse_cohorts,
    require_layout,
    require_supported,
    server_values,
    whole,
)
from fedhpo_gym.backends.federatedscope.installation import find_installation
from fedhpo_gym.backends.federatedscope.process import Message, ProcessHandle
from fedhpo_gym.core.arrays import Bools, Integers
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.client_feedback import ClientFeedback
from fedhpo_gym.space import Value
from fedhpo_gym.space.per_client import split_clients
from fedhpo_gym.tasks import Instance, Task


@dataclass(frozen=True)
class _Step:
    """Some rounds with fixed hyperparameters."""

    configuration: Mapping[str, Value]
    client_sample_rate: float
    rounds: int


@dataclass(frozen=True, eq=False)
class _State:
    """State of a course: its steps, from which it can be trained again."""

    steps: tuple[_Step, ...] = ()  # all training so far
    metrics: Metrics | None = None  # (clients, splits, metrics) of its last finite model
    diverged: bool = False  # whether metrics became non-finite

    @property
    def rounds(self) -> int:
        return sum(step.rounds for step in self.steps)


@dataclass
class _Course:
    """A course, and the remote course that has done the first `done` of its steps."""

    instance: int
    next: _Step
    state: _State = field(default_factory=_State)
    remote: RemoteCourse | None = None
    done: int = 0

    def end(self) -> None:
        if self.remote is not None:
            self.remote.drop()
        self.remote, self.done = None, 0


class FederatedScopeCourses(Courses):
    """N courses of one task, each on an instance, that train one after the other.

    FederatedScope cannot save the state of a course: snapshots and pickles hold its steps.
    """

    name: ClassVar[str] = "federatedscope"

    def __init__(
        self,
        task: Task,
        instances: Sequence[Instance],
        num_courses: int,
        configuration: Configuration,
        client_sample_rate: float,
        *,
        horizon: int,
        local_metrics: bool = False,
        report_moves: bool = False,
        source: str | None = None,
        interpreter: str | None = None,
        time_limit_s: float = LIMIT_S,
    ) -> None:
        require_supported(task)
        if report_moves:
            raise InvalidArgumentError(
                "`report_moves` must be False for FederatedScope, got True: it does not report the "
                'moves of models; use backend="raw"'
            )
        self._task, self._instances = task, tuple(instances)
        self._horizon, self._measured = horizon, local_metrics
        self._limit_s = checked_limit(time_limit_s)
        self._first: dict[int, Metrics] = {}
        self._where = find_installation(source, interpreter)
        start = _Step(dict(configuration), client_sample_rate, 0)
        self._start = start
        self._courses = [_Course(0, start) for _ in range(num_courses)]
        self._lease = ProcessHandle(self._where)
        layout = self._lease.peer().versions.get("layout", "")
        require_layout(task, layout)
        if layout != CURRENT:
            raise InvalidArgumentError(
                "`source` must be newer than FederatedScope 0.1 for FedHPO-DAC-* ids: that version "
                "reads hyperparameters once, before the first round; FedHPO-* ids take it"
            )

    def __getstate__(self) -> dict[str, Any]:
        courses = [replace(course, remote=None, done=0) for course in self._courses]
        state = {k: v for k, v in self.__dict__.items() if k not in ("_lease", "_first")}
        return {**state, "_courses": courses}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the pickled state; a process is started when one is needed."""
        self.__dict__.update(state)
        self._first, self._lease = {}, ProcessHandle(self._where)

    @property
    def fingerprint(self) -> str:
        versions = self._lease.peer().versions
        values = [versions.get(name, "") for name in ("federatedscope", "torch", "numpy")]
        text = (
            f"{training.data_fingerprint(self._task)} {self._task.table_name} {values} {REVISION}"
        )
        return f"federatedscope-sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def num_samples(self) -> Integers:
        return np.stack([self._samples(course.instance) for course in self._courses])

    @property
    def most_samples(self) -> Integers:
        each = [self._samples(index) for index in range(len(self._instances))]
        return np.asarray(np.max(each, axis=0)[:, 0])

    def describe(self) -> dict[str, object]:
        return described(self._lease.peer())

    def close(self) -> None:
        for course in self._courses:
            course.end()
        self._lease.close()

    def start(self, positions: Sequence[int], instances: Sequence[int]) -> None:
        for position, index in zip(positions, instances, strict=True):
            self._courses[position].end()
            self._courses[position] = _Course(index, self._start)

    def first_metrics(self, positions: Sequence[int]) -> Metrics:
        metrics = []
        for position in positions:
            course = self._courses[position]
            if course.instance not in self._first:
                fresh = _Course(course.instance, self._start)
                answer = self._remote(fresh).evaluate()
                fresh.end()
                self._first[course.instance] = first_metrics(answer, self._samples(course.instance))
            metrics.append(self._first[course.instance])
        return np.stack(metrics)

    def configure(
        self, configurations: Sequence[Configuration], client_sample_rates: Sequence[float]
    ) -> None:
        courses = zip(self._courses, configurations, client_sample_rates, strict=True)
        for course, values, rate in courses:
            course.next = _Step(dict(values), rate, 0)

    def sampled(self, rounds: int) -> Bools:
        will_train = np.zeros((len(self._courses), self._task.num_clients), dtype=np.bool_)
        for row, course in zip(will_train, self._courses, strict=True):
            remaining_rounds = min(rounds, self._horizon - course.state.rounds)
            if remaining_rounds > 0 and not course.state.diverged:
                remote = self._remote(course)
                remote.configure(self._changes(course.next))
                answer = remote.cohorts(remaining_rounds)
                for cohort in parse_cohorts(answer, remaining_rounds, self._task.num_clients):
                    row[cohort] = True
        return will_train

    def advance(self, rounds: int) -> TrainingReport:
        feedback = ClientFeedback.empty(len(self._courses), rounds, self._task.num_clients)
        metrics = []
        for position, course in enumerate(self._courses):
            self._advance_course(course, rounds, feedback, position)
            if course.state.metrics is None:  # no round was finite
                initial = self.first_metrics([position])[0]
                course.state = replace(course.state, metrics=initial)
            metrics.append(course.state.metrics)
        return TrainingReport(
            metrics=np.array(metrics),
            diverged=np.array([course.state.diverged for course in self._courses]),
            feedback=feedback,
        )

    def snapshot(self, position: int) -> CourseSnapshot:
        course = self._courses[position]
        return CourseSnapshot(course.instance, course.state)

    def restore(self, position: int, snapshot: CourseSnapshot) -> None:
        if not isinstance(snapshot.state, _State):
            raise InvalidArgumentError(
                "`snapshot` must be of courses of FederatedScope, got a state of the type "
                f"{type(snapshot.state).__name__}"
            )
        course, state = self._courses[position], snapshot.state
        is_prefix = course.state.steps[: course.done] == state.steps[: course.done]
        if course.instance != snapshot.instance or not is_prefix or course.done > len(state.steps):
            course.end()
        last = state.steps[-1] if state.steps else self._start
        self._courses[position] = _Course(
            snapshot.instance, last, state, course.remote, course.done
        )

    def _advance_course(
        self, course: _Course, rounds: int, feedback: ClientFeedback, row: int
    ) -> None:
        """Train a course and write its row of the feedback; a diverged course does not change."""
        if course.state.diverged:
            return
        samples, state = self._samples(course.instance), course.state
        listener = CourseListener(feedback, row, state.rounds, samples, measured=self._measured)
        step = replace(course.next, rounds=rounds)
        self._take(self._remote(course), step, state.rounds, listener.read)
        steps = (*state.steps, step)
        course.done = len(steps)
        diverged = listener.metrics is None or not is_finite(listener.metrics)
        course.state = _State(steps, state.metrics if diverged else listener.metrics, diverged)
        if diverged:
            course.end()

    def _remote(self, course: _Course) -> RemoteCourse:
        """Return the remote course after all steps of the course; it trains missing ones again."""
        if course.remote is None or not course.remote.alive:
            course.remote, course.done = None, 0
            instance = self._instances[course.instance]
            start = course.state.steps[0] if course.state.steps else course.next
            request = CourseRequest(
                task=self._task.variant(alpha=instance.alpha),
                configuration={
                    **self._start.configuration,
                    **split_clients(start.configuration)[0],
                },
                client_sample_rate=start.client_sample_rate,
                seed=instance.seed,
                rounds=self._horizon,
                evaluated=None,
                watched=True,
                measured=self._measured,
            )
            course.remote = RemoteCourse(self._lease.peer(), request, self._limit_s)
        for step in course.state.steps[course.done :]:
            self._take(course.remote, step, course.remote.rounds, hear_nothing)
            course.done += 1
        return course.remote

    def _take(self, remote: RemoteCourse, step: _Step, done: int, hear: Any) -> None:
        remote.configure(self._changes(step))
        remote.advance(done + step.rounds, hear)

    def _changes(self, step: _Step) -> dict[str, Any]:
        """Return the changes of a step for all clients, for single clients and for the server."""
        shared, by_client = split_clients(step.configuration)
        return {
            "entries": self._client_entries(shared),
            # FederatedScope counts clients from 1.
            "clients": {str(c + 1): self._client_entries(v) for c, v in by_client.items()},
            "server": server_values(step.configuration) if self._task.algorithm == "fedopt" else {},
            "sample_client_num": cohort_size(self._task, step.client_sample_rate),
        }

    def _client_entries(self, values: Mapping[str, Value]) -> dict[str, Any]:
        entries = local_entries(values, CURRENT)
        if "mu" in values:  # FedProx's wrapper has copied `fedprox.mu` at the start
            entries["regularizer.mu"] = float(values["mu"])
        return entries

    def _samples(self, index: int) -> Integers:
        instance = self._instances[index]
        task = self._task.variant(alpha=instance.alpha)
        return training.task_federation(task, instance.seed).num_samples


class CourseListener:
    """Reads the messages of a course while it trains some rounds.

    Attributes:
        metrics: (clients, splits, metrics) after the last round; None until they arrive.
    """

    def __init__(
        self,
        feedback: ClientFeedback,
        row: int,
        finished_rounds: int,
        num_samples: Integers,
        *,
        measured: bool,
    ) -> None:
        """Write into a row of the feedback, with (clients, splits) samples.

        Args:
            feedback: feedback of all courses.
            row: position of the course.
            finished_rounds: rounds that the course had finished before.
            num_samples: (clients, splits) samples.
            measured: whether clients measure the model before and after training it.
        """
        self.metrics: Metrics | None = None
        self._feedback, self._row, self._finished_rounds = feedback, row, finished_rounds
        self._samples = num_samples
        self._measured = {"before": feedback.before, "after": feedback.after} if measured else {}

    def read(self, message: Message) -> None:
        """Write the contents of a message about a round into the feedback."""
        if "round" in message:
            self.metrics = client_metrics(message.get("clients"), self._samples)
        if "trained" not in message:
            return
        round_index = whole(message, "trained") - self._finished_rounds - 1
        feedback = self._feedback
        for client, entry in client_updates(message, len(self._samples)):
            at = self._row, round_index, client
            feedback.sampled[at] = True
            feedback.update_norm[at] = bounded_norm(entry)
            feedback.alignment[at] = bounded_value(entry, "alignment", -1.0, 1.0)
            for name, array in self._measured.items():
                array[at] = client_metrics({"1": entry.get(name)}, self._samples[[client]])[0]
