"""Bayesian optimization with a random forest, as in SMAC (Hutter, Hoos, Leyton-Brown, 2011)."""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import require_optional
from fedhpo_gym.core.seeding import stream

with require_optional("agent 'bo-rf'", "scikit-learn", "agents", "sklearn"):
    from sklearn.ensemble import RandomForestRegressor

CANDIDATES: Final = 500
"""Draws from the prior, and as many neighbours, per suggestion."""
TREES: Final = 10
DEPTH: Final = 20
SPLIT: Final = 3
FEATURES: Final = 5 / 6
"""The forest's settings (FedHPO-Bench, Appendix C), and SMAC's share of features per split."""


class ForestSearch(TrialSearch):
    """Maximises the expected improvement that a forest predicts; each trial refits it.

    A prediction is normal, with the mean and the variance of the trees. Candidates are draws from
    the prior and neighbours of the five best trials. Trees, depth and splits are those of
    FedHPO-Bench, Appendix C.

    As in SMAC, the forest learns logarithms of losses, scaled first so that they may have any
    sign, and no tried cell is tried again while a candidate lies in another one.

    Differs from SMAC: the forest is scikit-learn's with bootstrap samples. SMAC 2 itself is no
    choice here: what it suggests depends on Python's hash seed. The first trials are draws from the
    prior; a random one follows in every fifth place, for SMAC's interleaving. Neighbours differ in
    one coordinate, by normal moves of a fifth of the range as SMAC's, and are all looked at once.

    Args:
        initial: trials before there is a model.
    """

    replays = False

    def __init__(self, problem: SearchProblem, *, initial: int = 10) -> None:
        super().__init__(problem)
        self._initial = initial

    def _suggest(self, trial_index: int) -> NDArray[Any]:
        rng = stream(self.seed, "random_forest", trial_index)
        width = self.action_space.shape[0]
        prior = rng.random((CANDIDATES, width))
        if len(self.results) < self._initial or trial_index % 5 == 4:
            return self.from_unit(self.first_untried(prior))
        actions, scores = self.reported()
        points, losses = self.on_grid(self.to_unit(actions)), log_scaled(-scores[:, 0])
        forest = RandomForestRegressor(
            TREES,
            max_depth=DEPTH,
            min_samples_split=SPLIT,
            max_features=FEATURES,
            random_state=int(rng.integers(2**31)),
            n_jobs=1,
        ).fit(points, losses)
        best = points[np.argsort(losses, kind="stable")[:5]]
        centres = best[rng.integers(len(best), size=CANDIDATES)]
        moves = 0.2 * rng.standard_normal(centres.shape)
        is_moved = rng.integers(width, size=CANDIDATES)[:, None] == np.arange(width)
        neighbours = centres + np.where(is_moved, moves, 0.0)
        candidates = self.on_grid(np.concatenate([prior, np.clip(neighbours, 0.0, 1.0)]))
        trees = np.array([tree.predict(candidates) for tree in forest.estimators_])
        gain = expected_improvement(trees.mean(axis=0), trees.std(axis=0), losses.min())
        return self.from_unit(self.first_untried(candidates[np.argsort(-gain, kind="stable")]))


def log_scaled(losses: Floats) -> Floats:
    """Return (m,) log((y - a) / (max y - a)).

    Here a is as far below the best as the 5 % quantile is above it. This is how SMAC's encoder
    "log scaled" takes losses of any sign; equal losses are all 0.
    """
    lowest, highest = losses.min(), losses.max()
    if lowest == highest:
        return np.zeros_like(losses)
    span = highest - lowest
    offset = max(float(np.quantile(losses, 0.05) - lowest), 1e-10 * float(span))
    return np.asarray(np.log((losses - lowest + offset) / (span + offset)))


def expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Return E max(best - y, 0) of normal y (Jones, Schonlau and Welch, 1998); low y are better."""
    spread = np.maximum(deviation, 1e-12)
    z = (best - mean) / spread
    probability = np.array([0.5 * (1.0 + math.erf(x / math.sqrt(2.0))) for x in z.tolist()])
    return np.asarray(spread * (z * probability + np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)))
