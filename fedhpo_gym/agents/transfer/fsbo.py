"""Few-shot Bayesian optimization with a deep kernel (Wistuba and Grabocka, 2021)."""

from __future__ import annotations

import copy
import math
from typing import Final

import numpy as np

from fedhpo_gym.agents.search import Array
from fedhpo_gym.agents.transfer.base import Known
from fedhpo_gym.agents.transfer.gaussian_process import (
    GaussianProcess,
    GaussianProcessSearch,
    log_expected_improvement,
    made_once,
    normal_scores,
)
from fedhpo_gym.agents.transfer.networks import nn, perceptron, seeded, tensor, torch, train

HIDDEN: Final = (32, 32, 32, 32)
STEPS: Final = 1500
RATE: Final = 3e-3
TASKS: Final = 8
SHOTS: Final = 50
TUNING: Final = 10
TUNING_RATE: Final = 1e-3


class DeepKernel(nn.Module):
    """A Matérn 5/2 kernel of what a network makes of the points."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.network = perceptron((width, *HIDDEN), nn.ReLU)
        self.settings = nn.Parameter(torch.tensor([0.0, 0.0, -2.0]))  # length, scale, noise

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean negative log likelihood of (T, n) targets at (T, n, F) points."""
        z = self.network(x) * torch.exp(-self.settings[0])
        squares = (z[:, :, None] - z[:, None]).pow(2).sum(dim=-1)
        r = math.sqrt(5.0) * torch.sqrt(squares + 1e-12)
        kernel = self.settings[1].exp() * (1.0 + r + r**2 / 3.0) * torch.exp(-r)
        noise = self.settings[2].exp() + 1e-4
        factor = torch.linalg.cholesky(kernel + noise * torch.eye(x.shape[1]))
        white = torch.linalg.solve_triangular(factor, y[:, :, None], upper=False)
        size = torch.diagonal(factor, dim1=1, dim2=2).log().sum(dim=1)
        found: torch.Tensor = (0.5 * white.pow(2).sum(dim=(1, 2)) + size).mean()
        return found / x.shape[1]

    def embedded(self, points: Array) -> Array:
        """Return what the network makes of (n, F) points."""
        with torch.no_grad():
            return np.asarray(self.network(tensor(points)).double().numpy())


class DeepKernelSearch(GaussianProcessSearch):
    """Expected improvement of a deep kernel, learned from sources and tuned to its trials."""

    def prefer(self, own: Known, candidates: Array, rng: np.random.Generator) -> Array:
        if not self.sources:
            return super().prefer(own, candidates, rng)
        kernel = copy.deepcopy(made_once("fsbo", self.sources, self._trained))
        targets = normal_scores(own.scores)
        x, y = tensor(own.points[None]), tensor(targets[None])
        train("", [*kernel.parameters()], lambda: kernel.loss(x, y), TUNING, TUNING_RATE)
        length, *others = kernel.settings.detach().double().tolist()
        known = kernel.embedded(own.points)
        settings = np.append(np.full(known.shape[1], length), others)
        model = GaussianProcess(known, targets, settings)
        return log_expected_improvement(*model.predict(kernel.embedded(candidates)), model.best)

    def _trained(self) -> DeepKernel:
        shots = min(SHOTS, *(len(one.scores) for one in self.sources))
        with seeded("transfer fsbo") as rng:
            kernel = DeepKernel(self.sources[0].points.shape[1])

            def loss() -> torch.Tensor:
                drawn = []
                for task in rng.integers(len(self.sources), size=TASKS):
                    one = self.sources[task]
                    rows = rng.permutation(len(one.scores))[:shots]
                    drawn.append((one.points[rows], normal_scores(one.scores[rows])))
                x, y = (tensor(np.array(part)) for part in zip(*drawn, strict=True))
                return kernel.loss(x, y)

            train("fsbo", [*kernel.parameters()], loss, STEPS, RATE)
        return kernel
