"""Few-shot Bayesian optimization with a deep kernel (Wistuba and Grabocka, 2021)."""

import copy
import math

import numpy as np

from fedhpo_gym.agents.transfer import gaussian_process as process
from fedhpo_gym.agents.transfer import networks
from fedhpo_gym.agents.transfer.base import ObservedData
from fedhpo_gym.agents.transfer.networks import nn, torch
from fedhpo_gym.core.arrays import Floats

HIDDEN = (32, 32, 32, 32)
STEPS, RATE = 1200, 3e-3
TASKS, SHOTS = 8, 50
TUNING, TUNING_RATE = 5, 2e-3


class DeepKernel(nn.Module):
    """A Matérn 5/2 kernel of what a network makes of the points."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.network = networks.perceptron((width, *HIDDEN), nn.ReLU)
        self.settings = nn.Parameter(torch.tensor([0.0, 0.0, -2.0]))  # length, scale, noise

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean negative log likelihood of (T, n) targets at (T, n, F) points."""
        z = self.network(x) * torch.exp(-self.settings[0])
        squares = (z[:, :, None] - z[:, None]).pow(2).sum(dim=-1)
        r = math.sqrt(5.0) * torch.sqrt(squares + 1e-12)
        kernel = self.settings[1].exp() * (1.0 + r + r**2 / 3.0) * torch.exp(-r)
        kernel = kernel + (self.settings[2].exp() + 1e-4) * torch.eye(x.shape[1])
        normal = torch.distributions.MultivariateNormal(0.0 * y, kernel, validate_args=False)
        log_likelihood = normal.log_prob(y)  # type: ignore[no-untyped-call]
        return torch.as_tensor(-log_likelihood.mean() / x.shape[1])

    def embedded(self, points: Floats) -> Floats:
        """Return what the network makes of (n, F) points."""
        with networks.single_thread():
            return np.asarray(self.network(networks.tensor(points)).double().numpy())


class DeepKernelSearch(process.EnsembleSearch):
    """Expected improvement of a deep kernel, learned from sources and tuned to its trials."""

    def transfer(
        self, trials: ObservedData, candidates: Floats, rng: np.random.Generator
    ) -> Floats:
        kernel = copy.deepcopy(process.cached_by_sources("fsbo", self.sources, self._train))
        targets = process.normal_scores(trials.scores)
        x, y = networks.tensor(trials.points[None]), networks.tensor(targets[None])
        networks.minimise(kernel, lambda: kernel.loss(x, y), TUNING, TUNING_RATE)
        length, *others = kernel.settings.detach().double().tolist()
        features = kernel.embedded(trials.points)
        settings = np.append(np.full(features.shape[1], length), others)
        model = process.GaussianProcess(features, targets, settings)
        return process.log_expected_improvement(
            *model.predict(kernel.embedded(candidates)), model.best
        )

    def _train(self) -> DeepKernel:
        with networks.seeded_torch("transfer fsbo") as rng:
            kernel = DeepKernel(self.sources[0].points.shape[1])

            def loss() -> torch.Tensor:
                return kernel.loss(*networks.draw_tasks(self.sources, TASKS, SHOTS, rng)[1:])

            networks.minimise(kernel, loss, STEPS, RATE)
        return kernel
