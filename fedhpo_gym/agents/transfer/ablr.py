"""Adaptive Bayesian linear regression (Perrone et al., 2018)."""

import numpy as np

from fedhpo_gym.agents.transfer import gaussian_process as process
from fedhpo_gym.agents.transfer import networks
from fedhpo_gym.agents.transfer.base import ObservedData
from fedhpo_gym.agents.transfer.networks import nn, torch
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import require_optional

with require_optional("agent 'ablr'", "scikit-learn", "agents", "sklearn"):
    from sklearn.linear_model import BayesianRidge

WIDTHS = (50, 50, 50)
STEPS, RATE = 1000, 5e-3
TASKS, SHOTS = 8, 50


def linear_model(features: Floats, targets: Floats) -> BayesianRidge:
    """Return Bayesian linear regression with precisions of most evidence, under weak priors."""
    prior = {"alpha_1": 2.0, "alpha_2": 0.2, "lambda_1": 1.0, "lambda_2": 0.1}
    return BayesianRidge(fit_intercept=False, max_iter=100, **prior).fit(features, targets)


def function_of(model: BayesianRidge, features: Floats) -> tuple[Floats, Floats]:
    """Return (c,) means and deviations of what a linear model says, without noise."""
    variance = ((features @ model.sigma_) * features).sum(axis=1)
    return np.asarray(features @ model.coef_), np.sqrt(np.maximum(variance, 1e-12))


class AdaptiveRegressionSearch(process.EnsembleSearch):
    """Expected improvement of a linear model on features that all source tasks share."""

    def transfer(
        self, trials: ObservedData, candidates: Floats, rng: np.random.Generator
    ) -> Floats:
        features = self._features(trials.points)
        model = linear_model(features, process.normal_scores(trials.scores))
        best = float(function_of(model, features)[0].max())
        prediction = function_of(model, self._features(candidates))
        return process.log_expected_improvement(*prediction, best)

    def _features(self, points: Floats) -> Floats:
        network = process.cached_by_sources("ablr", self.sources, self._train)
        with networks.single_thread():
            outputs = network(networks.tensor(points)).double()
        return np.column_stack([outputs.numpy(), np.ones(len(points))])

    def _train(self) -> nn.Module:
        with networks.seeded_torch("transfer ablr") as rng:
            layers = networks.perceptron((self.sources[0].points.shape[1], *WIDTHS), nn.Tanh)
            network = nn.Sequential(layers, nn.Tanh())
            precisions = nn.Parameter(torch.tensor([0.0, 1.5]).repeat(len(self.sources), 1))
            network.register_parameter("precisions", precisions)

            def loss() -> torch.Tensor:
                tasks, x, y = networks.draw_tasks(self.sources, TASKS, SHOTS, rng)
                weights, noise = torch.exp(-precisions[tasks]).T
                features = nn.functional.pad(network(x), (0, 1), value=1.0)
                factor = features * weights[:, None, None].sqrt()
                normal = torch.distributions.LowRankMultivariateNormal(
                    torch.zeros_like(y), factor, noise[:, None].expand_as(y)
                )
                log_likelihood = normal.log_prob(y)  # type: ignore[no-untyped-call]
                return torch.as_tensor(-log_likelihood.mean() / y.shape[1])

            networks.minimise(network, loss, STEPS, RATE)
        return network
