"""Instances of trial environments: variants and seeds of one problem that have stored numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import STORED, Backend, make_backend
from fedhpo_gym.core.checks import as_integer, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.tasks import Task
from fedhpo_gym.tasks.federated import OF_GRAPHS, PREPROCESSINGS

SETS = ("train", "test")
STREAM = "trial_instances"
"""Name of the random streams that draw the instances of episodes."""
NAMES = ("clients", "classes", "features", "samples", "label_entropy", "balance", "smallest_client")
"""Features of an instance in observations (`statistics`)."""
DECADES = 6.0
"""Counts are observed as logarithms, in units of this many decades."""


@dataclass(frozen=True)
class TrialInstance:
    """A variant of a problem, by concentration and preprocessing, under one seed of all draws."""

    alpha: float
    preprocessing: str
    seed: int

    @classmethod
    def of(cls, backend: Backend) -> "TrialInstance":
        """Return the instance that a backend of one seed answers."""
        task = backend.task
        return cls(float(task.alpha), task.preprocessing, backend.seeds[0])


def open_instances(
    task: Task,
    name: str,
    instances: str | Sequence[Mapping[str, float | str]],
    fixed: Mapping[str, Any],
) -> tuple[Backend, ...]:
    """Open the stored numbers of instances, in a fixed order; all search the space of the first.

    The last of the task's seeds is that of all test instances: no two share a split.
    """
    if not isinstance(instances, str):
        opened = [_open(task, name, entry) for entry in instances]
        if not opened:
            raise InvalidArgumentError("`instances` must name at least one instance, got none")
        return _alike(opened, strict=True)
    require_known("instance set", instances, SETS)
    variants = [variant for variant in _variants(task, fixed) if STORED[name](variant)]
    if not variants or len(task.seeds) < 2:
        raise InvalidArgumentError(
            f"`instances` must be a list, or the problem must have stored numbers of several "
            f"seeds, got {short_repr(instances)} for {task.id} with backend={name!r}, which has "
            f"{len(variants)} stored variants of {len(task.seeds)} seeds; build more with "
            f"`fedhpo-gym build {task.identity.arguments}`, or leave `instances` out"
        )
    seeds = task.seeds[:-1] if instances == "train" else task.seeds[-1:]
    opened = [make_backend(name, variant, seed=seed) for variant in variants for seed in seeds]
    return _alike(opened, strict=False)


def _variants(task: Task, fixed: Mapping[str, Any]) -> list[Task]:
    """Return the variants that may have numbers, the task itself first."""
    alphas = (task.alpha, *(task.instance_alphas if task.partition == "lda" else ()))
    kinds = (task.preprocessing, *(() if task.partition in OF_GRAPHS else PREPROCESSINGS))
    pairs = dict.fromkeys(
        (fixed.get("alpha", alpha), fixed.get("preprocessing", kind))
        for kind in kinds
        for alpha in alphas
    )
    return [task.variant(alpha=alpha, preprocessing=kind) for alpha, kind in pairs]


def _open(task: Task, name: str, entry: Mapping[str, float | str]) -> Backend:
    field_names = [field.name for field in fields(TrialInstance)]
    for key in entry:
        require_known("field of an instance", key, field_names)
    seed = as_integer(entry.get("seed"))
    if seed is None:
        raise InvalidArgumentError(
            f"`instances` must hold mappings with a whole `seed`, got {short_repr(entry)}"
        )
    changes = {key: value for key, value in entry.items() if key != "seed"}
    return make_backend(name, task.variant(**changes), seed=seed)


def _alike(opened: Sequence[Backend], *, strict: bool) -> tuple[Backend, ...]:
    """Return the backends that answer what the first one answers; of a list, it must be all."""
    first = opened[0]
    spaces = first.space, first.fidelity_space
    alike = tuple(
        backend for backend in opened if (backend.space, backend.fidelity_space) == spaces
    )
    if strict and len(alike) < len(opened):
        other = next(backend for backend in opened if backend not in alike)
        raise InvalidArgumentError(
            "`instances` must answer the same configurations and fidelities, got "
            f"{asdict(TrialInstance.of(first))} and {asdict(TrialInstance.of(other))}, which "
            "differ; ask for one of them"
        )
    return alike


def statistics(backend: Backend) -> NDArray[np.float32]:
    """Return what may be known of an instance before its first trial, as `NAMES`: (7,), in [0, 1].

    Counts are log10 / `DECADES`; entropies of labels and of client sizes, shares of the largest
    there can be; the smallest client, a share of the mean size. Sizes are of training samples.
    """
    task, samples = backend.task, backend.num_samples[0]
    sizes = samples[:, 0].astype(np.float64)
    shares = sizes[sizes > 0] / sizes.sum()
    counts = np.array([task.num_clients, task.num_classes, task.num_features, samples.sum()])
    entries = [
        *(np.log10(np.maximum(counts, 1)) / DECADES),
        task.label_entropy / np.log(max(task.num_classes, 2)),
        -(shares * np.log(shares)).sum() / np.log(max(len(sizes), 2)),
        sizes.min() / sizes.mean(),
    ]
    inside: NDArray[np.float32] = np.clip(entries, 0.0, 1.0).astype(np.float32)
    return inside
