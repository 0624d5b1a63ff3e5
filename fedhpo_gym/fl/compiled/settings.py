"""The hyperparameters of a group's courses as arrays, per course and client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.algorithms import Algorithm, Context, LocalSteps
from fedhpo_gym.fl.compiled.elementary import power
from fedhpo_gym.fl.compiled.normal import normal_of
from fedhpo_gym.fl.compiled.training import Items, Settings, add_squares
from fedhpo_gym.fl.packing import FULL_BATCH, MOMENTUM, RATE_DECAY, Course

Array = NDArray[np.float32]


class Chosen:
    """What the courses of a group are configured to do.

    Attributes:
        local: what local training reads, without a pull.
        num_sampled: (courses,) clients per round.
        rows: the most rows of a minibatch.
    """

    local: Settings

    def __init__(
        self,
        courses: Sequence[Course],
        samples: NDArray[np.int64],
        algorithm: Algorithm,
        horizon: int,
        seed: int,
        min_rows: int,
    ) -> None:
        """Read the configurations of courses.

        Args:
            courses: the courses.
            samples: (clients,) training samples of the clients.
            algorithm: the algorithm.
            horizon: rounds the courses will be trained for.
            seed: of the federation.
            min_rows: rows of the smallest minibatch that is trained on.

        Raises:
            InvalidArgumentError: a configuration lacks what training needs.
        """
        self._courses = courses
        self._samples = samples
        self._fewest = samples.min()
        self._horizon = horizon
        self._seed = seed
        self._min_rows = min_rows
        self._width = len(samples) if any(course.own for course in courses) else 1
        self._first_rate = self._values("learning_rate", None)
        self._weight_decay = self._values("weight_decay", 0.0)
        self._rate_decay = self._values(RATE_DECAY, 1.0)
        self._decays = bool((self._rate_decay != 1.0).any())
        self._momentum = _floats(self._values(MOMENTUM, 0.0))
        self._batch_size = self._values("batch_size", FULL_BATCH).astype(np.int64)
        self._epochs = self._values("step_size", 1).astype(np.int64)
        read = algorithm.hyperparameters.items()
        self._others = {name: _floats(self._values(name, value)) for name, value in read}
        self.num_sampled = np.array(
            [Fidelity(0, c.client_sample_rate).sampled_clients(len(samples)) for c in courses]
        )
        self.rows = int(min(self._batch_size.max(), samples.max()))
        self._set_rates(self._first_rate)

    def begin_round(self, finished: NDArray[np.int64]) -> None:
        """Let learning rates decay: from the first round to the last, to `rate_decay` times.

        Args:
            finished: (courses,) rounds that courses have behind them.
        """
        if not self._decays:
            return
        last = max(self._horizon - 1, 1)
        rate = self._first_rate.copy()
        for row, rounds in enumerate(finished.tolist()):
            for column in range(self._width):
                rate[row, column] *= power(float(self._rate_decay[row, column]), rounds / last)
        self._set_rates(rate)

    def _set_rates(self, rate: NDArray[np.float64]) -> None:
        decay = _floats(1.0 - rate * self._weight_decay)
        none = np.zeros_like(decay)
        self.local = Settings(
            _floats(rate), decay, none, self._momentum, self._batch_size, self._epochs
        )

    def pulled(self, pull: Array, items: Items) -> Settings:
        """Return what local training reads with the (items,) strengths of a pull."""
        found = np.zeros_like(self.local.rate)
        found[items.course, items.client if self._width > 1 else 0] = pull
        return self.local._replace(pull=found)

    def context(
        self,
        items: Items | None,
        finished: NDArray[np.int64],
        state: Mapping[str, Any],
        variates: Callable[[], dict[str, Any]],
    ) -> Context:
        """Return what the algorithm's hooks may know about items, or, for None, the courses.

        Args:
            items: the items.
            finished: (courses,) rounds that courses have behind them.
            state: of the server.
            variates: see `Context`.
        """
        if items is None:
            rows: Any = slice(None)
            column: Any = 0
            samples = np.full(len(self._courses), self._fewest)
            sampled = self.num_sampled
        else:
            rows, column = items.course, items.client if self._width > 1 else 0
            samples = self._samples[items.client]
            sampled = self.num_sampled[items.course]
        return Context(
            hyperparameters={n: v[rows, column] for n, v in self._others.items()},
            num_clients=len(self._samples),
            num_sampled=_floats(sampled),
            num_samples=_floats(np.maximum(samples, 1)),
            horizon=self._horizon,
            normal=lambda purpose, value: normal_of(
                value.shape, self._seed, purpose, _names(items, finished)
            ),
            local=lambda: self._local(items, rows, column),
            norm=_norm,
            variates=variates,
            state=lambda: {name: value[:, rows] for name, value in state.items()},
            power=_powers,
        )

    def _local(self, items: Items | None, rows: Any, column: Any) -> LocalSteps:
        samples = self._samples[None, :]
        taken = _taken_steps(samples, self._batch_size, self._epochs, self._min_rows)
        steps = taken.min(axis=1) if items is None else taken[items.course, items.client]
        rate, momentum = self.local.rate[rows, column], self.local.momentum[rows, column]
        return LocalSteps(_floats(np.maximum(steps, 1)), rate, momentum)

    def _values(self, name: str, default: float | None) -> NDArray[np.float64]:
        values = np.empty((len(self._courses), self._width))
        for row, course in enumerate(self._courses):
            value = course.value(name, np.nan if default is None else default)
            if np.isnan(value.base) and len(value.own) < len(self._samples):
                given = dict(course.configuration)
                raise InvalidArgumentError(f"a configuration needs {name!r}, got {given}")
            values[row] = value.base
            for client, own in value.own:
                values[row, client] = own
        return values


def _norm(values: Mapping[str, Any]) -> Array:
    """Return what `Context.norm` gives: sums in double precision, number after number."""
    total = np.zeros(next(iter(values.values())).shape[1])
    for value in values.values():
        rows = np.moveaxis(value, 1, 0).reshape(len(total), -1)
        add_squares(np.ascontiguousarray(rows), total)
    return _floats(np.sqrt(total))


def _names(items: Items | None, finished: NDArray[np.int64]) -> Sequence[tuple[int, ...]]:
    """Return what names the random numbers of items, or, for None, of the courses."""
    if items is None:
        return [(number,) for number in finished.tolist()]
    return list(zip(items.number.tolist(), items.client.tolist(), strict=True))


def _powers(base: Array, exponent: Array) -> Array:
    """Raise numbers to powers, rounded alike on every processor."""
    pairs = np.broadcast_arrays(base, exponent)
    found = [power(float(b), float(e)) for b, e in zip(*(p.flat for p in pairs), strict=True)]
    return _floats(np.reshape(found, pairs[0].shape))


def _taken_steps(
    samples: NDArray[np.int64],
    batch_size: NDArray[np.int64],
    epochs: NDArray[np.int64],
    min_rows: int,
) -> NDArray[np.int64]:
    """Return how many local steps clients take in a round.

    Args:
        samples: how many they hold.
        batch_size: samples per minibatch.
        epochs: local epochs.
        min_rows: rows of the smallest minibatch that is trained on; smaller ones are left out.
    """
    full, rest = np.divmod(samples, batch_size)
    kept = (rest >= min_rows) & (rest > 0)
    steps: NDArray[np.int64] = epochs * (np.where(batch_size >= min_rows, full, 0) + kept)
    return steps


def _floats(values: NDArray[Any]) -> Array:
    with np.errstate(over="ignore"):  # an absurd step size is infinite: its course diverges
        return values.astype(np.float32)
