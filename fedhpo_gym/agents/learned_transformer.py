"""A transformer that scores candidates by what was tried, trained on other tasks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents import learned_network as nets
from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.learned_network import LearnedNetwork, PolicySource, Shapes, Sizes
from fedhpo_gym.agents.transfer.base import ObservedData, TransferSearch
from fedhpo_gym.core.arrays import Floats, Singles

NUM_SCORE_FEATURES, NUM_SUMMARY_FEATURES = 3, 6
"""Features of each trial, and of all trials together."""
NORM_EPSILON = 1e-5
BEST_PER_SOURCE = 16
"""Best configurations of each source task that are candidates."""


def transformer_shapes(sizes: Sizes) -> Shapes:
    """Return the shapes of the arrays of a network of some sizes."""
    width, heads = sizes["width"], sizes["heads"]
    if width % heads:
        raise ValueError(f"`width` must be a multiple of `heads`, got {width} and {heads}")
    result = nets.perceptron_shapes("point", sizes["features"], width, width)
    result |= nets.perceptron_shapes("price", sizes["features"], nets.PRICE_WIDTH, 1)
    result |= nets.perceptron_shapes("facts", NUM_SUMMARY_FEATURES, width, width)
    result |= nets.linear_shapes("score", NUM_SCORE_FEATURES, width) | nets.linear_shapes(
        "end", width, 1
    )
    norms = ["norm", "end_norm"]
    for name in (f"blocks.{i}" for i in range(sizes["layers"])):
        norms += [f"{name}.norms.0", f"{name}.norms.1"]
        result |= nets.perceptron_shapes(f"{name}.after", width, 2 * width, width)
        result |= nets.linear_shapes(f"{name}.value", width, width)
        result |= nets.linear_shapes(f"{name}.out", width, width)
        result |= {f"{name}.place.weight": (width, width), f"{name}.nothing": (heads,)}
    return result | {f"{name}.{kind}": (width,) for name in norms for kind in ("weight", "bias")}


def score_features(scores: Singles) -> Singles:
    """Return (n, 3) features of (n,) scores: themselves, as shares of the best, and ranks."""
    best = max(float(scores.max(initial=0.0)), 1e-6)
    num_lower = (scores[None] < scores[:, None]) + 0.5 * (scores[None] == scores[:, None])
    ranks = num_lower.sum(axis=1) / max(len(scores), 1)
    return np.stack([scores, scores / best, ranks], axis=1).astype(np.float32)


def summary_features(scores: Singles, prices: Singles) -> Singles:
    """Return (6,) features of (n,) scores and prices: means, and shares of the budget."""
    count, best = max(len(scores), 1), max(float(scores.max(initial=0.0)), 0.0)
    sums = [scores.sum(), (scores <= 0.0).sum(), (scores / max(best, 1e-6)).sum()]
    used = [len(scores) / nets.TRIALS, prices.sum() / nets.TRIALS]
    return np.array([best, *(float(total) / count for total in sums), *used], np.float32)


def logits(
    network: LearnedNetwork, points: Singles, scores: Singles, candidates: Singles
) -> Singles:
    """Return the (c,) logits of (c, F) candidates, given (n, F) points and their (n,) scores.

    Attention weights depend on points alone: a candidate attends to the n trials, or to nothing.
    """
    num_trials, heads = len(points), network.sizes["heads"]
    embedded = network.perceptron("point", np.concatenate([points, candidates]))
    tokens = embedded + network.perceptron("facts", summary_features(scores, network.price(points)))
    tokens[:num_trials] += network.linear("score", score_features(scores))
    embedded = _layer_norm(network, "norm", embedded)

    def split_heads(rows: Singles) -> Singles:
        return rows.reshape(len(rows), heads, rows.shape[1] // heads).swapaxes(0, 1)

    for name in (f"blocks.{i}" for i in range(network.sizes["layers"])):
        keys = split_heads(network.linear(f"{name}.place", embedded))
        normal = _layer_norm(network, f"{name}.norms.0", tokens[:num_trials])
        values = split_heads(network.linear(f"{name}.value", normal))
        squares = (keys**2).sum(axis=2)
        similarity = 2.0 * keys @ keys[:, :num_trials].swapaxes(1, 2)
        similarity -= squares[:, :, None] + squares[:, None, :num_trials]
        nothing = network.arrays[f"{name}.nothing"][:, None, None]
        highest = np.maximum(similarity.max(axis=2, keepdims=True, initial=-np.inf), nothing)
        weights = np.exp(similarity - highest)
        weights /= weights.sum(axis=2, keepdims=True) + np.exp(nothing - highest)
        attended = (weights @ values).swapaxes(0, 1).reshape(tokens.shape)
        tokens = tokens + network.linear(f"{name}.out", attended)
        tokens += network.perceptron(
            f"{name}.after", _layer_norm(network, f"{name}.norms.1", tokens)
        )
    return network.linear("end", _layer_norm(network, "end_norm", tokens[num_trials:]))[:, 0]


def _layer_norm(network: LearnedNetwork, name: str, rows: Singles) -> Singles:
    """Return rows of mean 0 and variance 1, scaled and moved (a layer's normalisation)."""
    centred = rows - rows.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    scale, shift = network.arrays[f"{name}.weight"], network.arrays[f"{name}.bias"]
    return np.asarray(centred / deviation * scale + shift, np.float32)


class LearnedTransformer(TransferSearch):
    """The candidate that a transformer prefers, which learned over simulated time.

    It predicts the cost of a trial from the configuration. Source tasks only provide candidates,
    and only where any configuration is allowed.
    """

    learned, stored = "policy", True
    initial = 0

    def __init__(self, problem: SearchProblem, *, policy: PolicySource = None) -> None:
        """Take a network, or the path of its card; by default the stored one of the space."""
        super().__init__(problem)
        self.network = nets.network_for("learned-transformer", transformer_shapes, problem, policy)

    def _draw_candidates(
        self, rng: np.random.Generator, actions: Floats, scores: Floats
    ) -> NDArray[Any]:
        """Return candidates: the best of each source task, where any may be tried."""
        sources = self.problem.source_tasks
        if not sources or (self.problem.candidates and self.problem.candidates() is not None):
            return super()._draw_candidates(rng, actions, scores)
        best = [
            task.actions[np.argsort(-task.scores, kind="stable")[:BEST_PER_SOURCE]]
            for task in sources
        ]
        return np.unique(np.concatenate(best), axis=0)

    def prefer(self, trials: ObservedData, candidates: Floats, rng: np.random.Generator) -> Floats:
        arrays = (array.astype(np.float32) for array in (*trials, candidates))
        return logits(self.network, *arrays).astype(np.float64)
