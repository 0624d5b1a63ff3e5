"""Fits the mean of a Gaussian process: how much each input matters is learned from the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.fitting.data import PreparedRows
from fedhpo_gym.seeding import stream
from fedhpo_gym.surrogates.kernel import MAX_ROW, ExactKernel, matern
from fedhpo_gym.surrogates.products import BATCH, EPOCHS, is_product

LIKELY_ROWS = 300
"""Most rows that the likelihood is computed of: it takes the cube of their number."""
POINTS = 1_000
"""Most rows that the process is conditioned on."""
STEPS = 60
LEARNING_RATE = 0.1
FIRST_STRETCH, FIRST_NOISE = 0.5, 0.03
STRETCHES, NOISES = (0.02, MAX_ROW), (1e-4, 1.0)
ALIKE = 0.06
"""Largest stretch of a seed where seeds are alike: curves of two correlate to 0.99. The likelihood
of few courses likes to explain chance by seeds, and then learns less of one seed for another."""
COUNTS = (EPOCHS, BATCH)
"""Hyperparameters that a model of products sees in these only."""

Floats = NDArray[np.float64]


def fit_process(
    rows: PreparedRows, *, products: bool = False, seeds_alike: bool = False
) -> ExactKernel:
    """Return the posterior mean at a kernel and a noise of high marginal likelihood.

    All coefficients share the kernel, a Matern of smoothness 3/2 with a stretch per input. Each has
    a variance of its own, for which the likelihood is maximised in closed form; coefficients count
    by their share of the variance (Rasmussen and Williams, 2006, chapters 2 and 5).

    Args:
        rows: what to fit.
        products: see products of hyperparameters, and not the numbers of epochs and samples in
            them; otherwise, see no products.
        seeds_alike: seeds differ little, see `ALIKE`.
    """
    rng = stream(0, "gaussian_process")
    order = rng.permutation(len(rows.inputs))
    targets = rows.coefficients.astype(np.float64)
    inputs = rows.inputs.astype(np.float64)
    few = np.sort(order[:LIKELY_ROWS])
    seen = seen_columns(rows.names, products=products)
    most = np.full(len(seen), STRETCHES[1])
    if seeds_alike:
        most[-rows.seeds :] = ALIKE
    stretch = np.zeros(len(seen))
    stretch[seen], noise = likely_kernel(inputs[few][:, seen], targets[few], most[seen])
    chosen = np.sort(order[:POINTS])
    stretch = stretch.astype(np.float32).astype(np.float64)
    points = (inputs[chosen] * stretch).astype(np.float32)
    gram = matern(points.astype(np.float64), points.astype(np.float64))
    weights = np.linalg.solve(gram + noise * np.eye(len(points)), targets[chosen])
    return ExactKernel(
        {
            "stretch": stretch.astype(np.float32),
            "points": points,
            "weights": weights.astype(np.float32),
        }
    )


def seen_columns(names: Sequence[str], *, products: bool) -> NDArray[np.bool_]:
    """Return which columns a process sees."""
    replaced = COUNTS if products else ()
    shown = (products if is_product(name) else name not in replaced for name in names)
    return np.array([*shown], dtype=np.bool_)


def likely_kernel(
    inputs: Floats, targets: Floats, most: float | Floats = STRETCHES[1]
) -> tuple[Floats, float]:
    """Return the stretch of every input, and the noise, after some steps up the likelihood.

    Args:
        inputs: (n, features).
        targets: (n, coefficients), each of mean 0.
        most: largest stretches.
    """
    distances = (inputs[:, None] - inputs) ** 2
    share = (targets**2).sum(axis=0)
    share = share / max(share.sum(), 1e-30)
    used = share > 1e-4  # the others are noise, and there are many
    position = np.log([*np.full(inputs.shape[1], FIRST_STRETCH), FIRST_NOISE])
    features = inputs.shape[1]
    ends = (STRETCHES[0], most)
    low, high = (
        np.log(np.append(np.full(features, s), n)) for s, n in zip(ends, NOISES, strict=True)
    )
    mean, square = np.zeros_like(position), np.zeros_like(position)
    for step in range(1, STEPS + 1):
        slope = likelihood_slope(position, distances, targets[:, used], share[used])
        mean = 0.9 * mean + 0.1 * slope
        square = 0.99 * square + 0.01 * slope**2
        rate = LEARNING_RATE * (1.0 - (step - 1) / STEPS)
        size = np.sqrt(square / (1 - 0.99**step)) + 1e-12
        position = np.clip(position + rate * mean / (1 - 0.9**step) / size, low, high)
    return np.exp(position[:-1]), float(np.exp(position[-1]))


def likelihood_slope(position: Floats, distances: Floats, targets: Floats, share: Floats) -> Floats:
    """Return the slope of the log marginal likelihood, per row and share of the variance.

    Args:
        position: logarithms of the stretches and of the noise.
        distances: (n, n, features) squared differences of the inputs.
        targets: (n, coefficients).
        share: (coefficients,) weights.
    """
    n = len(targets)
    stretches, noise = np.exp(2.0 * position[:-1]), np.exp(position[-1])
    decay = np.exp(-np.sqrt(3.0 * (distances @ stretches)))
    gram = (1.0 - np.log(decay)) * decay
    inverse = np.linalg.inv(gram + noise * np.eye(n))
    solved = inverse @ targets
    variance = np.maximum((targets * solved).sum(axis=0) / n, 1e-30)
    inner = (solved * (share / variance)) @ solved.T - share.sum() * inverse
    # d k / d log stretch = -3 exp(-sqrt(3) r) stretch^2 distance
    by_stretch = -3.0 * stretches * np.einsum("ij,ij,ijf->f", inner, decay, distances)
    return np.append(by_stretch, noise * np.trace(inner)) / (2.0 * n)
