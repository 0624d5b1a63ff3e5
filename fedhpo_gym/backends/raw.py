"""Real training with the suite's own engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedhpo_gym.backends import training
from fedhpo_gym.backends.base import Backend
from fedhpo_gym.backends.curves import best_rounds
from fedhpo_gym.fl.engine import CourseBatch, Curves
from fedhpo_gym.schema import Evaluation, Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import Task

MAX_COURSES_KEPT = 32


class Raw(Backend):
    """Trains the courses of a configuration, one per seed, as one batch.

    Courses are kept for a while: asking for more rounds of a configuration goes on from where it
    stopped, asking for fewer reads the curve.
    """

    name = "raw"

    def __init__(self, task: Task, seed: int | None = None, device: str = "cpu") -> None:
        """Load the task's data and build its federations.

        Raises:
            MissingDataError: the data cannot be had; names the download command.
            MissingDependencyError: an extra is not installed.
            InvalidArgumentError: the seed is no seed, or torch cannot use the device.
        """
        super().__init__(task, seed, task.space, task.fidelity_space)
        self._device = device
        self._samples = np.stack(
            [training.task_federation(task, s).num_samples for s in self.seeds]
        )
        training.require_device(task, self.seeds[0], device)
        self._kept: OrderedDict[tuple[object, ...], tuple[CourseBatch, Curves]] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        """See `Backend.__reduce__`."""
        kind, arguments = super().__reduce__()
        return kind, (*arguments, self._device)

    @property
    def fingerprint(self) -> str:
        """See `Backend.fingerprint`."""
        return training.fingerprint(self.task)

    def _evaluate(self, configuration: Mapping[str, Value], fidelity: Fidelity) -> Evaluation:
        curves = self._curves(configuration, fidelity)
        metrics = curves.metrics[:, : np.searchsorted(curves.rounds, fidelity.round, "right")]
        best = np.stack(
            [
                best_rounds(metrics[[row]], self._samples[row])[0, -1]
                for row in range(len(self.seeds))
            ]
        )
        at = curves.diverged_at
        return Evaluation(
            best=metrics[np.arange(len(best)), best],
            current=metrics[:, -1].copy(),  # the curve is kept: nobody may write into it
            num_samples=self._samples,
            best_round=curves.rounds[best],
            diverged=(at > 0) & (at <= fidelity.round),
            seeds=self.seeds,
            fidelity=fidelity,
        )

    def _curves(self, configuration: Mapping[str, Value], fidelity: Fidelity) -> Curves:
        key = (*configuration.values(), fidelity.client_sample_rate)
        if key not in self._kept:
            courses = [
                training.make_course(self.task, configuration, fidelity.client_sample_rate, seed)
                for seed in self.seeds
            ]
            batch = training.make_batch(self.task, courses, self._device)
            self._kept[key] = (batch, batch.advance(0))
            if len(self._kept) > MAX_COURSES_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        batch, curves = self._kept[key]
        done = int(curves.rounds[-1]) if len(curves.rounds) else 0
        if fidelity.round > done:
            evaluated = [r - done for r in self.task.evaluated_rounds if r > done]
            more = batch.advance(fidelity.round - done, evaluated=evaluated)
            metrics = np.concatenate([curves.metrics, more.metrics], axis=1)
            rounds = np.concatenate([curves.rounds, more.rounds + done])
            curves = Curves(metrics, rounds, more.diverged_at)
            self._kept[key] = (batch, curves)
        return curves
