"""Courses of round environments, trained by the engine of this package.

`open_courses("raw", ...)` creates `RunningCourses` for round environments. It wraps one
`fl.engine.CourseBatch`, which trains all N courses together. It adds instances that differ in seed
and alpha, snapshots of single courses, and the moves of the global model. A course refers to its
data by the index of its instance, because two instances may share a seed.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms import get_algorithm
from fedhpo_gym.backends import training
from fedhpo_gym.backends.base import Configuration, Courses, CourseSnapshot, Metrics, TrainingReport
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl.course import Course, CourseState
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.tasks import Instance, Task

Move = NDArray[np.float64]
"""(parameters,) difference of a global model after and before some rounds."""


class RunningCourses(Courses):
    """N courses of one task, each on an instance, that train the same rounds as one batch."""

    def __init__(
        self,
        task: Task,
        instances: Sequence[Instance],
        num_courses: int,
        configuration: Configuration,
        client_sample_rate: float,
        *,
        device: str = "cpu",
        horizon: int,
        local_metrics: bool = False,
        report_moves: bool = False,
    ) -> None:
        self._task = task
        # Two instances may share a seed and differ in alpha: data are found by the index of the
        # instance, and the federation holds the seed of all random streams.
        alone = {instance.alpha: task.variant(alpha=instance.alpha) for instance in instances}
        self._sources = [(alone[instance.alpha], instance.seed) for instance in instances]
        self._configuration = dict(configuration)
        self._model = training.model_of(task, configuration)
        self._rate = client_sample_rate
        self._options: dict[str, Any] = {
            "device": device,
            "horizon": horizon,
            "local_metrics": local_metrics,
            "precision": task.precision,
        }
        self._first: dict[int, Metrics] = {}
        training.require_device(task, instances[0].seed, device)
        self._where = [0] * num_courses
        self._num_samples = np.stack([self._federation(0).num_samples] * num_courses)
        self._report_moves = report_moves
        self._moves: list[Move | None] = [None] * num_courses
        self._batch = self._new_batch(self._where)

    def __getstate__(self) -> dict[str, Any]:
        state = {k: v for k, v in self.__dict__.items() if k not in ("_batch", "_first")}
        return {**state, "states": self._batch.snapshot(), "courses": self._batch.courses}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Create the batch again and restore its state."""
        states, courses = state.pop("states"), state.pop("courses")
        self.__dict__.update(state)
        self._first = {}
        self._batch = self._new_batch(self._where)
        self._batch.configure(courses)
        self._batch.restore(states)

    @property
    def fingerprint(self) -> str:
        return training.fingerprint(self._task)

    @property
    def former_engines(self) -> dict[str, tuple[int, int]]:
        """Fingerprints of earlier engines, with their version and the present one."""
        return training.former_engines(self._task)

    @property
    def num_samples(self) -> NDArray[np.int64]:
        return self._num_samples

    @property
    def most_samples(self) -> NDArray[np.int64]:
        each = [self._federation(index).num_samples for index in range(len(self._sources))]
        return np.asarray(np.max(each, axis=0)[:, 0])

    def start(self, positions: Sequence[int], instances: Sequence[int]) -> None:
        courses, stay = list(self._batch.courses), []
        for position, index in zip(positions, instances, strict=True):
            if self._where[position] == index:
                stay.append(position)
            self._where[position], self._moves[position] = index, None
            courses[position] = self._fresh(index)
            self._num_samples[position] = self._federation(index).num_samples
        data = {index: self._federation(index) for index in set(self._where)}
        self._batch.configure(courses, data)  # this restarts a course whose instance changed
        self._batch.restart(stay)

    def first_metrics(self, positions: Sequence[int]) -> Metrics:
        where = [self._where[position] for position in positions]
        for index in {*where} - {*self._first}:
            self._first[index] = self._new_batch([index]).evaluate()[0]
        return np.stack([self._first[index] for index in where])

    def configure(
        self, configurations: Sequence[Configuration], client_sample_rates: Sequence[float]
    ) -> None:
        self._batch.configure(
            [
                self._course(configuration, rate, index)
                for configuration, rate, index in zip(
                    configurations, client_sample_rates, self._where, strict=True
                )
            ]
        )

    def sampled(self, rounds: int) -> NDArray[np.bool_]:
        return self._batch.sampled(rounds)

    def advance(self, rounds: int) -> TrainingReport:
        before = self._models() if self._report_moves else None
        curves = self._batch.advance(rounds, evaluated=[rounds])
        feedback = curves.feedback
        assert feedback is not None  # noqa: S101 - `_new_batch` sets `observe`
        return TrainingReport(
            metrics=curves.metrics[:, -1],
            diverged=curves.diverged_at > 0,
            feedback=feedback,
            move_product=None if before is None else self._move_products(before),
        )

    def snapshot(self, position: int) -> CourseSnapshot:
        state = self._batch.snapshot()[position]
        return CourseSnapshot(self._where[position], state, self._moves[position])

    def restore(self, position: int, snapshot: CourseSnapshot) -> None:
        if not isinstance(snapshot.state, CourseState):
            raise InvalidArgumentError(
                "`snapshot` must be of courses on this engine, got a state of the type "
                f"{type(snapshot.state).__name__}"
            )
        if snapshot.instance != self._where[position]:
            self.start([position], [snapshot.instance])
        states = self._batch.snapshot()
        states[position] = snapshot.state
        self._batch.restore(states)
        self._moves[position] = cast("Move | None", snapshot.move)

    def _models(self) -> list[Move]:
        """Return the trainable parameters of every global model, one (parameters,) vector each."""
        fixed = self._model.buffers
        return [
            np.concatenate(
                [_numbers(value) for name, value in state.parameters.items() if name not in fixed]
            )
            for state in self._batch.snapshot()
            if state is not None
        ]

    def _move_products(self, before: Sequence[Move]) -> NDArray[np.float64]:
        """Return (N,) inner products of the moves since `before` and the previous moves."""
        products = np.zeros(len(before))
        for position, (old, new) in enumerate(zip(before, self._models(), strict=True)):
            move, last = new - old, self._moves[position]
            # Not a BLAS product: its order of summation may depend on memory alignment.
            products[position] = 0.0 if last is None else (move * last).sum()
            self._moves[position] = move
        return np.where(np.isfinite(products), products, 0.0)

    def _new_batch(self, where: Sequence[int]) -> CourseBatch:
        return CourseBatch(
            {index: self._federation(index) for index in set(where)},
            self._model,
            get_algorithm(self._task.algorithm),
            [self._fresh(index) for index in where],
            observe=True,
            **self._options,
        )

    def _fresh(self, index: int) -> Course:
        return self._course(self._configuration, self._rate, index)

    def _course(self, configuration: Configuration, rate: float, index: int) -> Course:
        samples = self._federation(index).num_samples[:, 0] if self._task.asynchronous else None
        return training.make_course(self._task, configuration, rate, index, samples)

    def _federation(self, index: int) -> Federation:
        return training.task_federation(*self._sources[index])


def _numbers(value: Any) -> Move:
    """Return an array, or a tensor on any device, as one vector."""
    values = value if isinstance(value, np.ndarray) else value.cpu().numpy()
    return values.astype(np.float64).ravel()
