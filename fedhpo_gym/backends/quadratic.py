"""Courses on federations of quadratics: x of client i becomes c_i + a^E (x - c_i) + noise.

Client i has f_i(x) = h_i / 2 |x - c_i|^2, and takes E steps x - eta (h_i (x - c_i) + sigma xi) with
standard normal xi; so a is 1 - eta h_i. Clients come in pairs with the same h_i and opposite c_i:
the mean F of the f_i has its minimum at 0, and F(x) - F(0) is half the mean curvature times |x|^2.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.base import Configuration, Courses, CourseSnapshot, Metrics, TrainingReport
from fedhpo_gym.core.arrays import Bools, Floats, Integers
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream, streams
from fedhpo_gym.evaluation.client_feedback import ClientFeedback
from fedhpo_gym.evaluation.records import SPLITS, Fidelity
from fedhpo_gym.space.per_client import client_values
from fedhpo_gym.tasks import Instance, Task
from fedhpo_gym.tasks.quadratic import QuadraticTask

VERSION = 1
"""Raised when what a seed gives changes."""
LARGEST = 1e30
"""A course has diverged when its loss is above: that of any client is still a finite float32."""


@dataclass(frozen=True, eq=False)
class Quadratics:
    """The clients of one instance, and where courses on it begin."""

    curvature: Floats  # (clients,) h_i
    optima: Floats  # (clients, d) c_i
    noise: float  # sigma, of every coordinate of a gradient
    first: Floats  # (d,) the untrained model

    @classmethod
    def of(cls, task: QuadraticTask, instance: Instance) -> Self:
        """Draw an instance; those of one seed differ by how far the optima lie apart alone."""
        rng = stream(instance.seed, "quadratics")
        pairs, size = task.num_clients // 2, task.num_parameters
        (between, within), (low, high) = task.spreads, task.noise
        logs = between * rng.uniform(-1.0, 1.0) + within * rng.uniform(-1.0, 1.0, pairs)
        noise = low * math.pow(high / low, rng.uniform())
        # Not numpy's exponential, whose last bits depend on the processor.
        curvature = np.tile([task.curvature * math.exp(log) for log in logs.tolist()], 2)
        mean = float(curvature.mean())
        start = math.sqrt(2.0 * task.chance_loss / mean)  # |x| where F(x) - F(0) is that loss
        unit = start / math.sqrt(size)
        apart = task.distance / math.sqrt(2.0 * instance.alpha + 1.0)
        optima = apart * unit * rng.standard_normal((pairs, size))
        direction = rng.standard_normal(size)
        first = direction * (start / math.sqrt(float((direction**2).sum())))
        return cls(curvature, np.concatenate([optima, -optima]), noise * mean * unit, first)

    @property
    def scale(self) -> float:
        """What |x|^2 is multiplied by in F(x) - F(0)."""
        return float(self.curvature.mean()) / 2.0


def local_steps(factor: Floats, steps: NDArray[np.integer]) -> tuple[Floats, Floats]:
    """Return a^E, and the variance a^0 + a^2 + ... + a^(2 (E - 1)) of the noise of E steps.

    By products alone, whose bits do not depend on the company of a number.
    """
    power, variance = np.ones_like(factor), np.zeros_like(factor)
    for step in range(int(steps.max())):
        on = step < steps
        power = np.where(on, power * factor, power)
        variance = np.where(on, variance * factor * factor + 1.0, variance)
    return power, variance


class QuadraticState(NamedTuple):
    """Where a course stands."""

    model: Floats
    rounds: int
    diverged: bool


class QuadraticCourses(Courses):
    """N courses of federated averaging on quadratics; accuracy and F1 are 1 / (1 + loss).

    The loss of client i is h_i / 2 |x|^2: its excess loss, in the mean with its mirror image. The
    mean over clients is F(x) - F(0), in all splits.
    """

    name: ClassVar[str] = "quadratic"

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
    ) -> None:
        del horizon  # rounds do not depend on how many are to come
        if not isinstance(task, QuadraticTask):
            raise InvalidArgumentError(
                f"`backend` must not be {self.name!r} for {task.name}, whose clients have data"
            )
        self._task, self._local, self._moves = task, local_metrics, report_moves
        self._seeds = [instance.seed for instance in instances]
        each = [Quadratics.of(task, instance) for instance in instances]
        names = ("curvature", "optima", "noise", "scale", "first")
        self._curvature, self._optima, self._sigma, self._scale, self._first = (
            np.stack([getattr(quadratics, name) for quadratics in each]) for name in names
        )
        self._most = self._cohort(float(task.fidelity_space["client_sample_rate"].high))
        self._on = np.zeros(num_courses, np.int64)
        self._model = self._first[self._on]
        self._move = np.zeros_like(self._model)
        self._rounds = np.zeros(num_courses, np.int64)
        self._diverged = np.zeros(num_courses, np.bool_)
        self.configure([configuration] * num_courses, [client_sample_rate] * num_courses)

    @property
    def fingerprint(self) -> str:
        read = ("key", "num_clients", "num_parameters", "chance_loss")
        random_fields = ("curvature", "spreads", "distance", "noise")
        text = repr((VERSION, [getattr(self._task, name) for name in (*read, *random_fields)]))
        return f"quadratic-sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def num_samples(self) -> Integers:
        return np.ones((len(self._on), self._task.num_clients, len(SPLITS)), np.int64)

    @property
    def most_samples(self) -> Integers:
        return np.ones(self._task.num_clients, np.int64)

    def start(self, positions: Sequence[int], instances: Sequence[int]) -> None:
        where = list(positions)
        self._on[where] = instances
        self._model[where] = self._first[self._on[where]]
        self._move[where], self._rounds[where], self._diverged[where] = 0.0, 0, False

    def first_metrics(self, positions: Sequence[int]) -> Metrics:
        on = self._on[list(positions)]
        return _metrics(self._curvature[on], self._first[on][:, None])

    def configure(
        self, configurations: Sequence[Configuration], client_sample_rates: Sequence[float]
    ) -> None:
        clients = self._task.num_clients
        self._rates, steps = (
            client_values(
                configurations,
                name,
                [float(configuration[name]) for configuration in configurations],
                clients,
            )
            for name in ("learning_rate", "step_size")
        )
        self._steps = steps.astype(np.int64)
        self._count = np.array([self._cohort(rate) for rate in client_sample_rates])

    def _cohort(self, rate: float) -> int:
        return Fidelity(1, rate).sampled_clients(self._task.num_clients)

    def sampled(self, rounds: int) -> Bools:
        will_train = np.zeros((len(self._on), self._task.num_clients), np.bool_)
        for ahead in range(rounds):
            who, active, _ = self._draw(ahead)
            will_train[np.arange(len(who))[:, None], who] |= active
        return will_train

    def _draw(self, ahead: int) -> tuple[Integers, Bools, Floats]:
        """Return (N, most) clients, which of them train, and the noise (N, most, d) of each."""
        who = np.empty((len(self._on), self._most), np.int64)
        noise = np.empty((*who.shape, self._task.num_parameters))
        keys = zip(self._on.tolist(), (self._rounds + ahead).tolist(), strict=True)
        stream_names = [(self._seeds[on], round_index) for on, round_index in keys]
        for row, rng in enumerate(streams("quadratic round", stream_names)):
            who[row] = rng.permutation(self._task.num_clients)[: self._most]
            noise[row] = rng.standard_normal(noise.shape[1:])
        return who, np.arange(self._most) < self._count[:, None], noise

    def advance(self, rounds: int) -> TrainingReport:
        feedback = ClientFeedback.empty(len(self._on), rounds, self._task.num_clients)
        begin, courses = self._model, np.arange(len(self._on))[:, None]
        for index in range(rounds):
            clients, reports = self._round()
            for name, values in reports.items():
                getattr(feedback, name)[courses, index, clients] = values
        move = self._model - begin
        product = (move * self._move).sum(axis=1) if self._moves else None
        self._move = move
        metrics = _metrics(self._curvature[self._on], self._model[:, None])
        return TrainingReport(metrics, self._diverged.copy(), feedback, product)

    def _round(self) -> tuple[Integers, dict[str, NDArray[Any]]]:
        """Train a round; return the (N, most) clients and their (N, most, ...) feedback by name."""
        who, active, noise = self._draw(0)
        on, model = self._on[:, None], self._model[:, None]
        rates = np.take_along_axis(self._rates, who, axis=1)
        steps = np.take_along_axis(self._steps, who, axis=1)
        curvature = self._curvature[on, who]
        power, variance = local_steps(1.0 - rates * curvature, steps)
        spread = rates * self._sigma[on] * np.sqrt(variance)
        update = (power - 1.0)[..., None] * (model - self._optima[on, who])
        update = np.where(active[..., None], update + spread[..., None] * noise, 0.0)
        mean = update.sum(axis=1) / self._count[:, None]
        norm = np.sqrt((update * update).sum(axis=2))
        both = norm * np.sqrt((mean * mean).sum(axis=1))[:, None]
        product = (update * mean[:, None]).sum(axis=2)
        alignment = product / np.where(both > 0.0, both, 1.0)
        reports = {"sampled": active, "update_norm": norm, "alignment": alignment}
        if self._local:
            for name, trained in (("before", model), ("after", model + update)):
                metrics = _metrics(curvature, trained)
                reports[name] = np.where(active[..., None, None], metrics, 0.0)
        after = self._model + mean
        losses = self._scale[self._on] * (after * after).sum(axis=1)
        self._diverged = self._diverged | (losses > LARGEST)
        self._model = np.where(self._diverged[:, None], self._model, after)
        self._rounds += 1
        return who, reports

    def snapshot(self, position: int) -> CourseSnapshot:
        rounds, diverged = int(self._rounds[position]), bool(self._diverged[position])
        state = QuadraticState(self._model[position].copy(), rounds, diverged)
        return CourseSnapshot(int(self._on[position]), state, self._move[position].copy())

    def restore(self, position: int, snapshot: CourseSnapshot) -> None:
        if not isinstance(snapshot.state, QuadraticState):
            what = type(snapshot.state).__name__
            raise InvalidArgumentError(f"`snapshot` must be of courses on quadratics, got {what}")
        self._on[position] = snapshot.instance
        self._model[position], self._rounds[position], self._diverged[position] = snapshot.state
        self._move[position] = cast("Floats", snapshot.move)


def _metrics(curvature: Floats, models: Floats) -> Metrics:
    """Return (..., splits, metrics) of models (..., d); all splits are alike."""
    losses = curvature / 2.0 * (models * models).sum(axis=-1)
    right = 1.0 / (1.0 + losses)
    metrics = np.stack([losses, right, right], axis=-1).astype(np.float32)
    return np.repeat(metrics[..., None, :], len(SPLITS), axis=-2)
