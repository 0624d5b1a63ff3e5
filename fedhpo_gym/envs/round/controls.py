"""What an action of a round environment sets: the codec between actions and hyperparameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError, unknown_name
from fedhpo_gym.evaluation.records import Cost, Fidelity
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.tasks import Task

RATE = "client_sample_rate"


class Controls:
    """The hyperparameters of a course: those an action sets, and those that are fixed.

    Attributes:
        space: what an action, or in the per-client form a row of it, sets.
        fixed: value of everything else, `client_sample_rate` included.
        num_rows: clients in the per-client form, else None.
        action_space: Box [-1, 1]^n or [-1, 1]^(clients, n).
    """

    def __init__(
        self,
        task: Task,
        *,
        dynamic: Sequence[str] | None = None,
        configuration: Mapping[str, Value] | None = None,
        client_sample_rate: float | None = None,
        per_client: bool = False,
        frozen: Collection[str] = (),
    ) -> None:
        """Sort the hyperparameters of a task.

        Args:
            task: the task.
            dynamic: names that actions set; by default all that can change while a course runs.
                `client_sample_rate` can be among them, too.
            configuration: values of the others; what it leaves out lies in the middle of its range
                (on its own scale).
            client_sample_rate: fraction of clients sampled per round, unless it is dynamic; the
                largest of the task by default.
            per_client: every client has its own row; what the server decides is then fixed.
            frozen: names that shape the model, which no running course can change.

        Raises:
            UnknownNameError: a name is no hyperparameter of the task.
            InvalidArgumentError: a value is not legal, a name cannot be dynamic, or clients have
                too different hyperparameters to have rows of one kind.
        """
        rate = task.fidelity_space[RATE]
        own = _rows(task) if per_client else task.space.dimensions
        offered = {d.name: d for d in (*own, rate)}
        free = [
            d.name for d in own if d.name not in frozen and (d.scope == "client" or not per_client)
        ]
        chosen = free if dynamic is None else list(dynamic)
        if isinstance(dynamic, str) or not chosen or len(set(chosen)) < len(chosen):
            raise InvalidArgumentError(
                f"`dynamic` must be a list of distinct names, at least one, got {dynamic!r}"
            )
        for name in chosen:
            if name not in offered:
                raise unknown_name("hyperparameter", name, offered)
            if name not in free and (per_client or name != RATE):
                raise InvalidArgumentError(
                    f"`dynamic` cannot hold {name!r}: it shapes the model, or the server decides "
                    f"it; it can hold {free}"
                )
        dynamic_given = [name for name in configuration or {} if name in chosen]
        if dynamic_given:
            raise InvalidArgumentError(
                f"`configuration` must leave out what actions set, got {dynamic_given}; leave "
                "them out of `dynamic` to fix them"
            )
        self.space = SearchSpace(tuple(d for name, d in offered.items() if name in chosen))
        still = SearchSpace(tuple(d for name, d in offered.items() if name not in chosen))
        middle = still.decode(np.zeros(len(still)))
        share = rate.high if client_sample_rate is None else client_sample_rate
        given = {RATE: share} if RATE in still.names else {}
        self.fixed = still.validate({**middle, **given, **(configuration or {})})
        self.num_rows = task.num_clients if per_client else None
        shape = (len(self.space),) if self.num_rows is None else (self.num_rows, len(self.space))
        self.action_space = gym.spaces.Box(-1.0, 1.0, shape, np.float32)
        self._task = task
        self._names = tuple(offered)

    @property
    def default(self) -> dict[str, Value]:
        """The configuration in the middle of what actions can set."""
        middle = self.space.decode(np.zeros(len(self.space)))
        return self._ordered({**middle, **self.fixed})

    @property
    def size(self) -> int:
        """Number of coordinates of an action."""
        return int(np.prod(self.action_space.shape))

    def decode(self, action: NDArray[np.floating]) -> dict[str, Value]:
        """Return all hyperparameters under an action; `name@i` is the value of client i alone.

        Raises:
            InvalidArgumentError: the action is not in the action space.
        """
        if self.num_rows is None:
            return self._ordered({**self.space.decode(action), **self.fixed})
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

    def cost(
        self, configuration: Mapping[str, Value], rounds: int, sampled: NDArray[np.bool_]
    ) -> Cost:
        """Return what some rounds cost.

        The system model's computation time (Eq. 1 of FedHPO-Bench) is that of one local epoch
        here, so a client that takes two needs twice as long; the paper charges every
        configuration alike, and then there would be nothing to trade. In the per-client form,
        and where a problem has hyperparameters `name@i` of its own for every client, all sampled
        clients are charged the epochs of the one that takes most.

        Args:
            configuration: what `decode` returned.
            rounds: number of rounds.
            sampled: (clients,) who trains.
        """
        shared = float(configuration.get("step_size", 1))
        epochs = [
            float(configuration.get(f"step_size@{i}", shared)) for i in np.flatnonzero(sampled)
        ]
        return self._cost(configuration, rounds, max(epochs, default=shared))

    def largest_cost(self, rounds: int) -> Cost:
        """Return what some rounds cost at most, whatever the actions."""
        dearest: dict[str, Value] = {**self.default}
        dearest.update({d.name: d.high for d in self.space.dimensions})
        epochs = (float(v) for k, v in dearest.items() if k.partition("@")[0] == "step_size")
        return self._cost(dearest, rounds, max(epochs, default=1.0))

    def _cost(self, configuration: Mapping[str, Value], rounds: int, epochs: float) -> Cost:
        size = self._task.parameters_of(configuration)
        return _cost(self._task, size, epochs, rounds, float(configuration[RATE]))

    def _ordered(self, configuration: Mapping[str, Value]) -> dict[str, Value]:
        return {name: configuration[name] for name in self._names}


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


@lru_cache(maxsize=4096)
def _cost(task: Task, size: int, epochs: float, rounds: int, rate: float) -> Cost:
    base = task.system
    system = replace(base, client_compute_mean_s=base.client_compute_mean_s * epochs)
    return system.cost(size, task.num_clients, Fidelity(rounds, rate))
