"""Adaptive Bayesian linear regression (Perrone et al., 2018)."""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.optimize import minimize

from fedhpo_gym.agents.search import Array
from fedhpo_gym.agents.transfer.base import Known
from fedhpo_gym.agents.transfer.gaussian_process import (
    GaussianProcessSearch,
    log_expected_improvement,
    made_once,
    normal_scores,
    sample_of,
)
from fedhpo_gym.agents.transfer.networks import nn, perceptron, seeded, tensor, torch, train

WIDTHS: Final = (50, 50, 50)
STEPS: Final = 1000
RATE: Final = 5e-3
TASKS: Final = 16


class LinearPosterior:
    """Bayesian linear regression with the weights' and the noise's precision of most evidence.

    Args:
        features: (n, D) what is linear.
        targets: (n,) what is predicted.
    """

    def __init__(self, features: Array, targets: Array) -> None:
        left, values, self._axes = np.linalg.svd(features, full_matrices=False)
        seen = left.T @ targets
        beyond = float(targets @ targets - seen @ seen)
        n = len(targets)

        def loss(logarithms: Array) -> float:
            """Return minus the log evidence, but for a constant and weak priors of both."""
            signal, noise = np.exp(-logarithms)
            variances = signal * values**2 + noise
            fit = (seen**2 / variances).sum() + max(beyond, 0.0) / noise
            size = np.log(variances).sum() + (n - len(values)) * np.log(noise)
            prior = 0.05 * logarithms[0] ** 2 + 0.5 * (logarithms[1] - 3.0) ** 2
            return float(0.5 * (fit + size) + prior)

        found = minimize(loss, [0.0, 2.0], method="L-BFGS-B", bounds=[(-6.0, 8.0), (-2.0, 12.0)])
        self.alpha, self.beta = np.exp(found.x)
        self._shrunk = 1.0 / (self.beta * values**2 + self.alpha)
        self._mean = self._axes.T @ (self.beta * self._shrunk * values * seen)

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Return (c,) means and deviations, without noise."""
        inside = features @ self._axes.T
        outside = np.maximum((features**2).sum(axis=1) - (inside**2).sum(axis=1), 0.0)
        variance = inside**2 @ self._shrunk + outside / self.alpha
        return features @ self._mean, np.sqrt(variance)


class AdaptiveRegressionSearch(GaussianProcessSearch):
    """Expected improvement of a linear model on features that all source tasks share."""

    def prefer(self, own: Known, candidates: Array, rng: np.random.Generator) -> Array:
        if not self.sources:
            return super().prefer(own, candidates, rng)
        known = self._features(own.points)
        model = LinearPosterior(known, normal_scores(own.scores))
        best = float(model.predict(known)[0].max())
        return log_expected_improvement(*model.predict(self._features(candidates)), best)

    def _features(self, points: Array) -> Array:
        network = made_once("ablr", self.sources, self._trained)
        with torch.no_grad():
            found = network(tensor(points)).double()
        return np.column_stack([found.numpy(), np.ones(len(points))])

    def _trained(self) -> nn.Module:
        samples = [sample_of(one) for one in self.sources]
        shortest = min(len(one.scores) for one in samples)
        with seeded("transfer ablr") as rng:
            network = nn.Sequential(
                perceptron((samples[0].points.shape[1], *WIDTHS), nn.Tanh), nn.Tanh()
            )
            precisions = nn.Parameter(torch.tensor([0.0, 1.5]).repeat(len(samples), 1))

            def loss() -> torch.Tensor:
                tasks = rng.permutation(len(samples))[:TASKS]
                rows = [rng.permutation(len(samples[t].scores))[:shortest] for t in tasks]
                drawn = [(samples[t], row) for t, row in zip(tasks, rows, strict=True)]
                x = tensor(np.array([one.points[row] for one, row in drawn]))
                y = tensor(np.array([one.scores[row] for one, row in drawn]))
                found = network(x)
                features = torch.cat([found, torch.ones_like(found[..., :1])], dim=2)
                alpha, beta = precisions[tasks].exp().T
                return -evidence(features, y, alpha, beta).mean() / shortest

            train("ablr", [*network.parameters(), precisions], loss, STEPS, RATE)
        return network


def evidence(
    features: torch.Tensor, y: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """Return (T,) log evidence of (T, n, D) features and (T, n) targets, but for a constant."""
    n, width = features.shape[1:]
    ratio = (beta / alpha)[:, None, None]
    inner = torch.eye(width) + ratio * features.transpose(1, 2) @ features
    factor = torch.linalg.cholesky(inner)
    seen = torch.linalg.solve_triangular(
        factor, features.transpose(1, 2) @ y[:, :, None], upper=False
    )[..., 0]
    fit = beta * (y**2).sum(dim=1) - beta * beta / alpha * (seen**2).sum(dim=1)
    size = 2.0 * torch.diagonal(factor, dim1=1, dim2=2).log().sum(dim=1)
    return torch.as_tensor(0.5 * (n * torch.log(beta) - size - fit))
