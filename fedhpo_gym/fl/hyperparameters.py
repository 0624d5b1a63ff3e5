"""Hyperparameters of a group's courses as arrays, and the context of an algorithm's hooks.

A `Group` creates `Hyperparameters` whenever its courses are configured; trainers read learning
rates and other settings of local training from it. Arrays have a row for each course, or for each
(course, client) if a configuration sets values of single clients. `context` returns what the hooks
of an algorithm may read. A course that diverged gets rate 0 and decay 1: its steps change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms.base import Algorithm, Array, Context, LocalSteps, Parameters, copies
from fedhpo_gym.algorithms.settings import TRAINING
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.models.model import Model
from fedhpo_gym.fl.participants import ClientBatch, ClientSampler, StreamNames


class ArrayMaker(Protocol):
    """The part of a `Trainer` that hyperparameters need: its arrays, and arithmetic on them."""

    @property
    def federation(self) -> Federation:
        """The data that it trains on."""

    @property
    def model(self) -> Model:
        """The model that it trains."""

    def array(self, values: NDArray[Any]) -> Array:
        """Return numbers as the arrays of this trainer."""

    def power(self, base: Any, exponent: Any) -> Any:
        """Raise numbers to powers, rounded equally on every CPU."""

    def norm(self, values: Parameters) -> Array:
        """Return the (items,) Euclidean norms of parameters."""


class Hyperparameters:
    """The configurations of the courses of a group."""

    rate: Array  # (rows,) learning rates
    decay: Array  # (rows,) factors of the parameters in a step
    momentum: Array | None  # (rows,) factors of the last move that a step repeats
    stopped: NDArray[np.bool_]  # (courses,) whether a course takes steps of length zero

    def __init__(
        self, courses: Sequence[Course], trainer: ArrayMaker, algorithm: Algorithm, horizon: int
    ) -> None:
        self._courses = courses
        self._trainer = trainer
        self._algorithm = algorithm
        self._horizon = horizon
        self._num_clients = trainer.federation.num_clients
        self.width = self._num_clients if any(course.own for course in courses) else 1
        local = {name: setting.default for name, setting in TRAINING.items()}
        self._first_rate = self._values("learning_rate", local["learning_rate"])
        self._weight_decay = self._values("weight_decay", local["weight_decay"])
        self._rate_decay = self._values("rate_decay", local["rate_decay"])
        self.decays = bool((self._rate_decay != 1.0).any())
        momentum = self._values("momentum", local["momentum"])
        self.momentum = trainer.array(momentum) if momentum.any() else None
        of_model = trainer.model.hyperparameters
        if clashes := algorithm.server_names & of_model.keys():
            raise InvalidArgumentError(
                f"settings and dimensions of the server of {algorithm.name!r} must have other "
                f"names than hyperparameters of the model {type(trainer.model).__name__}, got "
                f"{sorted(clashes)}; rename them, as in 'server_{min(clashes)}'"
            )
        self._of_model = {k: trainer.array(self._values(k, v)) for k, v in of_model.items()}
        self._of_algorithm = [self._values(k, v) for k, v in algorithm.hyperparameters.items()]
        self._known: WeakKeyDictionary[ClientBatch | ClientSampler, Array] = WeakKeyDictionary()
        self.stopped = np.empty(0, dtype=np.bool_)

    def begin_round(self, finished: NDArray[np.int64], stopped: NDArray[np.bool_]) -> None:
        """Update learning rates, which decay from 1 to `rate_decay` times over the horizon."""
        if not self.decays and np.array_equal(stopped, self.stopped):
            return
        self.stopped = stopped
        rate = self._first_rate
        if self.decays:
            past = np.repeat(finished, self.width) / max(self._horizon - 1, 1)
            rate = rate * self._trainer.power(self._rate_decay, past)
        still = np.repeat(stopped, self.width)
        decay = 1.0 - rate * self._weight_decay
        self.rate = self._trainer.array(np.where(still, 0.0, rate))
        self.decay = self._trainer.array(np.where(still, 1.0, decay))

    def rows(self, items: ClientBatch) -> NDArray[np.int64]:
        """Return the row of each item."""
        return items.course * self.width + (items.client if self.width > 1 else 0)

    def of_model(self, items: ClientBatch) -> dict[str, Array]:
        """Return the model's hyperparameters, (items,) each."""
        rows = self.rows(items)
        return {name: values[rows] for name, values in self._of_model.items()}

    def context(
        self,
        items: ClientBatch | None,
        roster: ClientSampler,
        names: StreamNames,
        state: Parameters,
        variates: Callable[[], Parameters],
    ) -> Context:
        """Return the context of the algorithm's hooks for items, or for courses if None."""
        whose = roster if items is None else items
        if whose not in self._known:
            self._known[whose] = self._read(whose)
        array = self._trainer.array
        # A copy, because a hook may change it in place and later rounds read the same numbers.
        *values, num_sampled, num_samples = 1.0 * self._known[whose]

        def normal(purpose: str, like: Array) -> Array:
            from fedhpo_gym.fl.compiled.rng import normal_of

            return array(normal_of(tuple(like.shape), names.seed, purpose, names.of_items))

        return Context(
            hyperparameters=dict(zip(self._algorithm.hyperparameters, values, strict=True)),
            num_sampled=num_sampled,
            num_samples=num_samples,
            num_clients=self._num_clients,
            horizon=self._horizon,
            normal=normal,
            local=lambda: self._local(whose),
            norm=self._trainer.norm,
            variates=variates,
            state=lambda: (
                copies(state)
                if items is None
                else {n: v[:, items.course] for n, v in state.items()}
            ),
            power=lambda base, exponent: array(self._trainer.power(base, exponent)),
        )

    def _rows_of(self, whose: ClientBatch | ClientSampler) -> NDArray[np.int64]:
        """Return the row of each item, or the first one of every course."""
        if isinstance(whose, ClientBatch):
            return self.rows(whose)
        return np.arange(len(self._courses)) * self.width

    def _read(self, whose: ClientBatch | ClientSampler) -> Array:
        """Return (hyperparameters + 2, items): the part of a `Context` that no round changes."""
        rows, samples = self._rows_of(whose), whose.samples
        if isinstance(whose, ClientSampler):
            samples = np.full(len(self._courses), samples.min())
        counts = whose.num_sampled, np.maximum(samples, 1)
        return self._trainer.array(np.stack([*(v[rows] for v in self._of_algorithm), *counts]))

    def _local(self, whose: ClientBatch | ClientSampler) -> LocalSteps:
        steps = whose.steps.min(axis=1) if isinstance(whose, ClientSampler) else whose.steps
        rows = self._rows_of(whose)
        array = self._trainer.array
        momentum = array(np.zeros(len(rows))) if self.momentum is None else self.momentum[rows]
        return LocalSteps(array(np.maximum(steps, 1)), self.rate[rows], momentum)

    def _values(self, name: str, default: float | None) -> NDArray[np.float64]:
        usual = math.nan if default is None else default
        settings = [course.value(name, usual) for course in self._courses]
        values = np.array([float(setting.base) for setting in settings]).repeat(self.width)
        for row, (base, others) in enumerate(settings):
            if base != base and len(others) < self._num_clients:
                configuration = dict(self._courses[row].configuration)
                raise InvalidArgumentError(f"a configuration needs {name!r}, got {configuration}")
            for client, client_value in others:
                values[row * self.width + client] = client_value
        return values
