"""From a task to the engine: the federation, model and algorithm it names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms import get_algorithm
from fedhpo_gym.courses.mixed import MixedBatch
from fedhpo_gym.datasets import load_dataset
from fedhpo_gym.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.federations.federation import Federation
from fedhpo_gym.federations.labels import label_frequencies
from fedhpo_gym.federations.partitions import get_partition
from fedhpo_gym.fl import ENGINE_VERSION
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.engine import Curves as Curves
from fedhpo_gym.fl.models import Model, get_model
from fedhpo_gym.fl.records import CourseState as CourseState
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import Task, job_clock
from fedhpo_gym.tasks.federated import OWN_TASKS


# Holds all train and test instances of a round environment.
@lru_cache(maxsize=256)
def federation(
    dataset: str, partition: str, num_clients: int, alpha: float, preprocessing: str, seed: int
) -> Federation:
    """Return the federation of a data set under one seed."""
    data = load_dataset(dataset)
    return get_partition(partition)(data, seed, num_clients, alpha, preprocessing)


def task_federation(task: Task, seed: int) -> Federation:
    """Return the federation of a task under one seed.

    Raises:
        DamagedDataError: the data at hand have another number of clients than the task.
    """
    found = federation(
        task.dataset, task.partition, task.num_clients, task.alpha, task.preprocessing, seed
    )
    if found.num_clients != task.num_clients:
        raise DamagedDataError(
            f"{task.dataset} has {found.num_clients} users here, and {task.name} is about "
            f"{task.num_clients}: `fedhpo-gym download {task.dataset}` says which data it needs"
        )
    return found


def task_label_frequencies(task: Task) -> dict[str, float]:
    """Return what the label frequencies of a task's training data reach, on average over seeds.

    Clients with problems of their own predict their own; see `federations.labels`.

    Raises:
        MissingDataError: the data cannot be had.
    """
    own, squared = task.partition in OWN_TASKS, task.guess_loss is not None
    seeds = [label_frequencies(task_federation(task, seed), own, squared) for seed in task.seeds]
    return {name: float(f"{np.mean([s[name] for s in seeds]):.6g}") for name in seeds[0]}


def data_fingerprint(task: Task) -> str:
    """Return a digest of the data of a task."""
    return load_dataset(task.dataset).fingerprint


def fingerprint(task: Task, version: int | None = None) -> str:
    """Return a digest of everything that numbers of really trained courses depend on.

    Args:
        task: the task.
        version: of the engine; by default the present one.
    """
    version = engine_version(task) if version is None else version
    words = f"{data_fingerprint(task)} {task.table_name} engine {version}"
    if task.asynchronous:  # the clock decides who trains on what
        words += f" {task.system!r}"
    return f"raw-sha256:{hashlib.sha256(words.encode()).hexdigest()}"


def former_engines(task: Task) -> dict[str, tuple[int, int]]:
    """Return what earlier engines called the same courses: by name, their version and ours."""
    now = engine_version(task)
    return {fingerprint(task, version): (version, now) for version in range(1, now)}


def engine_version(task: Task) -> int:
    """Return a number that is raised whenever numbers of a task's courses change."""
    return ENGINE_VERSION + sum(get_model(name).revision for name in task.models)


def model_of(task: Task, configuration: Mapping[str, Value]) -> type[Model]:
    """Return the model that a configuration trains: words, or numbers for categories."""
    if len(task.models) == 1:
        return get_model(task.models[0])
    chosen = configuration["model"]
    return get_model(task.models[int(task.space.numbers({"model": chosen})["model"])])


def make_course(
    task: Task,
    configuration: Mapping[str, Value],
    client_sample_rate: float,
    seed: int,
    num_samples: NDArray[np.int64] | None = None,
) -> Course:
    """Return the course of a configuration, with what the task fixes.

    Args:
        task: the task.
        configuration: hyperparameters.
        client_sample_rate: fraction of clients sampled per round, or that train at once.
        seed: of the course.
        num_samples: (clients,) training samples where clocks may count them.

    Raises:
        InvalidArgumentError: the task's algorithm is asynchronous, and its system does not say how
            long clients take.
    """
    clock = job_clock(task, configuration, client_sample_rate, num_samples)
    settings = {**task.all_settings, **task.space.numbers(configuration)}
    return Course(settings, client_sample_rate, seed, clock)


def require_device(task: Task, seed: int, device: str) -> None:
    """Check, by putting one course there, that torch can use a device.

    Raises:
        InvalidArgumentError: it cannot.
    """
    configuration = {d.name: d.decode(1.0) for d in task.space.dimensions}
    samples = task_federation(task, seed).num_samples[:, 0]
    try:
        make_batch(task, [make_course(task, configuration, 1.0, seed, samples)], device)
    except (RuntimeError, AssertionError) as error:  # torch raises either
        reason = str(error).splitlines()[0]
        raise InvalidArgumentError(
            f"`device` must be one that torch can use here, got {device!r} ({reason})"
        ) from error


def make_batch(
    task: Task, courses: Sequence[Course], device: str = "cpu", horizon: int | None = None
) -> CourseBatch | MixedBatch:
    """Create the courses of a task at round 0; see `CourseBatch` for the horizon.

    It is the last round of the task, unless given.
    """
    federations = {seed: task_federation(task, seed) for seed in {c.seed for c in courses}}
    groups: dict[type[Model], list[int]] = {}
    for position, course in enumerate(courses):
        groups.setdefault(model_of(task, course.configuration), []).append(position)
    batches = []
    for model, positions in groups.items():
        own = [courses[position] for position in positions]
        batch = CourseBatch(
            {seed: federations[seed] for seed in {course.seed for course in own}},
            model,
            get_algorithm(task.algorithm),
            own,
            device,
            horizon=horizon or task.max_round,
            precision=task.precision,
        )
        batches.append((positions, batch))
    return batches[0][1] if len(batches) == 1 else MixedBatch(batches)
