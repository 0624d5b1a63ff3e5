"""From a task and a configuration to its work: what trial and round environments charge."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedhpo_gym.algorithms import ALGORITHMS
from fedhpo_gym.algorithms.asynchronous import BUFFER
from fedhpo_gym.core.arrays import AnyIntegers, Bools, Floats
from fedhpo_gym.core.checks import validate_call, validate_failed_call
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.space.per_client import base_name, client_values
from fedhpo_gym.systems import ClientWork, CourseHistory, JobClock, System, Work
from fedhpo_gym.tasks.federated import Task

EPOCHS, BATCH_SIZE = "step_size", "batch_size"


@validate_failed_call
def work_of(
    task: Task,
    configuration: Mapping[str, Value],
    rounds: int,
    client_sample_rate: float,
    sampled: Bools | None = None,
    num_samples: AnyIntegers | None = None,
    happened: CourseHistory | None = None,
) -> Work:
    """Return the work of some rounds of a course."""
    for name, array in (("sampled", sampled), ("num_samples", num_samples)):
        if array is not None and array.shape != (task.num_clients,):
            raise InvalidArgumentError(
                f"`{name}` must have an entry for each of {task.num_clients} clients, got the "
                f"shape {array.shape}"
            )
    fidelity = Fidelity(rounds, client_sample_rate)
    return works_of(task, [configuration], [fidelity], sampled, num_samples, [happened])[0]


def works_of(
    task: Task,
    configurations: Sequence[Mapping[str, Value]],
    fidelities: Sequence[Fidelity],
    sampled: Bools | None,
    num_samples: AnyIntegers | None,
    happened: Sequence[CourseHistory | None],
) -> list[Work]:
    """Return the work of some rounds of B courses, of which (B, clients) took part."""
    if num_samples is None and task.system.samples_per_client:
        num_samples = np.full(task.num_clients, task.system.samples_per_client)
    held = np.zeros(task.num_clients) if num_samples is None else num_samples
    epochs = _of_clients(task, configurations, EPOCHS, 1.0)
    batch = _of_clients(task, configurations, BATCH_SIZE, math.inf)
    steps = epochs * np.ceil(held / np.minimum(batch, np.maximum(held, 1)))
    each = np.array([epochs, steps, epochs * held])[: 1 if num_samples is None else 3]
    # Of the client that takes most.
    most = np.where(True if sampled is None else sampled, each, 0.0).max(axis=2).T.tolist()
    return [
        Work.of_course(
            task.parameters_of(configuration),
            task.num_clients,
            fidelity,
            local_epochs=epochs
            or _shared(task, configuration, EPOCHS, 1.0),  # without a client, shared
            **dict(zip(("minibatch_steps", "samples"), counted, strict=False)),
            clients=ClientWork(*of_clients),
            happened=past,
            reports=int(_shared(task, configuration, BUFFER, 1.0)) if task.asynchronous else 0,
            copies=ALGORITHMS[task.algorithm].copies,
        )
        for configuration, fidelity, (epochs, *counted), of_clients, past in zip(
            configurations, fidelities, most, each.swapaxes(0, 1), happened, strict=True
        )
    ]


@validate_call
def job_clock(
    task: Task,
    configuration: Mapping[str, Value],
    client_sample_rate: float,
    num_samples: AnyIntegers | None = None,
) -> JobClock | None:
    """Return how long jobs of an asynchronous course take; None for synchronous algorithms."""
    if not task.asynchronous:
        return None
    work = work_of(task, configuration, 1, client_sample_rate, num_samples=num_samples)
    return JobClock(task.system, work)


@validate_failed_call
def decisive_names(task: Task) -> tuple[str, ...]:
    """Return the hyperparameters of the search space that decide what a round costs."""
    reads = {
        "constant": (),
        "epochs": (EPOCHS,),
        "steps": (EPOCHS, BATCH_SIZE),
        "samples": (EPOCHS,),
    }[task.system.compute]
    local = [name for name in task.space.names if base_name(name) in reads]
    buffer = [name for name in task.space.names if name == BUFFER]
    return (*task.architecture, *local, *buffer)


@validate_call
def round_system(task: Task) -> System:
    """Return the system of round environments, in which local epochs cost time by default."""
    if task.system.compute != "constant":
        return task.system
    return replace(task.system, compute="epochs")


def _of_clients(
    task: Task, configurations: Sequence[Mapping[str, Value]], name: str, default: float
) -> Floats:
    """Return the (B, clients) values of a hyperparameter."""
    defaults = [_shared(task, configuration, name, default) for configuration in configurations]
    return client_values(configurations, name, defaults, task.num_clients)


def _shared(task: Task, configuration: Mapping[str, Value], name: str, default: float) -> float:
    """Return the value of all clients without one of their own."""
    if name in configuration:
        return float(configuration[name])
    return float(dict(task.settings).get(name, default))
