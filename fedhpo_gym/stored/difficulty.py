"""How hard a stored problem is: what random search leaves of what there is to gain.

Validation losses at full fidelity, of a whole table or of `DRAWS` configurations of a surrogate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.stored.health import labels_on
from fedhpo_gym.stored.lattice import StoredNumbers, asked_columns, asked_space, losses_at
from fedhpo_gym.tasks import Task, task_of

DRAWS = 2_048
TRIALS = (5, 10, 25, 50)
NEAR = 0.05
"""A configuration is near the best if it lacks no more of what is to gain than this share."""
TOP = 0.1
"""Share of the configurations, the best ones, whose seeds say how much a seed moves."""
CONTEST = (4.0, 10.0)
"""Standard errors of seeds that random search leaves after 25 trials, and that tuning gains over
the usual configuration, in a contest: at least."""
CONTEST_LEFT = 0.01
"""Share of (guess - best) that it leaves then, at least: a surrogate may give all its best
configurations equal seeds, and any gain is large in units of no deviation."""

USUAL: Mapping[str, float] = {
    "learning_rate": 0.1,
    "batch_size": 32,
    "step_size": 1,
    "server_learning_rate": 1.0,
    "rate_decay": 1.0,
    "clip_norm": 1e9,
    "w_clip": 1e9,
    "update_clip": 1.0,
}
"""What is set where nobody tunes, as near to it as the range comes: all else has its lowest value,
which switches it off. A bound on updates that are noised is the exception: it cannot be off."""


@dataclass(frozen=True)
class Difficulty:
    """How hard a problem is."""

    configurations: int  # how many were asked
    guess: float  # loss of always predicting how often each label occurs
    best: float  # lowest mean over seeds
    usual: float  # mean of the configuration that is used where nobody tunes
    seed: float  # standard error by seeds among the best, see `seed_error`; NaN of one seed
    # random trials -> mean of their best, less `best`; NaN of more than asked.
    left: Mapping[int, float]
    near: float  # share of the configurations that lack at most `NEAR` of guess - best
    useless: float  # share of those that are no better than the guess, or diverge

    @property
    def gain(self) -> float:
        """Standard errors of seeds that tuning gains over the usual configuration."""
        return (self.usual - self.best) / self.seed

    def scaled(self, trials: int) -> tuple[float, float, float]:
        """Return what is left, over guess - best, over usual - best, and in errors of seeds."""
        scales = (self.guess - self.best, self.usual - self.best, self.seed)
        first, second, third = (self.left[trials] / s if s > 0 else math.nan for s in scales)
        return first, second, third

    @property
    def is_contest(self) -> bool:
        """Whether optimizers have something to do here."""
        share, _, deviations = self.scaled(25)
        return share >= CONTEST_LEFT and deviations >= CONTEST[0] and self.gain >= CONTEST[1]


def difficulty_of(stored: StoredNumbers) -> Difficulty:
    """Return how hard the problem of stored numbers is."""
    task = task_of(stored.identity)
    exact = all(d.values is not None for d in stored.space.dimensions)
    space = stored.space if exact else asked_space(stored)
    asked, one = asked_columns(space, DRAWS, "difficulty"), space.columns_of([usual(space)])
    columns = {name: np.concatenate([asked[name], one[name]]) for name in space.names}
    fidelity = Fidelity(
        int(stored.fidelity_space["round"].high),
        float(stored.fidelity_space["client_sample_rate"].high),
    )
    return difficulty_from(losses_at(stored, columns, fidelity), _guess(stored, task))


def difficulty_from(losses: NDArray[np.float64], guess: float) -> Difficulty:
    """Return how hard a problem is, of which some configurations are known.

    Shapes: `losses` (configurations + 1, seeds).
    """
    *means, default = losses.mean(axis=1)
    found = np.sort(np.array(means))
    best = float(found[0])
    # A loss above a guess has taught nothing, however far above: it counts as the guess.
    worst = guess if best < guess else math.inf
    capped = np.minimum(found, worst)
    return Difficulty(
        configurations=len(found),
        guess=guess,
        best=best,
        usual=min(float(default), worst),
        seed=seed_error(losses[:-1]),
        left={k: best_of(capped, k) - best if k <= len(found) else math.nan for k in TRIALS},
        near=float((found <= best + NEAR * (guess - best)).mean()),
        useless=float((found >= guess).mean()),
    )


def best_of(losses: NDArray[np.float64], trials: int) -> float:
    """Return the expected lowest of draws with replacement from losses in ascending order."""
    count = len(losses)
    above = (np.arange(count, -1, -1) / count) ** trials
    return float((losses * -np.diff(above)).sum())


def usual(space: SearchSpace) -> dict[str, Value]:
    """Return what is used where nobody tunes: plain federated averaging, as far as it is legal.

    A learning rate of 0.1, minibatches of 32, one local epoch and a server that takes whole steps;
    whatever else there is has its lowest value, and categories their first.
    """
    chosen: dict[str, Value] = {}
    for dimension in space.dimensions:
        if not dimension.is_active(chosen):
            continue
        wanted = USUAL.get(dimension.name.partition("@")[0])
        chosen[dimension.name] = _nearest(dimension, wanted)
    return chosen


def _nearest(dimension: Dimension, wanted: float | None) -> Value:
    if dimension.kind == "category" or wanted is None:
        return dimension.decode(-1.0)
    if dimension.values is None:
        return dimension.validate(min(max(wanted, dimension.low), dimension.high))
    scale = math.log if wanted > 0 and dimension.low > 0 else float
    return min(dimension.grid, key=lambda one: abs(scale(float(one)) - scale(wanted)))


def _guess(stored: StoredNumbers, task: Task) -> float:
    labels = labels_on(stored)
    return float(labels["val_loss"]) if labels else task.chance_loss


def seed_error(losses: NDArray[np.float64]) -> float:
    """Return the standard error of a mean over seeds, as comparisons of configurations feel it.

    What a seed does to all configurations alike cancels in every comparison and does not count:
    what is left are the residuals of an additive model of configuration and seed, whose root mean
    square is divided by the root of the number of seeds, because values are means over them.

    Shapes: `losses` (configurations, seeds).
    """
    ranked = losses[np.argsort(losses.mean(axis=1))][: max(int(TOP * len(losses)), 2)]
    top = ranked[np.isfinite(ranked).all(axis=1)]
    free, seeds = (len(top) - 1) * (top.shape[1] - 1), top.shape[1]
    if free < 1:
        return math.nan
    residuals = top - top.mean(axis=0) - top.mean(axis=1, keepdims=True) + top.mean()
    return float(np.sqrt((residuals**2).sum() / free / seeds))
