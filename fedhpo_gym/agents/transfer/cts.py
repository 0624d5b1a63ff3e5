"""Copula Thompson sampling (Salinas, Shen, Perrone, 2020)."""

import math

import numpy as np

from fedhpo_gym.agents.transfer import gaussian_process as process
from fedhpo_gym.agents.transfer import networks
from fedhpo_gym.agents.transfer.base import ObservedData
from fedhpo_gym.agents.transfer.gaussian_process import ndtri, rankdata
from fedhpo_gym.agents.transfer.networks import nn, torch
from fedhpo_gym.core.arrays import Floats

HIDDEN, LEAST = 50, 0.01
STEPS, BATCH, RATE = 1500, 256, 5e-3


def copula_scores(scores: Floats) -> Floats:
    """Return normal quantiles of the empirical distribution of (n,) scores, cut at both ends."""
    n = max(len(scores), 2)
    cut = 1.0 / (4.0 * n**0.25 * math.sqrt(math.pi * math.log(n)))
    return np.asarray(ndtri(np.clip(rankdata(scores, "max") / n, cut, 1.0 - cut)))


class CopulaSearch(process.EnsembleSearch):
    """Draws a quantile for every candidate, and takes the highest; its own scores are unused.

    A network says mean and deviation of a configuration's quantile over all source tasks.
    """

    eager = True

    def transfer(
        self, trials: ObservedData, candidates: Floats, rng: np.random.Generator
    ) -> Floats:
        network = process.cached_by_sources("cts", self.sources, self._train)
        with networks.single_thread():
            mean, spread = network(networks.tensor(candidates)).double().numpy().T
        deviation = np.logaddexp(0.0, spread) + LEAST
        return np.asarray(mean + deviation * rng.standard_normal(len(mean)))

    def _train(self) -> nn.Sequential:
        points = networks.tensor(np.concatenate([source.points for source in self.sources]))
        scores = [copula_scores(source.scores) for source in self.sources]
        targets = networks.tensor(np.concatenate(scores))
        with networks.seeded_torch("transfer cts"):
            network = networks.perceptron((points.shape[1], HIDDEN, HIDDEN, HIDDEN, 2), nn.ReLU)

            def loss() -> torch.Tensor:
                rows = torch.randint(len(points), (BATCH,))
                mean, spread = network(points[rows]).T
                deviation = nn.functional.softplus(spread) + LEAST
                z = (targets[rows] - mean) / deviation
                return torch.as_tensor((0.5 * z**2 + torch.log(deviation)).mean())

            networks.minimise(network, loss, STEPS, RATE)
        return network
