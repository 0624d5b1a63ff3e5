"""The hyperparameters of a group's courses as tensors, per course and client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.fl.algorithms import Algorithm, Context, LocalSteps
from fedhpo_gym.fl.compiled.normal import normal_of
from fedhpo_gym.fl.draws import Names
from fedhpo_gym.fl.items import Items, Roster
from fedhpo_gym.fl.models import Model, Parameters
from fedhpo_gym.fl.packing import MOMENTUM, RATE_DECAY, Course

_Read = tuple[dict[str, Tensor], Tensor, Tensor]
"""What a `Context` says that no round changes: hyperparameters, `num_sampled`, `num_samples`."""


class Hyperparameters:
    """What the courses of a group are configured to do.

    Attributes:
        rate: (rows,) learning rates: a row for every course, or for each of its clients.
        decay: (rows,) factors of the parameters.
    """

    def __init__(
        self,
        courses: Sequence[Course],
        num_clients: int,
        model: Model,
        algorithm: Algorithm,
        device: torch.device,
    ) -> None:
        """Read the configurations of the courses.

        Raises:
            InvalidArgumentError: a configuration lacks what training needs.
        """
        self._courses = courses
        self._model = model
        self._algorithm = algorithm
        self._device = device
        self._num_clients = num_clients
        self._differ = any(course.own for course in courses)
        self._width = num_clients if self._differ else 1
        self._first_rate = self._values("learning_rate", None)
        self._weight_decay = self._values("weight_decay", 0.0)
        self._rate_decay = self._values(RATE_DECAY, 1.0)
        self._stopped = np.zeros(self._first_rate.shape, dtype=np.bool_)
        self.rate, self.decay = self._rates(self._first_rate)
        momentum = self._values(MOMENTUM, 0.0)
        self._momentum = self._tensor(momentum) if momentum.any() else None
        read = {**model.hyperparameters, **algorithm.hyperparameters}
        self._others = {k: self._tensor(self._values(k, v)) for k, v in read.items()}
        self._read_of: WeakKeyDictionary[Items | Roster, _Read] = WeakKeyDictionary()

    def stop(self, courses: NDArray[np.bool_]) -> None:
        """Let (courses,) take steps of length zero from now on."""
        rows = np.repeat(courses, self._width)
        self._stopped = self._stopped | rows
        stopped = torch.from_numpy(rows).to(self._device)
        self.rate = torch.where(stopped, 0.0, self.rate)
        self.decay = torch.where(stopped, 1.0, self.decay)

    def begin_round(self, finished: NDArray[np.int64], horizon: int) -> None:
        """Let learning rates decay: from the first round to the last, to `rate_decay` times.

        Args:
            finished: (courses,) rounds that courses have behind them.
            horizon: rounds that the courses will be trained for.
        """
        if (self._rate_decay == 1.0).all():
            return
        past = np.repeat(finished, self._width) / max(horizon - 1, 1)
        self.rate, self.decay = self._rates(self._first_rate * self._rate_decay**past)

    def _rates(self, rate: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
        """Return learning rates, and the factors of the parameters that follow from them."""
        decay = 1.0 - rate * self._weight_decay
        return (
            self._tensor(np.where(self._stopped, 0.0, rate)),
            self._tensor(np.where(self._stopped, 1.0, decay)),
        )

    def rows(self, items: Items) -> Tensor:
        """Return the index of each item in the first axis of `rate` and `decay`."""
        client = items.client if self._differ else 0
        return torch.from_numpy(items.course * self._width + client).to(self._device)

    def momentum(self, items: Items) -> Tensor | None:
        """Return the (items,) momentum of local steps; None where nobody has any."""
        return None if self._momentum is None else self._momentum[self.rows(items)]

    def of_model(self, items: Items) -> Mapping[str, Tensor]:
        """Return the model's hyperparameters, (items,) each."""
        rows = self.rows(items)
        names = self._model.hyperparameters
        return {name: self._others[name].index_select(0, rows) for name in names}

    def context(
        self,
        items: Items | None,
        roster: Roster,
        names: Names,
        horizon: int,
        state: Parameters,
        variates: Callable[[], Parameters],
    ) -> Context:
        """Return what the algorithm's hooks may know about items, or, for None, the courses.

        Args:
            items: the items.
            roster: who trains.
            names: whom random numbers are drawn for.
            horizon: rounds that the courses will be trained for.
            state: of the server.
            variates: see `Context`.
        """
        whose = roster if items is None else items
        if whose not in self._read_of:
            self._read_of[whose] = self._read(whose)
        values, sampled, samples = self._read_of[whose]
        return Context(
            hyperparameters=values,
            num_clients=self._num_clients,
            num_sampled=sampled,
            num_samples=samples,
            horizon=horizon,
            normal=lambda purpose, parameter: torch.from_numpy(
                normal_of(tuple(parameter.shape), names.seed, purpose, names.of_items)
            ).to(self._device),
            local=lambda: self._local(whose),
            norm=_norm,
            variates=variates,
            state=lambda: state if items is None else _of_items(state, items),
        )

    def _read(self, whose: Items | Roster) -> _Read:
        """Return the algorithm's hyperparameters, and what else is (items,) of a `Context`."""
        if isinstance(whose, Roster):
            rows = self._of_server()
            samples = np.full(len(self._courses), whose.samples.min())
        else:
            rows, samples = self.rows(whose), whose.samples
        values = {n: self._others[n][rows] for n in self._algorithm.hyperparameters}
        return values, self._tensor(whose.num_sampled), self._tensor(np.maximum(samples, 1))

    def _local(self, whose: Items | Roster) -> LocalSteps:
        if isinstance(whose, Roster):
            rows, steps = self._of_server(), whose.steps.min(axis=1)
        else:
            rows, steps = self.rows(whose), whose.steps
        rate = self.rate[rows]
        momentum = torch.zeros_like(rate) if self._momentum is None else self._momentum[rows]
        return LocalSteps(self._tensor(np.maximum(steps, 1)), rate, momentum)

    def _of_server(self) -> Tensor:
        """Return the first row of every course."""
        return torch.arange(len(self._courses), device=self._device) * self._width

    def _values(self, name: str, default: float | None) -> NDArray[np.float64]:
        values = np.empty((len(self._courses), self._width))
        for row, course in zip(values, self._courses, strict=True):
            value = course.value(name, np.nan if default is None else default)
            if np.isnan(value.base) and len(value.own) < self._num_clients:
                given = dict(course.configuration)
                raise InvalidArgumentError(f"a configuration needs {name!r}, got {given}")
            row[:] = value.base
            for client, own in value.own:
                row[client] = own
        return values.ravel()

    def _tensor(self, values: NDArray[np.generic]) -> Tensor:
        with np.errstate(over="ignore"):  # an absurd step size is infinite: its course diverges
            return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(self._device)


def _norm(values: Parameters) -> Tensor:
    """Return what `Context.norm` gives: every item by itself, in double precision."""
    like = next(iter(values.values()))
    total = like.new_zeros(like.shape[1], dtype=torch.float64)
    for value in values.values():
        for item in range(value.shape[1]):
            own = value[:, item].to(torch.float64).flatten()
            total[item] += (own * own).sum()
    norm: Tensor = total.sqrt().to(like.dtype)
    return norm


def _of_items(state: Parameters, items: Items) -> Parameters:
    return {name: value[:, items.course] for name, value in state.items()}
