"""Copula Thompson sampling (Salinas, Shen, Perrone, 2020)."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from fedhpo_gym.agents.search import Array
from fedhpo_gym.agents.transfer.base import Known
from fedhpo_gym.agents.transfer.gaussian_process import GaussianProcessSearch, made_once
from fedhpo_gym.agents.transfer.networks import nn, perceptron, seeded, tensor, torch, train

HIDDEN: Final = 50
STEPS: Final = 1500
BATCH: Final = 256
RATE: Final = 5e-3
LEAST: Final = 0.01


def copula_scores(scores: Array) -> Array:
    """Return normal quantiles of the empirical distribution of (n,) scores, cut at both ends."""
    n = max(len(scores), 2)
    cut = 1.0 / (4.0 * n**0.25 * math.sqrt(math.pi * math.log(n)))
    return np.asarray(ndtri(np.clip(rankdata(scores, "max") / n, cut, 1.0 - cut)))


class CopulaSearch(GaussianProcessSearch):
    """Draws a quantile for every candidate, and takes the highest; its own scores are unused.

    A network says mean and deviation of a configuration's quantile over all source tasks.
    """

    @property
    def needs(self) -> int:
        return 0 if self.sources else self._initial

    def prefer(self, own: Known, candidates: Array, rng: np.random.Generator) -> Array:
        if not self.sources:
            return super().prefer(own, candidates, rng)
        network = made_once("cts", self.sources, self._trained)
        with torch.no_grad():
            mean, spread = network(tensor(candidates)).double().numpy().T
        deviation = np.logaddexp(0.0, spread) + LEAST
        return np.asarray(mean + deviation * rng.standard_normal(len(mean)))

    def _trained(self) -> nn.Sequential:
        points = tensor(np.concatenate([one.points for one in self.sources]))
        targets = tensor(np.concatenate([copula_scores(one.scores) for one in self.sources]))
        with seeded("transfer cts"):
            network = perceptron((points.shape[1], HIDDEN, HIDDEN, HIDDEN, 2), nn.ReLU)

            def loss() -> torch.Tensor:
                chosen = torch.randint(len(points), (BATCH,))
                mean, spread = network(points[chosen]).T
                deviation = nn.functional.softplus(spread) + LEAST
                away = (targets[chosen] - mean) / deviation
                return torch.as_tensor((0.5 * away**2 + torch.log(deviation)).mean())

            train("cts", [*network.parameters()], loss, STEPS, RATE)
        return network
