"""Fits the meta-model of generated tasks on the meta-train tasks of FedHPO-B.

`fedhpo-gym generator` calls `write_generator`. It places the tasks in a latent space, samples
networks that read a configuration and a place (`building/meta_model.py`), measures the noise that
they leave, and tabulates the objectives of each real task by score. Last it searches the optima of
drawn tasks, so that the best action of a generated task is known. `stored.task_generator` draws
tasks from the arrays; which tasks were read is on the card.
"""

import datetime
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from tqdm import tqdm

from fedhpo_gym.building.design import this_machine, versions
from fedhpo_gym.building.meta_model import sampled_networks, task_features
from fedhpo_gym.building.meta_surrogate import IMPORTANCE, scores_of
from fedhpo_gym.building.sample import halton
from fedhpo_gym.core.archive import write_archive
from fedhpo_gym.core.arrays import Floats, Singles
from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.stored.meta_data import COSTS, MetaData, open_meta_data, smooth_gate
from fedhpo_gym.stored.surrogate_models import MAX_WEIGHT, ROW_BITS, WEIGHT_BITS, on_grid
from fedhpo_gym.stored.task_generator import (
    FORMAT,
    KNOTS,
    LOWEST,
    NOISE_FROM,
    NOISE_KNOTS,
    NOISE_STEP,
    STEP,
    SUFFIX,
    TASKS,
    GeneratedTasks,
    TaskGenerator,
    generator_stem,
)
from fedhpo_gym.tasks.meta import GENERATED_SPACES

DIMENSIONS, SPREAD = 5, 0.3
"""Of the latent space; and deviation of new places, in units of that of the real tasks."""
ALIKE: Final = ("val_loss", "fairness_p10")
"""What tasks near each other there have in common."""
NETWORKS, WIDTHS, CHAINS = 16, (64, 64, 64), 8
BURN_IN, KEEP_EVERY, BATCH = 20_000, 1000, 64
LEAST_NOISE: Final = 0.1
"""Deviation of scores that networks need not answer any better."""
FACTORS: Final = 12
"""Of the noise: so many numbers move all scores of an evaluation."""
ELITES, LEARNED_ON, DRAWN, GENERATIONS = 64, 400, 2000, 60
"""Where optima are searched, of each network; tasks that say where; what is tried in these."""


@validate_call
def write_generator(space: str, folder: Path, *, seed: int = 0) -> Path:
    """Fit the generator of a search space, and write its card and arrays; return the card.

    Args:
        space: one of `GENERATED_SPACES`.
        folder: where to write.
        seed: of all draws.

    Raises:
        UnknownNameError: there is no such search space.
        MissingDataError: FedHPO-B is not installed here.
    """
    require_known("search space", space, GENERATED_SPACES)
    data = open_meta_data(space)
    train = list(data.where("train"))
    arrays = _fit_arrays(data, train, seed)
    card = {
        "format": FORMAT,
        "name": generator_stem(space),
        "task": generator_stem(space),
        "version": 1,
        "search_space": data.space.to_dict(),
        "rounds": list(data.rounds),
        "client_sample_rates": list(data.rates),
        "measured": list(data.objectives),
        "features": list(data.card["features"]),
        "fitted_on": [data.names[i] for i in train],
        "fitted_on_card": data.fingerprint,
        "evaluations": len(train) * data.features.shape[1],
        "licence": "Apache-2.0",
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": this_machine("cpu"),
        "software": versions("numpy", "torch", "gpytorch"),
        "build_command": f"fedhpo-gym generator {space}" + (f" --seed {seed}" if seed else ""),
    }
    with TemporaryDirectory() as aside:  # the elites are not known yet
        path = write_archive(Path(aside), f"{generator_stem(space)}{SUFFIX}", card, arrays)
        arrays["elites"] = _find_elites(TaskGenerator(path), data, train, seed)
    return write_archive(folder, f"{generator_stem(space)}{SUFFIX}", card, arrays)


def _fit_arrays(data: MetaData, train: list[int], seed: int) -> dict[str, Singles]:
    """Return the arrays of a generator, with placeholders for elites."""
    measured, costs = data.values[train][..., : -len(COSTS)], data.values[train][..., -len(COSTS) :]
    tasks, pool, rates, rounds, _ = measured.shape
    # Scores of all fidelities are ranked together, so a curve keeps its shape.
    flat = measured.reshape(tasks, pool * rates * rounds, -1)
    priced = costs[:, :, :, -1].reshape(tasks, pool * rates, -1)
    scores, cost_scores = (scores_of(values, np.empty(0))[0] for values in (flat, priced))
    targets = np.concatenate(
        [scores.reshape(tasks, pool, -1), cost_scores.reshape(tasks, pool, -1)], axis=2
    )
    alike = [data.objectives.index(name) for name in ALIKE]
    places = _place_tasks(data, train, scores.reshape(measured.shape)[:, :, -1, -1, alike], seed)
    inputs = np.concatenate(
        [
            2.0 * data.features[train].astype(np.float64) - 1.0,
            np.broadcast_to(places[:, None], (tasks, pool, places.shape[1])),
        ],
        axis=2,
    )
    width = data.features.shape[2]
    networks = sampled_networks(
        inputs.reshape(tasks * pool, -1),
        targets.reshape(tasks * pool, -1),
        widths=WIDTHS,
        samples=NETWORKS,
        activation="gate",
        chains=CHAINS,
        burn_in=BURN_IN,
        keep_every=KEEP_EVERY,
        batch=BATCH,
        least_noise=LEAST_NOISE,
        seed=seed,
    )
    del networks["log_variance"]
    if max(np.abs(weights).max() for weights in networks.values()) >= MAX_WEIGHT:
        raise InvalidArgumentError("`seed` must be another: a network has weights of 8 or more")
    arrays = {
        n: on_grid(a, WEIGHT_BITS, MAX_WEIGHT).astype(np.float32) for n, a in networks.items()
    }
    ends = arrays["weight_0"]
    arrays |= {
        "weight_0": ends[:, :width],
        "place_weight": ends[:, width:],
        "places": places.astype(np.float32),
        "spread": (SPREAD * places.std(axis=0)).astype(np.float32),
        "bounded": np.concatenate(
            [_quantile_tables(flat, 2), _quantile_tables(priced, 0)], axis=1
        ).astype(np.float32),
        **_fit_noise(networks, inputs.reshape(tasks * pool, -1), scores.reshape(tasks * pool, -1)),
        "entropy": data.label_entropy[train].astype(np.float32),
        "facts": data.arrays["features"][train].astype(np.float32),
        "elites": data.actions[train[:1], :ELITES].repeat(NETWORKS, axis=0),
    }
    return arrays


def _place_tasks(data: MetaData, train: list[int], scores: Floats, seed: int) -> Floats:
    """Return the (T, `DIMENSIONS`) places of tasks: latent features by what all have in common."""
    order = data.arrays["order"][train].astype(int).argsort(axis=1)
    shared = order[:, : len(data.arrays["shared"])]
    common = np.take_along_axis(scores, shared[..., None], axis=1)
    mean = task_features(common.reshape(len(train), -1), DIMENSIONS, seed=seed).mean
    centred = mean - mean.mean(axis=0)
    return np.asarray(on_grid(centred / centred.std(axis=0).max(), ROW_BITS))


def _quantile_tables(values: Floats, losses: int) -> Floats:
    """Return (T, measured, `KNOTS`) quantiles, as 1 / (1 + v), of (T, n, measured) values.

    The first so many are `losses`.
    """
    count = values.shape[1]
    normal = NormalDist()
    places = [normal.inv_cdf((rank + 0.5) / count) for rank in range(count)]
    knots = LOWEST + STEP * np.arange(KNOTS)
    ordered = 1.0 / (1.0 + np.sort(values, axis=1))
    tables = np.array(
        [[np.interp(knots, places, column) for column in task_values.T] for task_values in ordered]
    )
    # A task may have a better optimum than what was tried: losses go on half as steeply.
    beyond = np.maximum(places[0] - knots, 0.0)
    first = round((places[0] - LOWEST) / STEP)
    steep = np.maximum(
        tables[:, :losses, first] - tables[:, :losses, first + round(1.0 / STEP)], 0.0
    )
    tables[:, :losses] += 0.5 * steep[..., None] * beyond
    return np.asarray(np.minimum(tables, 1.0))


def _fit_noise(
    weights: Mapping[str, Singles], inputs: Floats, targets: Floats
) -> dict[str, Singles]:
    """Return what networks leave of (n, A R measured) scores, as noise.

    `noise_scale` (measured, knots) are deviations by the score that networks answer, and `noise`
    (A R measured, `FACTORS`) what so many normal numbers add up to, in units of them.
    """
    layers = sum(name.startswith("weight_") for name in weights)
    hidden = inputs
    for layer in range(layers):
        bias = weights[f"bias_{layer}"][:, None].astype(np.float64)
        hidden = (smooth_gate(hidden) if layer else hidden) @ weights[f"weight_{layer}"] + bias
    answers = hidden[..., : targets.shape[1]]
    away = (targets - answers).reshape(-1, targets.shape[1])
    answers = answers.reshape(away.shape)
    knots = NOISE_FROM + NOISE_STEP * np.arange(NOISE_KNOTS)
    scale, each = [], np.empty_like(away)
    for q in range(len(IMPORTANCE)):
        columns = slice(q, None, len(IMPORTANCE))
        near = (np.clip(answers[:, columns], knots[0], knots[-1]) - knots[0]) / NOISE_STEP
        nearest = np.rint(near).astype(int).ravel()
        count = np.bincount(nearest, minlength=NOISE_KNOTS)
        total = np.bincount(nearest, away[:, columns].ravel() ** 2, minlength=NOISE_KNOTS)
        nonempty = np.flatnonzero(count)
        scale.append(np.interp(knots, knots[nonempty], np.sqrt(total[nonempty] / count[nonempty])))
        each[:, columns] = np.interp(answers[:, columns], knots, scale[-1])
    # Of the loss more is kept than of what follows from it.
    weight = np.tile(IMPORTANCE, targets.shape[1] // len(IMPORTANCE))
    rows = away / np.maximum(each, 1e-3) * weight
    sizes, directions = np.linalg.eigh(rows.T @ rows / len(rows))
    noise = directions[:, -FACTORS:] * np.sqrt(sizes[-FACTORS:]) / weight[:, None]
    # What is left out is not lost.
    noise *= np.sqrt((rows / weight).var(axis=0) / (noise**2).sum(axis=1))[:, None]
    return {"noise": noise.astype(np.float32), "noise_scale": np.array(scale, np.float32)}


def _find_elites(generator: TaskGenerator, data: MetaData, train: list[int], seed: int) -> Singles:
    """Return (networks, `ELITES`, d) actions, among which is one near the optimum of any task."""
    pool_actions = np.unique(data.actions[train].reshape(-1, len(data.space)), axis=0)
    halton_actions = (2.0 * halton(DRAWN, len(data.space)) - 1.0).astype(np.float32)
    candidates = np.concatenate([pool_actions, halton_actions])
    rng = stream(seed, "generator_elites")
    tasks = generator.draw(rng.integers(TASKS, size=NETWORKS * LEARNED_ON).tolist())
    elites = []
    for network in tqdm(range(NETWORKS), desc="optima", unit="network", disable=None):
        network_tasks = tasks.at(np.flatnonzero(tasks.network == network))
        best = _find_optima(generator, network_tasks, candidates, rng)
        each = [
            generator.true_scores(network_tasks, np.broadcast_to(row, best.shape)) for row in best
        ]
        table = np.stack(each, axis=1)
        reached, picks = np.zeros(len(network_tasks)), []
        top = np.maximum(table.max(axis=1), 1e-9)
        for _ in range(ELITES):
            gains = (np.maximum(table, reached[:, None]) / top[:, None]).mean(axis=0)
            picks.append(int(gains.argmax()))
            reached = np.maximum(reached, table[:, picks[-1]])
        elites.append(best[picks])
    return np.stack(elites)


def _find_optima(
    generator: TaskGenerator, tasks: GeneratedTasks, candidates: Singles, rng: np.random.Generator
) -> Singles:
    """Return the (n, d) best of (c, d) candidates in n tasks, and of mutations of these."""
    best, score = tasks.best_action.copy(), tasks.best.copy()

    def keep(tried: Singles) -> None:
        scores = generator.true_scores(tasks, tried)
        better = scores > score
        best[better], score[better] = tried[better], scores[better]

    for action in candidates:
        keep(np.broadcast_to(action, best.shape))
    for generation in range(GENERATIONS):
        mutants = best + 0.3 * 0.95**generation * rng.standard_normal(best.shape)
        child = np.clip(np.where(rng.random(best.shape) < 0.3, mutants, best), -1.0, 1.0)
        keep(child.astype(np.float32))
    return best
