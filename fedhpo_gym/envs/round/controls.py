"""What an action of a round environment sets: the codec between actions and hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.systems import CourseHistory, Work
from fedhpo_gym.tasks import Task, work_of

RATE = "client_sample_rate"


class Controls:
    """The hyperparameters of a course: those an action sets, and those that are fixed."""

    def __init__(
        self,
        task: Task,
        *,
        dynamic: Sequence[str] | None = None,
        configuration: Mapping[str, Value] | None = None,
        client_sample_rate: float | None = None,
        per_client: bool = False,
    ) -> None:
        rate = task.fidelity_space[RATE]
        own = _rows(task) if per_client else task.space.dimensions
        offered = {d.name: d for d in (*own, rate)}
        free = [
            d.name
            for d in own
            # No running course can change the shape of its model.
            if d.name not in task.architecture and (d.scope == "client" or not per_client)
        ]
        chosen = free if dynamic is None else list(dynamic)
        if isinstance(dynamic, str) or not chosen or len(set(chosen)) < len(chosen):
            raise InvalidArgumentError(
                f"`dynamic` must be a list of distinct names, at least one, got {dynamic!r}"
            )
        for name in chosen:
            require_known("hyperparameter", name, offered)
            if name not in free and (per_client or name != RATE):
                raise InvalidArgumentError(
                    f"`dynamic` cannot hold {name!r}: it shapes the model, or the server decides "
                    f"it; it can hold {free}"
                )
        share = rate.high if client_sample_rate is None else client_sample_rate
        self._whole = SearchSpace(tuple(offered.values()))
        self.fixed = _fixed(self._whole, chosen, {RATE: share}, configuration or {})
        self.space = self._whole.fix(self.fixed)
        if silent := [name for name in chosen if name not in self.space]:
            raise InvalidArgumentError(
                f"`dynamic` must leave out what means nothing under {dict(self.fixed)}, got "
                f"{silent}"
            )
        self.num_rows = task.num_clients if per_client else None
        shape = (len(self.space),) if self.num_rows is None else (self.num_rows, len(self.space))
        self.action_space = gym.spaces.Box(-1.0, 1.0, shape, np.float32)
        self._task = task

    @property
    def default(self) -> dict[str, Value]:
        """The configuration in the middle of what actions can set."""
        middle = self.space.decode(np.zeros(len(self.space)))
        return self._whole.validate({**middle, **self.fixed})

    @property
    def size(self) -> int:
        return int(np.prod(self.action_space.shape))

    def decode(self, action: NDArray[np.floating]) -> dict[str, Value]:
        """Return all hyperparameters under an action; `name@i` is the value of client i alone."""
        if self.num_rows is None:
            return self._whole.validate({**self.space.decode(action), **self.fixed})
        rows = np.asarray(action)
        if rows.shape != self.action_space.shape:
            raise InvalidArgumentError(
                f"`action` must have shape {self.action_space.shape}, got {rows.shape}."
            )
        configuration = self.default
        for client, row in enumerate(rows):
            own = self.space.decode(row)
            configuration.update({f"{name}@{client}": value for name, value in own.items()})
        return configuration

    def work(
        self,
        configuration: Mapping[str, Value],
        rounds: int,
        sampled: NDArray[np.bool_],
        num_samples: NDArray[np.integer] | None = None,
        happened: CourseHistory | None = None,
    ) -> Work:
        """Return the work of some rounds of (clients,) sampled ones, which the system charges."""
        rate = float(configuration[RATE])
        return work_of(self._task, configuration, rounds, rate, sampled, num_samples, happened)

    def largest_work(self, rounds: int, num_samples: NDArray[np.integer] | None = None) -> Work:
        """Return the work of some rounds that costs most, whatever the actions."""
        dearest: dict[str, Value] = {**self.default}
        # The smaller its minibatches, the more steps a client takes.
        dearest.update(
            {d.name: d.low if self._dear_if_low(d) else d.high for d in self.space.dimensions}
        )
        rate = float(dearest[RATE])
        return work_of(self._task, dearest, rounds, rate, num_samples=num_samples)

    def _dear_if_low(self, dimension: Dimension) -> bool:
        # The fewer clients train at once, the longer it takes until enough have reported.
        return dimension.name.partition("@")[0] == "batch_size" or (
            self._task.asynchronous and dimension.name == RATE
        )


def _fixed(
    whole: SearchSpace,
    dynamic: Sequence[str],
    usual: Mapping[str, Value],
    configuration: Mapping[str, Value],
) -> dict[str, Value]:
    """Return the values of what actions do not set, less what can never mean anything."""
    for name in configuration:
        require_known("hyperparameter", name, whole)
    if given := [name for name in configuration if name in dynamic]:
        raise InvalidArgumentError(
            f"`configuration` must leave out what actions set, got {given}; leave them out of "
            "`dynamic` to fix them"
        )
    fixed: dict[str, Value] = {}
    for d in whole.dimensions:
        value = {**usual, **configuration}.get(d.name, d.decode(0.0))
        checked = d.validate(value, "configuration")
        may_mean = d.is_active(fixed) or (d.active is not None and d.active[0] in dynamic)
        if d.name not in dynamic and may_mean:
            fixed[d.name] = checked
    return fixed


def _rows(task: Task) -> tuple[Dimension, ...]:
    """Return the dimensions of one client: those of all clients `name@i` are one `name` here."""
    found: dict[str, Dimension] = {}
    for dimension in task.space.dimensions:
        name, _, client = dimension.name.partition("@")
        row = replace(dimension, name=name)
        if found.setdefault(name, row) != row:
            raise InvalidArgumentError(
                f"`per_client` must be False for {task.name}: {name!r} of client {client} has "
                "another range than that of client 0, so that rows would differ in kind"
            )
    return tuple(found.values())
