"""Random Fourier features: a Gaussian process as a linear model with finitely many weights.

Rahimi and Recht (NeurIPS 2007); the normalisation is that of Dai, Low and Jaillet (NeurIPS 2020),
Section 2, under which the features of every point have the same length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

REFINEMENTS: Final = (0.1, 0.03, 0.01, 0.003)
"""Standard deviations of the random steps around the best point, one stage each."""


@dataclass(frozen=True, eq=False)
class FourierFeatures:
    """Features whose inner products approximate a squared-exponential kernel of variance 1.

    Attributes:
        frequencies: (features, n), drawn from N(0, 1 / length_scale²).
        phases: (features,), drawn uniformly from [0, 2π).
    """

    frequencies: Array
    phases: Array

    def __call__(self, points: Array) -> Array:
        """Return the (m, features) features of (m, n) points; every row has length 1."""
        waves = np.cos(points @ self.frequencies.T + self.phases)
        return np.asarray(waves / np.linalg.norm(waves, axis=1, keepdims=True))


def draw_features(
    dimensions: int, number: int, length_scale: float, rng: np.random.Generator
) -> FourierFeatures:
    """Draw features for points of some dimensions."""
    frequencies = rng.standard_normal((number, dimensions)) / length_scale
    return FourierFeatures(frequencies, rng.uniform(0.0, 2.0 * np.pi, number))


def posterior(features: Array, values: Array, noise: float) -> tuple[Array, Array]:
    """Return the posterior of the weights, prior N(0, I), as its mean and a square root.

    With Σ = ΦᵀΦ + noise I the weights are N(Σ⁻¹Φᵀy, noise Σ⁻¹); Dai et al. (2020), Eq. 1.

    Args:
        features: (m, features) Φ, one row per observation.
        values: (m,) y.
        noise: variance of an observation.

    Returns:
        The (features,) mean, and the (features, features) S with S Sᵀ the covariance.
    """
    precision = features.T @ features + noise * np.eye(features.shape[1])
    lower = np.linalg.cholesky(precision)
    root = np.linalg.solve(lower, np.eye(len(lower))).T
    mean = root @ (root.T @ (features.T @ values))
    return mean, np.sqrt(noise) * root


def sample_weights(features: Array, values: Array, noise: float, rng: np.random.Generator) -> Array:
    """Draw (features,) weights from the posterior: one function that fits what was seen."""
    mean, root = posterior(features, values, noise)
    return np.asarray(mean + root @ rng.standard_normal(len(mean)))


def maximise(
    features: FourierFeatures,
    weights: Array,
    candidates: int,
    rng: np.random.Generator,
    value: Callable[[Array], Array] | None = None,
) -> Array:
    """Return the (n,) point of the unit cube where the drawn function is (about) largest.

    The best of `candidates` uniform points, then of a tenth as many around it per stage. With
    `value`, (m, n) points -> (m,), that function is maximised instead.
    """
    dimensions = features.frequencies.shape[1]
    points = rng.random((candidates, dimensions))
    for spread in (*REFINEMENTS, 0.0):
        values = features(points) @ weights if value is None else value(points)
        best: Array = points[np.argmax(values)]
        steps = spread * rng.standard_normal((max(candidates // 10, 1), dimensions))
        points = np.concatenate([best[None], np.clip(best + steps, 0.0, 1.0)])
    return best
