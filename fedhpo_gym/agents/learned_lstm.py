"""A recurrent policy that proposes coordinates, trained on other tasks."""

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents import learned_network as nets
from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.learned_network import Given, Network, Shapes, Sizes
from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.core.arrays import Singles
from fedhpo_gym.core.seeding import stream

SEEN = 5
"""What a policy sees of a trial besides its point."""


def shapes(sizes: Sizes) -> Shapes:
    """Return the shapes of the arrays of a network of some sizes."""
    inputs, units, width = sizes["features"] + SEEN, sizes["units"], sizes["width"]
    return {
        "lstm.weight_ih_l0": (4 * units, inputs),
        "lstm.weight_hh_l0": (4 * units, units),
        "lstm.bias_ih_l0": (4 * units,),
        "lstm.bias_hh_l0": (4 * units,),
        **nets.linear_shapes("hidden", units, width),
        **nets.linear_shapes("action", width, sizes["dimensions"]),
        "deviation": (sizes["dimensions"],),
        **nets.perceptron_shapes("price", sizes["features"], nets.PRICE_WIDTH, 1),
    }


def inputs(points: Singles, scores: Singles, prices: Singles) -> Singles:
    """Return (..., n + 1, F + `SEEN`) of (..., n, F) points, (..., n) scores and what they cost.

    A policy sees what was known before each trial: zeros before the first.
    """
    before = np.zeros((*scores.shape[:-1], 1), np.float32)
    score, best = (
        np.concatenate([before, one], axis=-1)
        for one in (scores, np.maximum.accumulate(np.maximum(scores, 0.0), axis=-1))
    )
    spent = np.concatenate([before, np.cumsum(prices, axis=-1) / nets.TRIALS], axis=-1)
    count = np.broadcast_to(np.arange(score.shape[-1]) / nets.TRIALS, score.shape)
    seen = np.stack([score, best, score / np.maximum(best, 1e-6), count, spent], axis=-1)
    first = np.zeros((*points.shape[:-2], 1, points.shape[-1]), np.float32)
    last = np.concatenate([first, points], axis=-2)
    return np.concatenate([last, seen], axis=-1).astype(np.float32)


def act(network: Network, rows: Singles) -> Singles:
    """Return the (..., d) mean action after (..., n, F + `SEEN`) inputs, equal in any batch."""
    state = cell = np.zeros((*rows.shape[:-2], 1, network.sizes["units"]), np.float32)
    ins, outs = (network.arrays[f"lstm.weight_{part}_l0"].T for part in ("ih", "hh"))
    bias = network.arrays["lstm.bias_ih_l0"] + network.arrays["lstm.bias_hh_l0"]
    for step in range(rows.shape[-2]):
        # One vector at a time: a matrix product over many rows rounds otherwise.
        gates = rows[..., step, None, :] @ ins + state @ outs + bias
        enter, forget, new, leave = np.split(gates, 4, axis=-1)
        cell = nets.sigmoid(forget) * cell + nets.sigmoid(enter) * np.tanh(new)
        state = nets.sigmoid(leave) * np.tanh(cell)
    return network.linear("action", np.tanh(network.linear("hidden", state)))[..., 0, :]


class LearnedLSTM(TrialSearch):
    """Draws from a recurrent policy, which was trained by recurrent PPO over simulated time.

    Trials in flight are not seen. After `TRIALS` trials it is asked what it was not trained for.
    """

    learned, stored = "policy", True
    replays = False

    def __init__(self, problem: SearchProblem, *, policy: Given = None) -> None:
        """Take a network, or the path of its card; by default the stored one of the space."""
        super().__init__(problem)
        self.network = nets.network_for("learned-lstm", shapes, problem, policy)

    def _suggest(self, number: int) -> NDArray[np.float32]:
        actions, scores = self.told()
        points = self.problem.search_space.features(actions).astype(np.float32)
        seen = inputs(points, scores[:, 0].astype(np.float32), self.network.price(points))
        mean, spread = act(self.network, seen), self.network.arrays["deviation"]
        drawn = stream(self.seed, "learned-lstm", number).standard_normal(mean.shape)
        return np.clip(mean + spread * drawn, -1.0, 1.0).astype(np.float32)
