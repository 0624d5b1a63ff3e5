"""Translate a task for the training engine: its federation, model, algorithm and courses.

The backends that train (`raw`, `engine_courses` and FederatedScope's), the builders and the command
line call this module, so that a task means the same data and courses everywhere. `fingerprint`
digests everything that trained numbers depend on; run records and stored data are checked against
it. Federations are cached, because all courses of a seed share one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms import REGISTERED as OWN_ALGORITHMS
from fedhpo_gym.algorithms import get_algorithm
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.core.plugins import qualified_source
from fedhpo_gym.data import load_dataset
from fedhpo_gym.data.catalogue import REGISTERED
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.partitions import get_partition
from fedhpo_gym.evaluation.records import SPLITS
from fedhpo_gym.fl import ENGINE_VERSION
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.course import CourseState as CourseState
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.engine import Curves as Curves
from fedhpo_gym.fl.models import Model, get_model
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import Task, job_clock
from fedhpo_gym.tasks.federated import OWN_TASKS


# The size covers all train and test instances of a round environment.
@lru_cache(maxsize=256)
def federation(
    dataset: str,
    partition: str,
    num_clients: int,
    alpha: float,
    preprocessing: str,
    seed: int,
    fingerprint: str = "",
) -> Federation:
    """Return the federation of a data set under one seed.

    `fingerprint` is only part of the cache key: a user can register changed data under a name.
    """
    del fingerprint
    data = load_dataset(dataset)
    return get_partition(partition)(data, seed, num_clients, alpha, preprocessing)


def task_federation(task: Task, seed: int) -> Federation:
    """Return the federation of a task under one seed."""
    require_trainable(task)
    data_digest = load_dataset(task.dataset).fingerprint if task.dataset in REGISTERED else ""
    dataset_federation = federation(
        task.dataset,
        task.partition,
        task.num_clients,
        task.alpha,
        task.preprocessing,
        seed,
        data_digest,
    )
    if dataset_federation.num_clients != task.num_clients:
        raise DamagedDataError(
            f"{task.dataset} has {dataset_federation.num_clients} users here, but {task.name} "
            f"needs {task.num_clients}: `fedhpo-gym download {task.dataset}` describes the data"
        )
    return dataset_federation


def task_label_frequencies(task: Task) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the metrics of label frequencies as predictions: the mean over seeds, and by seed."""
    per_client, squared = task.partition in OWN_TASKS, task.guess_loss is not None
    seeds = [
        label_frequencies(task_federation(task, seed), per_client, squared) for seed in task.seeds
    ]
    mean = {name: float(f"{np.mean([s[name] for s in seeds]):.6g}") for name in seeds[0]}
    rounded = [
        {name: float(f"{value:.6g}") for name, value in frequencies.items()}
        for frequencies in seeds
    ]
    return mean, dict(zip(map(str, task.seeds), rounded, strict=True))


def data_fingerprint(task: Task) -> str:
    """Return a digest of the data of a task."""
    return load_dataset(task.dataset).fingerprint


def fingerprint(task: Task, version: int | None = None) -> str:
    """Return a digest of everything that numbers of really trained courses depend on."""
    version = engine_version(task) if version is None else version
    text = f"{data_fingerprint(task)} {task.table_name} engine {version}"
    if task.asynchronous:  # the clock decides which model a client trains on
        text += f" {task.system!r}"
    if task.dataset in REGISTERED or "own" in task.tags:  # a user can change any of these
        spaces = task.space.to_dict(), task.fidelity_space.to_dict()
        text += f" {spaces!r} {task.partition} {task.num_clients}"
        text += " ".join(_source(get_model(model)) for model in task.models)
    if task.algorithm in OWN_ALGORITHMS:
        text += f" {qualified_source(type(OWN_ALGORITHMS[task.algorithm]))}"
    return f"raw-sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _source(model: type[Model]) -> str:
    return qualified_source(getattr(model, "build", model))


def former_engines(task: Task) -> dict[str, tuple[int, int]]:
    """Return fingerprints of earlier engine versions -> (their version, the current version)."""
    now = engine_version(task)
    return {fingerprint(task, version): (version, now) for version in range(1, now)}


def require_trainable(task: Task) -> None:
    """Reject a problem without data, which only a function or imported results can evaluate."""
    if not task.has_data:
        raise InvalidArgumentError(
            f"`task` must be one that can be trained, got {task.id}, whose numbers come only from: "
            f"{task.citation}"
        )


def engine_version(task: Task) -> int:
    """Return the engine version of a task; it is raised whenever numbers of its courses change."""
    require_trainable(task)
    return ENGINE_VERSION + sum(get_model(name).revision for name in task.models)


def model_of(task: Task, configuration: Mapping[str, Value]) -> type[Model]:
    """Return the model of a configuration, whose categories may be names or numbers."""
    if len(task.models) == 1:
        return get_model(task.models[0])
    choice = configuration["model"]
    return get_model(task.models[int(task.space.numbers({"model": choice})["model"])])


def make_course(
    task: Task,
    configuration: Mapping[str, Value],
    client_sample_rate: float,
    seed: int,
    num_samples: NDArray[np.int64] | None = None,
) -> Course:
    """Return the course of a configuration for a task; `num_samples` is (clients,)."""
    arguments = task, configuration, client_sample_rate, num_samples
    clock = (
        job_clock(*arguments) if task.asynchronous else None
    )  # its checks take as long as the rest
    settings = {**task.all_settings, **task.space.numbers(configuration)}
    return Course(settings, client_sample_rate, seed, clock)


def require_device(task: Task, seed: int, device: str) -> None:
    """Check that torch can use a device, by creating one course there."""
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
    """Create the courses of a task at round 0; the horizon is its last round by default."""
    federations = {seed: task_federation(task, seed) for seed in {c.seed for c in courses}}
    groups: dict[type[Model], list[int]] = {}
    for position, course in enumerate(courses):
        groups.setdefault(model_of(task, course.configuration), []).append(position)
    batches = []
    for model, positions in groups.items():
        courses_of_model = [courses[position] for position in positions]
        batch = CourseBatch(
            {seed: federations[seed] for seed in {course.seed for course in courses_of_model}},
            model,
            get_algorithm(task.algorithm),
            courses_of_model,
            device,
            horizon=horizon or task.max_round,
            precision=task.precision,
        )
        batches.append((positions, batch))
    return batches[0][1] if len(batches) == 1 else MixedBatch(batches)


class MixedBatch:
    """Batches of one model each with the interface of one batch."""

    def __init__(self, batches: Sequence[tuple[Sequence[int], CourseBatch]]) -> None:
        """Join batches, each with the positions of its courses among all courses."""
        self._batches = [(np.array(positions), batch) for positions, batch in batches]
        self._count = sum(len(positions) for positions, _ in batches)

    def advance(
        self,
        rounds: int,
        progress: Callable[[], None] | None = None,
        evaluated: Collection[int] | None = None,
    ) -> Curves:
        """Train every course for some more rounds."""
        curves = [batch.advance(rounds, progress, evaluated) for _, batch in self._batches]
        # Metrics are (courses, rounds, clients, splits, metrics).
        metrics = np.empty((self._count, *curves[0].metrics.shape[1:]), np.float32)
        diverged_at = np.empty(self._count, np.int64)
        for (positions, _), part_curves in zip(self._batches, curves, strict=True):
            metrics[positions], diverged_at[positions] = (
                part_curves.metrics,
                part_curves.diverged_at,
            )
        return Curves(metrics, curves[0].rounds, diverged_at)

    def snapshot(self) -> list[CourseState | None]:
        """Return the state of every course."""
        states: list[CourseState | None] = [None] * self._count
        for positions, batch in self._batches:
            for position, state in zip(positions, batch.snapshot(), strict=True):
                states[position] = state
        return states

    def restore(self, snapshot: Sequence[CourseState | None]) -> None:
        """Restore a snapshot of this batch."""
        for positions, batch in self._batches:
            batch.restore([snapshot[position] for position in positions])


def label_frequencies(federation: Federation, per_client: bool, squared: bool) -> dict[str, float]:
    """Return loss and accuracy of the label frequencies of training data as predictions.

    A label that is absent from training data counts once, so that its loss is finite.
    """
    counts = np.stack(list(_counts(federation, per_client)))  # (groups, splits, classes)
    train = counts[:, SPLITS.index("train")]
    if squared:  # squared distance of each class from the mean label
        labels = np.arange(federation.num_classes)
        mean = (train * labels).sum(axis=1, keepdims=True) / train.sum(axis=1, keepdims=True)
        losses = (labels - mean) ** 2
    else:
        has_labels = counts.sum(axis=1) > 0
        counted = np.where(has_labels, np.maximum(train, 1), 0)
        shares = counted / counted.sum(axis=1, keepdims=True)
        losses = -np.log(np.where(has_labels, shares, 1.0))
    hits = np.eye(federation.num_classes)[
        train.argmax(axis=-1)
    ]  # (groups, classes), majority class
    results = {}
    for split in ("val", "test"):
        held_out = counts[:, SPLITS.index(split)]
        for metric, values in (("loss", losses), ("accuracy", hits)):
            results[f"{split}_{metric}"] = float((held_out * values).sum() / held_out.sum())
    return results


def _counts(federation: Federation, per_client: bool) -> Iterator[NDArray[np.int64]]:
    """Yield (splits, classes) label counts of every group of clients that shares a prediction."""
    clients = federation.clients
    for group in [[client] for client in clients] if per_client else [clients]:
        rows = [np.concatenate([client[s] for client in group]) for s in range(len(SPLITS))]
        labels = [federation.labels[r] for r in rows]
        yield np.stack([np.bincount(y, minlength=federation.num_classes) for y in labels])
