"""A transformer that scores candidates by what was tried, trained on other tasks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents import learned_network as nets
from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.learned_network import Given, Network, Shapes, Sizes
from fedhpo_gym.agents.transfer.base import Known, TransferSearch
from fedhpo_gym.core.arrays import Floats, Singles

TOLD, FACTS = 3, 6
"""What a network reads of each trial, and of all of them."""
NORM_EPSILON = 1e-5
MOST = 16
"""Best configurations of each source task that are candidates."""


def shapes(sizes: Sizes) -> Shapes:
    """Return the shapes of the arrays of a network of some sizes."""
    width, heads = sizes["width"], sizes["heads"]
    if width % heads:
        raise ValueError(f"`width` must be a multiple of `heads`, got {width} and {heads}")
    found = nets.perceptron_shapes("point", sizes["features"], width, width)
    found |= nets.perceptron_shapes("price", sizes["features"], nets.PRICE_WIDTH, 1)
    found |= nets.perceptron_shapes("facts", FACTS, width, width)
    found |= nets.linear_shapes("score", TOLD, width) | nets.linear_shapes("end", width, 1)
    norms = ["norm", "end_norm"]
    for name in (f"blocks.{i}" for i in range(sizes["layers"])):
        norms += [f"{name}.norms.0", f"{name}.norms.1"]
        found |= nets.perceptron_shapes(f"{name}.after", width, 2 * width, width)
        found |= nets.linear_shapes(f"{name}.value", width, width)
        found |= nets.linear_shapes(f"{name}.out", width, width)
        found |= {f"{name}.place.weight": (width, width), f"{name}.nothing": (heads,)}
    return found | {f"{name}.{one}": (width,) for name in norms for one in ("weight", "bias")}


def told(scores: Singles) -> Singles:
    """Return (n, `TOLD`) of (n,) scores: themselves, as shares of the best, and ranks."""
    best = max(float(scores.max(initial=0.0)), 1e-6)
    below = (scores[None] < scores[:, None]) + 0.5 * (scores[None] == scores[:, None])
    ranks = below.sum(axis=1) / max(len(scores), 1)
    return np.stack([scores, scores / best, ranks], axis=1).astype(np.float32)


def facts(scores: Singles, prices: Singles) -> Singles:
    """Return (`FACTS`,) of (n,) scores and what they cost: means, and shares of the budget."""
    count, best = max(len(scores), 1), max(float(scores.max(initial=0.0)), 0.0)
    sums = [scores.sum(), (scores <= 0.0).sum(), (scores / max(best, 1e-6)).sum()]
    spent = [len(scores) / nets.TRIALS, prices.sum() / nets.TRIALS]
    return np.array([best, *(float(one) / count for one in sums), *spent], np.float32)


def logits(network: Network, points: Singles, scores: Singles, candidates: Singles) -> Singles:
    """Return the (c,) logits of (c, F) candidates, given (n, F) points and their (n,) scores.

    Where points are alone decides weights of attention: to the known ones, or to nothing.
    """
    known, heads = len(points), network.sizes["heads"]
    embedded = network.perceptron("point", np.concatenate([points, candidates]))
    tokens = embedded + network.perceptron("facts", facts(scores, network.price(points)))
    tokens[:known] += network.linear("score", told(scores))
    embedded = _normal(network, "norm", embedded)

    def apart(rows: Singles) -> Singles:
        return rows.reshape(len(rows), heads, rows.shape[1] // heads).swapaxes(0, 1)

    for name in (f"blocks.{i}" for i in range(network.sizes["layers"])):
        places = apart(network.linear(f"{name}.place", embedded))
        normal = _normal(network, f"{name}.norms.0", tokens[:known])
        values = apart(network.linear(f"{name}.value", normal))
        squares = (places**2).sum(axis=2)
        near = 2.0 * places @ places[:, :known].swapaxes(1, 2)
        near -= squares[:, :, None] + squares[:, None, :known]
        nothing = network.arrays[f"{name}.nothing"][:, None, None]
        highest = np.maximum(near.max(axis=2, keepdims=True, initial=-np.inf), nothing)
        weights = np.exp(near - highest)
        weights /= weights.sum(axis=2, keepdims=True) + np.exp(nothing - highest)
        read = (weights @ values).swapaxes(0, 1).reshape(tokens.shape)
        tokens = tokens + network.linear(f"{name}.out", read)
        tokens += network.perceptron(f"{name}.after", _normal(network, f"{name}.norms.1", tokens))
    return network.linear("end", _normal(network, "end_norm", tokens[known:]))[:, 0]


def _normal(network: Network, name: str, rows: Singles) -> Singles:
    """Return rows of mean 0 and variance 1, scaled and moved (a layer's normalisation)."""
    away = rows - rows.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((away**2).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    scale, shift = network.arrays[f"{name}.weight"], network.arrays[f"{name}.bias"]
    return np.asarray(away / deviation * scale + shift, np.float32)


class LearnedTransformer(TransferSearch):
    """The candidate that a transformer prefers, which learned over simulated time.

    What a trial will cost, it reads off the configuration. Source tasks only bring candidates, and
    only where any may be tried.
    """

    learned, stored = "policy", True
    initial = 0

    def __init__(self, problem: SearchProblem, *, policy: Given = None) -> None:
        """Take a network, or the path of its card; by default the stored one of the space."""
        super().__init__(problem)
        self.network = nets.network_for("learned-transformer", shapes, problem, policy)

    def _drawn(self, rng: np.random.Generator, actions: Floats, scores: Floats) -> NDArray[Any]:
        """Return candidates: the best of each source task, where any may be tried."""
        sources = self.problem.source_tasks
        if not sources or (self.problem.candidates and self.problem.candidates() is not None):
            return super()._drawn(rng, actions, scores)
        tops = [one.actions[np.argsort(-one.scores, kind="stable")[:MOST]] for one in sources]
        return np.unique(np.concatenate(tops), axis=0)

    def prefer(self, own: Known, candidates: Floats, rng: np.random.Generator) -> Floats:
        parts = (part.astype(np.float32) for part in (*own, candidates))
        return logits(self.network, *parts).astype(np.float64)
