"""From a task and a configuration to its work: what trial and round environments charge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms import ALGORITHMS
from fedhpo_gym.algorithms.asynchronous import BUFFER
from fedhpo_gym.core.checks import checked_types, explained_types
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.systems import ClientWork, CourseHistory, JobClock, System, Work
from fedhpo_gym.systems.base import Floats
from fedhpo_gym.tasks.federated import Task

EPOCHS, BATCH_SIZE = "step_size", "batch_size"

Samples = NDArray[np.integer]
Chosen = NDArray[np.bool_]


@explained_types
def work_of(
    task: Task,
    configuration: Mapping[str, Value],
    rounds: int,
    client_sample_rate: float,
    sampled: Chosen | None = None,
    num_samples: Samples | None = None,
    happened: CourseHistory | None = None,
) -> Work:
    """Return the work of some rounds of a course."""
    for name, given in (("sampled", sampled), ("num_samples", num_samples)):
        if given is not None and given.shape != (task.num_clients,):
            raise InvalidArgumentError(
                f"`{name}` must have an entry for each of {task.num_clients} clients, got the "
                f"shape {given.shape}"
            )
    if num_samples is None and task.system.samples_per_client:
        num_samples = np.full(task.num_clients, task.system.samples_per_client)
    held = np.zeros(task.num_clients) if num_samples is None else num_samples
    epochs, steps = _epochs_and_steps(task, configuration, held)
    counted = () if num_samples is None else (steps, epochs * held)
    clients = ClientWork(epochs, *counted)
    some = slice(None) if sampled is None else sampled
    # Of the client that takes most; without a client, the shared ones.
    most = epochs[some].max(initial=0.0) or _shared(task, configuration, EPOCHS, 1.0)
    return Work.of_course(
        task.parameters_of(configuration),
        task.num_clients,
        Fidelity(rounds, client_sample_rate),
        local_epochs=float(most),
        minibatch_steps=None if clients.steps is None else float(steps[some].max(initial=0.0)),
        samples=None if clients.samples is None else float(clients.samples[some].max(initial=0.0)),
        clients=clients,
        happened=happened,
        reports=int(_shared(task, configuration, BUFFER, 1.0)) if task.asynchronous else 0,
        copies=ALGORITHMS[task.algorithm].copies,
    )


@checked_types
def job_clock(
    task: Task,
    configuration: Mapping[str, Value],
    client_sample_rate: float,
    num_samples: Samples | None = None,
) -> JobClock | None:
    """Return how long jobs of an asynchronous course take; None for synchronous algorithms."""
    if not task.asynchronous:
        return None
    work = work_of(task, configuration, 1, client_sample_rate, num_samples=num_samples)
    return JobClock(task.system, work)


@explained_types
def decisive_names(task: Task) -> tuple[str, ...]:
    """Return the hyperparameters of the search space that decide what a round costs."""
    reads = {
        "constant": (),
        "epochs": (EPOCHS,),
        "steps": (EPOCHS, BATCH_SIZE),
        "samples": (EPOCHS,),
    }[task.system.compute]
    own = [name for name in task.space.names if name.partition("@")[0] in reads]
    buffer = [name for name in task.space.names if name == BUFFER]
    return (*task.architecture, *own, *buffer)


@checked_types
def round_system(task: Task) -> System:
    """Return the system of round environments: local epochs cost unless asked otherwise."""
    if task.system.compute != "constant":
        return task.system
    return replace(task.system, compute="epochs")


def _epochs_and_steps(
    task: Task, configuration: Mapping[str, Value], held: NDArray[Any]
) -> tuple[Floats, Floats]:
    """Return the (clients,) local epochs and minibatch steps of a round."""
    columns = []
    for name, default in ((EPOCHS, 1.0), (BATCH_SIZE, math.inf)):
        column = np.full(task.num_clients, _shared(task, configuration, name, default))
        own = _own(configuration, name)
        column[list(own)] = list(own.values())
        columns.append(column)
    epochs, batch = columns
    return epochs, epochs * np.ceil(held / np.minimum(batch, np.maximum(held, 1)))


def _shared(task: Task, configuration: Mapping[str, Value], name: str, default: float) -> float:
    """Return the value of all clients without one of their own."""
    if name in configuration:
        return float(configuration[name])
    return float(dict(task.settings).get(name, default))


def _own(configuration: Mapping[str, Value], name: str) -> dict[int, float]:
    """Return the values of `name@i`, by client."""
    prefix = f"{name}@"
    return {
        int(key.removeprefix(prefix)): float(value)
        for key, value in configuration.items()
        if key.startswith(prefix)
    }
