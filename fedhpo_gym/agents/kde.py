"""BOHB's model alone: Bayesian optimization with two kernel densities, at one fidelity."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.bohb import ModelSettings, densities, likeliest
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.seeding import stream


class KernelDensitySearch(TrialSearch):
    """Tries where the density of good trials, over that of bad ones, is largest.

    The model and its settings are those of `BOHB` (Falkner et al., 2018) and of FedHPO-Bench,
    Appendix C: 64 candidates, a third of random configurations, widening 3, and no bandwidth below
    0.001 of the range.

    Differs from the authors' library: grids are intervals here and lists of categories there, with
    kernels of their own, and no cell of a grid is tried twice while an untried one is drawn: to
    try it again would teach nothing. With budgets of some twenty trials, of which at least the
    first 2 (n + 1) and a third of the others are random, little is left to the model: it barely
    beats random search, as in FedHPO-Bench, where it wins on 7 problems of 20.

    Args:
        problem: what it acts on.
        model: how configurations are drawn.
    """

    replays = False

    def __init__(self, problem: SearchProblem, *, model: ModelSettings | None = None) -> None:
        super().__init__(problem)
        self._model = model or ModelSettings()

    def _suggest(self, number: int) -> NDArray[Any]:
        rng = stream(self.seed, "kernel_density", number)
        width = self.action_space.shape[0]
        prior = rng.random((self._model.candidates, width))
        actions, scores = self.told()
        points = 2.0 * self.to_unit(actions) - 1.0
        seen = list(zip(scores[:, 0].tolist(), points, strict=True))
        pair = densities(seen, width + 1, self._model.good_share)
        if pair is None or rng.random() < self._model.random_share:
            return self.from_unit(self.first_untried(prior))
        near = (likeliest(pair, self._model, rng) + 1.0) / 2.0
        return self.from_unit(self.first_untried(np.concatenate([near, prior])))
