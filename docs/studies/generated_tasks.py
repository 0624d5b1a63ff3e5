"""What tasks are like, real and generated ones, on the configurations that all real tasks share.

Of S shared configurations values are known at R + 1 fidelities: the last round at the lowest client
sample rate, then every round at the highest; the last is the full fidelity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transfer_tasks import left_by_random

from fedhpo_gym.stored.meta_data import LOSS, REPEATED, MetaData, explained_entropy
from fedhpo_gym.stored.task_generator import TASKS, TaskGenerator

Array = NDArray[np.float64]

DIVERGED, BAD = 1e30, 10.0
"""A loss from which on training has diverged; and one that no label frequencies have."""
LENGTHS, NOISES = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0), (0.01, 0.03, 0.1, 0.3, 1.0)
"""Of a Gaussian process: lengths in units of the features, noise as a share of the variance."""
TREES, TOP = 40, 0.05


@dataclass(frozen=True, eq=False)
class Described:
    """What n tasks answer of the S shared configurations, at R + 1 fidelities."""

    values: Array  # (n, S, R + 1, Q)
    again: Array  # (n, S / `REPEATED`) losses of some of them at full fidelity, under another seed
    entropy: Array  # (n,) of the labels
    optimum: Array  # (n,) the highest score that is known
    objectives: Sequence[str]

    def of(self, name: str, fidelity: int = -1) -> Array:
        """Return (n, S) values of an objective."""
        return np.asarray(self.values[:, :, fidelity, self.objectives.index(name)])

    def scores(self) -> Array:
        """Return (n, S) scores at full fidelity."""
        return explained_entropy(self.of(LOSS), self.entropy[:, None])


def shared_places(data: MetaData) -> NDArray[np.intp]:
    """Return the (T, S) places that shared configurations have in the pools."""
    order = data.arrays["order"].astype(int).argsort(axis=1)
    return np.asarray(order[:, : int(data.card["shared"])])


def shared_actions(data: MetaData) -> NDArray[np.float32]:
    """Return the (S, d) coordinates of shared configurations."""
    return np.asarray(data.actions[0][shared_places(data)[0]])


def real_tasks(data: MetaData, tasks: Sequence[int]) -> Described:
    """Return what was measured in some tasks."""
    places = shared_places(data)[list(tasks)][:, :, None, None, None]
    found = np.take_along_axis(data.values[list(tasks)], places, axis=1)
    values = np.concatenate([found[:, :, :1, -1], found[:, :, -1]], axis=2)
    seeds = data.arrays["repeats"][list(tasks), 0, :, -1, -1, data.objectives.index(LOSS)]
    again = seeds[:, : -(-values.shape[1] // REPEATED)].astype(np.float64)
    best = data.scores[list(tasks), :, -1, -1].max(axis=1)
    return Described(values, again, data.label_entropy[list(tasks)], best, data.objectives)


def generated_tasks(
    generator: TaskGenerator, numbers: Sequence[int], actions: NDArray[np.float32]
) -> Described:
    """Return what tasks of some numbers answer, each training with the noise of its seed."""
    rounds, rates = generator.rounds, generator.rates
    cells = [generator.cell(rounds[-1], rates[0])]
    cells += [generator.cell(one, rates[-1]) for one in rounds]
    features, where = generator.space.rounded_features(actions), np.tile(cells, len(actions))
    rows = features.repeat(len(cells), axis=0)
    tasks, values, again = generator.draw(numbers), [], []
    some, loss = (
        slice(len(cells) - 1, None, len(cells) * REPEATED),
        generator.objectives.index(LOSS),
    )
    for i in range(len(numbers)):
        own = tasks.at(np.full(len(rows), i))
        noise = generator.frozen_noise(own.number, rows)
        values.append(generator.evaluate(own, rows, where, noise)[0])
        own = tasks.at(np.full(len(rows[some]), i))
        other = own.number + TASKS  # no task's number, so no task's noise
        noise = generator.frozen_noise(other, rows[some])
        again.append(generator.evaluate(own, rows[some], where[some], noise)[0][:, loss])
    found = np.reshape(values, (len(numbers), len(actions), len(cells), -1))
    return Described(found, np.array(again), tasks.entropy, tasks.best, generator.objectives)


def correlations(one: Array, other: Array) -> Array:
    """Return the (n,) rank correlations (Spearman's) of rows; NaN where all values are equal."""
    from scipy.stats import rankdata

    a, b = (rankdata(values, axis=1) for values in (one, other))
    a, b = (values - values.mean(axis=1, keepdims=True) for values in (a, b))
    size = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return np.where(size > 0, (a * b).sum(axis=1) / np.where(size > 0, size, 1.0), np.nan)


def statistics(tasks: Described) -> dict[str, Array]:
    """Return (n,) numbers for each task, by what they say; NaN where a task has none."""
    scores, loss, seconds = tasks.scores(), tasks.of(LOSS), tasks.of("time_s")
    best = scores.max(axis=1)
    solvable = best > 0
    reached = scores / np.where(solvable, best, np.nan)[:, None]
    found = {
        "best score": best,
        "useless (score 0)": (scores <= 0).mean(axis=1),
        "within 10 % of the best": np.where(solvable, (reached >= 0.9).mean(axis=1), np.nan),
    }
    for share in (0.25, 0.5, 0.75, 0.9):
        found[f"score / best, {100 * share:.0f} %"] = np.quantile(reached, share, axis=1)
    for trials in (10, 25):
        left = [left_by_random(row, trials) for row in 1.0 - reached]
        found[f"regret of {trials} random ones"] = np.array(left)
    found |= {
        "diverged": (loss >= DIVERGED).mean(axis=1),
        "bad but finite loss": ((loss >= BAD) & (loss < DIVERGED)).mean(axis=1),
        "different losses": np.array([len(np.unique(row)) for row in loss]) / loss.shape[1],
        "score with test loss": -correlations(scores, tasks.of("test_loss")),
        "score with error": -correlations(scores, tasks.of("val_error")),
        "score with worst tenth": correlations(scores, tasks.of("fairness_p10")),
        "score with spread of clients": correlations(scores, tasks.of("fairness_std")),
        "score with seconds": correlations(scores, seconds),
        "slowest / fastest": seconds.max(axis=1) / seconds.min(axis=1),
        "median seconds": np.median(seconds, axis=1),
        "loss of one seed with another": correlations(loss[:, ::REPEATED], tasks.again),
        "best of these / optimum": np.where(solvable, best / tasks.optimum, np.nan),
        "loss of fewer clients with full": correlations(tasks.of(LOSS, 0), loss),
    }
    rounds = tasks.values.shape[2] - 1
    for one in range(1, rounds):
        name = f"loss of {one} of {rounds} rounds with full"
        found[name] = correlations(tasks.of(LOSS, one), loss)
    found["better by the last round"] = (loss < tasks.of(LOSS, -2)).mean(axis=1)
    return found


def normal_scores(loss: Array) -> Array:
    """Return (n, S) ranks of losses as quantiles of a normal distribution, the best highest."""
    from scipy.special import ndtri
    from scipy.stats import rankdata

    return np.asarray(ndtri((rankdata(-loss, axis=1) - 0.5) / loss.shape[1]))


def predicted_share(features: Array, wanted: Array) -> Array:
    """Return the (n,) R2 with which a Gaussian process predicts what it was not told.

    Leave-one-out, Matern 5/2, one length for all features, the best length and noise of a grid.
    """
    distance = np.sqrt(((features[:, None] - features) ** 2).sum(axis=2)) * np.sqrt(5.0)
    centred = wanted - wanted.mean(axis=1, keepdims=True)
    found = np.full(len(wanted), -np.inf)
    for length in LENGTHS:
        r = distance / length
        values, vectors = np.linalg.eigh((1.0 + r + r * r / 3.0) * np.exp(-r))
        turned = centred @ vectors
        for noise in NOISES:
            inverse = 1.0 / (np.maximum(values, 0.0) + noise)
            away = (turned * inverse) @ vectors.T / ((vectors**2) @ inverse)
            found = np.maximum(found, 1.0 - (away**2).mean(axis=1) / centred.var(axis=1))
    return found


def importances(
    features: Array, wanted: Array, owner: NDArray[np.intp]
) -> tuple[Array, Array, Array]:
    """Return out-of-bag R2 (n,) of forests, effective dimensions (n,), and importances (n, d).

    A dimension's importance is that of its features; the effective dimension is the exponential of
    the entropy of the d importances: d where all matter alike, 1 where one alone does.
    """
    from sklearn.ensemble import RandomForestRegressor

    shares, explained = np.zeros((len(wanted), int(owner.max()) + 1)), []
    for row, own in zip(shares, wanted, strict=True):
        forest = RandomForestRegressor(
            TREES, max_features=0.5, min_samples_leaf=2, oob_score=True, random_state=0
        ).fit(features, own)
        explained.append(forest.oob_score_)
        np.add.at(row, owner, forest.feature_importances_)
    entropy = -(shares * np.log(np.maximum(shares, 1e-12))).sum(axis=1)
    return np.array(explained), np.exp(entropy), shares


def describe(tasks: Described, data: MetaData) -> dict[str, Any]:
    """Return lists for the report: statistics, by dimension where optima lie, and all scores."""
    actions = shared_actions(data)
    features, names = data.space.rounded_features(actions), data.space.names
    widths = [len(d.grid) if d.kind == "category" else 1 for d in data.space.dimensions]
    owner = np.repeat(np.arange(len(widths)), widths)
    wanted, scores = normal_scores(tasks.of(LOSS)), tasks.scores()
    found = statistics(tasks)
    found["predicted by a Gaussian process (R2)"] = predicted_share(features, wanted)
    explained, effective, shares = importances(features, wanted, owner)
    found |= {"predicted by a forest (R2)": explained, "effective dimensions": effective}
    best = wanted.argsort(axis=1)[:, -round(TOP * wanted.shape[1]) :]
    middle = (actions[best].mean(axis=1) + 1.0) / 2.0
    return {
        "statistics": {name: values.tolist() for name, values in found.items()},
        "optimum": {name: middle[:, i].tolist() for i, name in enumerate(names)},
        "importance": {name: shares[:, i].tolist() for i, name in enumerate(names)},
        "scores": scores.tolist(),
    }
