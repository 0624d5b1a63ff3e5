"""A recurrent policy that proposes coordinates, trained on other tasks."""

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents import learned_network as nets
from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.learned_network import LearnedNetwork, PolicySource, Shapes, Sizes
from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.core.arrays import Singles
from fedhpo_gym.core.seeding import stream

NUM_TRIAL_FEATURES = 5
"""Features of a trial besides its point."""


def lstm_shapes(sizes: Sizes) -> Shapes:
    """Return the shapes of the arrays of a network of some sizes."""
    num_inputs, units, width = (
        sizes["features"] + NUM_TRIAL_FEATURES,
        sizes["units"],
        sizes["width"],
    )
    return {
        "lstm.weight_ih_l0": (4 * units, num_inputs),
        "lstm.weight_hh_l0": (4 * units, units),
        "lstm.bias_ih_l0": (4 * units,),
        "lstm.bias_hh_l0": (4 * units,),
        **nets.linear_shapes("hidden", units, width),
        **nets.linear_shapes("action", width, sizes["dimensions"]),
        "deviation": (sizes["dimensions"],),
        **nets.perceptron_shapes("price", sizes["features"], nets.PRICE_WIDTH, 1),
    }


def input_rows(points: Singles, scores: Singles, prices: Singles) -> Singles:
    """Return (..., n + 1, F + 5) rows of (..., n, F) points, (..., n) scores and prices.

    A row holds the trial before it, zeros before the first.
    """
    before = np.zeros((*scores.shape[:-1], 1), np.float32)
    score, best = (
        np.concatenate([before, values], axis=-1)
        for values in (scores, np.maximum.accumulate(np.maximum(scores, 0.0), axis=-1))
    )
    used = np.concatenate([before, np.cumsum(prices, axis=-1) / nets.TRIALS], axis=-1)
    count = np.broadcast_to(np.arange(score.shape[-1]) / nets.TRIALS, score.shape)
    features = np.stack([score, best, score / np.maximum(best, 1e-6), count, used], axis=-1)
    first = np.zeros((*points.shape[:-2], 1, points.shape[-1]), np.float32)
    last = np.concatenate([first, points], axis=-2)
    return np.concatenate([last, features], axis=-1).astype(np.float32)


def act(network: LearnedNetwork, rows: Singles) -> Singles:
    """Return the (..., d) mean action after (..., n, F + 5) inputs, equal in any batch."""
    state = cell = np.zeros((*rows.shape[:-2], 1, network.sizes["units"]), np.float32)
    ins, outs = (network.arrays[f"lstm.weight_{kind}_l0"].T for kind in ("ih", "hh"))
    bias = network.arrays["lstm.bias_ih_l0"] + network.arrays["lstm.bias_hh_l0"]
    for step in range(rows.shape[-2]):
        # One vector at a time: a matrix product over many rows rounds otherwise.
        gates = rows[..., step, None, :] @ ins + state @ outs + bias
        enter, forget, new, leave = np.split(gates, 4, axis=-1)
        cell = nets.logistic(forget) * cell + nets.logistic(enter) * np.tanh(new)
        state = nets.logistic(leave) * np.tanh(cell)
    return network.linear("action", np.tanh(network.linear("hidden", state)))[..., 0, :]


class LearnedLSTM(TrialSearch):
    """Draws from a recurrent policy, which was trained by recurrent PPO over simulated time.

    Trials in flight are ignored. After `TRIALS` trials it extrapolates beyond its training.
    """

    learned, stored = "policy", True
    replays = False

    def __init__(self, problem: SearchProblem, *, policy: PolicySource = None) -> None:
        """Take a network, or the path of its card; by default the stored one of the space."""
        super().__init__(problem)
        self.network = nets.network_for("learned-lstm", lstm_shapes, problem, policy)

    def _suggest(self, trial_index: int) -> NDArray[np.float32]:
        actions, scores = self.reported()
        points = self.problem.search_space.features(actions).astype(np.float32)
        rows = input_rows(points, scores[:, 0].astype(np.float32), self.network.price(points))
        mean, spread = act(self.network, rows), self.network.arrays["deviation"]
        noise = stream(self.seed, "learned-lstm", trial_index).standard_normal(mean.shape)
        return np.clip(mean + spread * noise, -1.0, 1.0).astype(np.float32)
