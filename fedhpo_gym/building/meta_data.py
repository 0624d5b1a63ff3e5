"""Computing FedHPO-B: a pool of configurations for every task, at every fidelity of a ladder.

Two thirds of a pool are the same for all tasks of a space, points of a scrambled Halton sequence. A
third is where optimizers look: two generations of children of the best so far, at full fidelity.
A tenth of the pool is trained under three seeds, the rest under the first.
"""

import datetime
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.backends import make_backend
from fedhpo_gym.backends.training import engine_version, task_federation
from fedhpo_gym.building.design import shared_axes, this_machine, versions
from fedhpo_gym.building.meta_surrogate import fit_meta_surrogate
from fedhpo_gym.building.sample import halton
from fedhpo_gym.core.archive import read_npz, write_archive
from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import MissingDataError, require_known
from fedhpo_gym.core.files import leftover_files, new_file, sole_writer
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data import load_dataset
from fedhpo_gym.data.catalogue import get_source
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.objectives import NO_PRIVACY, Spending, values_of
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored.meta_data import (
    COSTS,
    DESIGN_SIZE,
    DESIGNS,
    FORMAT,
    MODEL,
    REPEATED,
    SUFFIX,
    MetaSurrogate,
    costs_of,
    encoded,
    explained_entropy,
    meta_data_stem,
)
from fedhpo_gym.tasks import Task
from fedhpo_gym.tasks.meta import META_SPACES, RATES, MetaTask, meta_tasks

SHARED: Final = 171
"""Configurations of a pool that all tasks of a space have."""
GENERATIONS: Final = (43, 42)
"""Children that are added to them, twice."""
PARENTS, MUTATED, STEP = 0.2, 0.3, 0.2
"""Share of the best that have children; chance and width of a change of a coordinate."""
MEASURED = ("val_loss", "test_loss", "val_error", "test_error", "fairness_p10", "fairness_std")
"""Objectives that are read off models; costs follow."""

Configuration = dict[str, Value]


def pool_space(task: Task) -> SearchSpace:
    """Return the space of a pool: whole numbers on grids, so that courses share minibatches."""
    dimensions = task.space.dimensions
    return SearchSpace(tuple(d.discretized() if d.kind == "int" else d for d in dimensions))


def shared_configurations(space: SearchSpace) -> list[Configuration]:
    """Return what every pool of a space begins with."""
    return [space.decode(2.0 * point - 1.0) for point in halton(SHARED, len(space))]


def breed_children(
    space: SearchSpace,
    configurations: Sequence[Configuration],
    losses: NDArray[np.float64],
    count: int,
    rng: np.random.Generator,
) -> list[Configuration]:
    """Return new configurations near the best of known ones, by crossover and mutation."""
    best = np.argsort(losses, kind="stable")[: round(PARENTS * len(configurations))]
    parents = np.stack([space.encode(configurations[index]) for index in best.tolist()]).astype(
        np.float64
    )
    keys = {tuple(configuration.items()) for configuration in configurations}
    offspring: list[Configuration] = []
    while len(offspring) < count:
        mother, father = parents[rng.integers(len(parents), size=2)]
        child = np.where(rng.random(len(space)) < 0.5, mother, father)
        mutant = child + STEP * rng.standard_normal(len(space))
        child = np.clip(np.where(rng.random(len(space)) < MUTATED, mutant, child), -1.0, 1.0)
        configuration = space.decode(child)
        if tuple(configuration.items()) not in keys:
            keys.add(tuple(configuration.items()))
            offspring.append(configuration)
    return offspring


@validate_call
def compute_task(meta: MetaTask) -> dict[str, NDArray[Any]]:
    """Return what is stored of one task.

    Shapes, with P configurations, A client sample rates, R rounds and Q objectives: `own`
    (P - `SHARED`, d) configurations as numbers, NaN where inactive; `values` (P, A, R, Q);
    `repeats` (seeds - 1, P / `REPEATED`, A, R, Q); `features` (F,).
    """
    task = meta.task
    space, first = pool_space(task), task.seeds[0]
    pool = shared_configurations(space)
    values = _train_pool(task, pool, first)
    for generation, count in enumerate(GENERATIONS):
        rng = stream(first, f"meta_pool {task.table_name} {meta.name}", generation)
        more = breed_children(space, pool, values[:, -1, -1, 0].astype(np.float64), count, rng)
        values = np.concatenate([values, _train_pool(task, more, first)])
        pool += more
    again = pool[::REPEATED]
    return {
        "own": _to_rows(task, pool[SHARED:]),
        "values": values,
        "repeats": np.stack([_train_pool(task, again, seed) for seed in task.seeds[1:]]),
        "features": meta_features(task, task_federation(task, first)),
    }


def _to_rows(task: Task, pool: Sequence[Configuration]) -> NDArray[np.float64]:
    """Return (n, d) configurations as numbers, NaN where inactive."""
    numbers, names = map(task.space.numbers, pool), task.space.names
    return np.array([[values.get(name, np.nan) for name in names] for values in numbers])


def _compute_costs(task: Task, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the costs of what `_to_rows` returned."""
    settings = (dict(zip(task.space.names, row, strict=True)) for row in rows.tolist())
    return costs_of(task, [task.space.from_numbers(values) for values in settings])


def _train_pool(task: Task, pool: Sequence[Configuration], seed: int) -> NDArray[np.float32]:
    """Return (P, A, R, `MEASURED`) values of configurations under a seed."""
    rates, rounds = task.fidelity_space["client_sample_rate"].grid, task.evaluated_rounds
    axes = shared_axes(task)  # what agrees in these comes together, and trains together
    order = sorted(range(len(pool)), key=lambda i: [str(pool[i].get(name)) for name in axes])
    queries = [(pool[i], Fidelity(r, float(rate))) for i, rate, r in product(order, rates, rounds)]
    answers = make_backend("raw", task, seed=seed).evaluate_many(queries)
    objectives = [task.objectives[name] for name in MEASURED]
    values = values_of(objectives, answers, Spending(NO_PRIVACY, dict))
    results = np.empty((len(pool), len(rates), len(rounds), len(MEASURED)), np.float32)
    results[order] = values.reshape(results.shape)
    return np.maximum(results, 0.0)  # a mean of ones may be rounded above 1, and an error below 0


FEATURES: Final = (
    *("clients", "classes", "features", "samples", "label_entropy", "size_entropy"),
    *("smallest_client", "largest_client", "label_skew"),
)
"""What is known of a task before anything is trained; none needs more than counts of labels."""


def meta_features(task: Task, federation: Federation) -> NDArray[np.float64]:
    """Return the (F,) `FEATURES` of a federation.

    Counts are natural logarithms; entropies, shares of the largest there can be; the smallest and
    the largest client, logarithms of their shares of the mean size; and the skew is the mean
    distance in total variation of clients' labels from those of all, weighted by samples.
    """
    counts = np.stack(
        [np.bincount(federation.labels[rows[0]], minlength=federation.num_classes)
         for rows in federation.clients]
    ).astype(np.float64)  # fmt: skip
    sizes = counts.sum(axis=1)
    counts, sizes = counts[sizes > 0], sizes[sizes > 0]
    labels = counts.sum(axis=0) / counts.sum()
    distance = np.abs(counts / sizes[:, None] - labels).sum(axis=1) / 2.0
    return np.array(
        [
            *np.log([task.num_clients, task.num_classes, task.num_features, sizes.sum()]),
            _relative_entropy(labels),
            _relative_entropy(sizes / sizes.sum()),
            np.log(sizes.min() / sizes.mean()),
            np.log(sizes.max() / sizes.mean()),
            (distance * sizes).sum() / sizes.sum(),
        ]
    )


def _relative_entropy(shares: NDArray[np.float64]) -> float:
    some = shares[shares > 0]
    return float(-(some * np.log(some)).sum() / np.log(max(len(shares), 2)))


@validate_call
def compute_parts(folder: Path, spaces: Sequence[str]) -> Mapping[str, list[Path]]:
    """Compute what is not in a folder yet, a file per task; return all files by space, in order."""
    for space in spaces:
        require_known("search space", space, META_SPACES)
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [(space, meta) for space in spaces for meta in meta_tasks(space)]
    paths = {(s, m.name): folder / f"{s}-{m.name}.npz" for s, m in pairs}
    missing = [pair for pair in pairs if not paths[pair[0], pair[1].name].exists()]
    with tqdm(total=len(pairs), initial=len(pairs) - len(missing), unit="task") as bar:
        for space, meta in missing:
            bar.set_postfix_str(f"{space} {meta.name}")
            if not paths[space, meta.name].exists():  # nor did another process compute it
                arrays = compute_task(meta)
                path = paths[space, meta.name]
                with sole_writer(folder) as is_alone:
                    with new_file(path) as file:
                        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
                    for leftover in leftover_files(folder, path.name) if is_alone else ():
                        leftover.unlink(missing_ok=True)
            bar.update()
    return {s: [paths[s, m.name] for m in meta_tasks(s)] for s in spaces}


@validate_call
def write_meta_data(
    space: str, parts: Sequence[Path], folder: Path, *, surrogate: bool = True
) -> Path:
    """Write what the files of all tasks of a space hold into a card and arrays; return the card.

    Args:
        space: one of `META_SPACES`.
        parts: what `compute_parts` returned of it.
        folder: where to write.
        surrogate: whether a model of all tasks is fitted on them, too.
    """
    tasks = meta_tasks(space)
    task_arrays = [_read_task(path) for path in parts]
    names = ("own", "values", "repeats", "features")
    arrays = {name: np.stack([stored[name] for stored in task_arrays]) for name in names}
    task, own_rows = tasks[0].task, arrays["own"]
    shared = _to_rows(task, shared_configurations(pool_space(task)))
    pools = np.concatenate(
        [np.broadcast_to(shared, (len(own_rows), *shared.shape)), own_rows], axis=1
    )
    pool_size = pools.shape[1]
    draws = [stream(0, f"meta_order {space} {meta.name}") for meta in tasks]
    arrays |= {
        "shared": shared,
        "costs": np.stack(
            [_compute_costs(meta.task, rows) for meta, rows in zip(tasks, pools, strict=True)]
        ),
        "order": np.stack([rng.permutation(pool_size) for rng in draws]).astype(np.uint16),
        "initial": np.array(
            [
                [rng.choice(pool_size, DESIGN_SIZE, replace=False) for _ in range(DESIGNS)]
                for rng in draws
            ],
            np.uint16,
        ),
    }
    card = {
        "format": FORMAT,
        "name": meta_data_stem(space),
        "task": meta_data_stem(space),
        "version": 1,
        "search_space": task.space.to_dict(),
        "rounds": list(task.evaluated_rounds),
        "client_sample_rates": list(RATES),
        "measured": [*MEASURED, *COSTS],
        "features": list(FEATURES),
        "seeds": list(task.seeds),
        "shared": len(shared),
        "pool": pool_size,
        "engine_version": engine_version(task),
        "tasks": [_describe_task(meta) for meta in tasks],
        "licence": "Apache-2.0",
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": this_machine("cpu"),
        "software": versions("numpy", "numba", "torch"),
        "build_command": f"fedhpo-gym meta-data {space}",
    }
    if surrogate:
        features = task.space.features(encoded(task.space, pools.reshape(-1, len(task.space))))
        entropy = [meta.task.label_entropy for meta in tasks]
        added, card_entries = _fit_model(entropy, features.reshape(*pools.shape[:2], -1), arrays)
        arrays, card = {**arrays, **added}, {**card, **card_entries}
    return write_archive(folder, f"{meta_data_stem(space)}{SUFFIX}", card, arrays)


def _fit_model(
    entropy: Sequence[float], features: NDArray[np.float64], arrays: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays of a model of all tasks, and what the card says of it."""
    shared = len(arrays["shared"])
    fitted = fit_meta_surrogate(features, arrays["values"][:, :, -1, -1].astype(np.float64), shared)
    own_rows = features[:, shared:].reshape(-1, features.shape[2])
    rows = np.concatenate([features[0, :shared], own_rows])
    model = MetaSurrogate(fitted.arrays)
    highest = [
        float(explained_entropy(model.predict(task, rows)[:, 0], np.array(of)).max())
        for task, of in enumerate(entropy)
    ]
    card_entries = {
        "tau": [round(tau, 4) for tau in fitted.tau],
        "model_highest": highest,
        "model_arrays": {name: list(array.shape) for name, array in fitted.arrays.items()},
    }
    return {MODEL + name: array for name, array in fitted.arrays.items()}, card_entries


def _describe_task(meta: MetaTask) -> dict[str, Any]:
    task, source = meta.task, get_source(meta.task.dataset)
    return {
        "name": meta.name,
        "split": meta.split,
        "survey": meta.survey,
        "dataset": task.dataset,
        "clients": task.num_clients,
        "partition": task.partition,
        "alpha": task.alpha,
        "label_entropy": task.label_entropy,
        "data_fingerprint": load_dataset(task.dataset).fingerprint,
        "data_licence": source.licence,
        "data_citation": source.citation,
    }


def _read_task(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a task, none of which may run code."""
    if not path.exists():
        raise MissingDataError(f"{path} is not computed yet; run the same command again")
    with path.open("rb") as file:
        return read_npz(file, path)
