"""Ditto (Li et al., 2021): personal models beside the global one, pulled towards it."""

from __future__ import annotations

from fedhpo_gym.algorithms.base import Array, Context
from fedhpo_gym.algorithms.fedavg import FedAvg
from fedhpo_gym.space import Dimension


class Ditto(FedAvg):
    """FedAvg whose clients also train a model v of their own (Algorithm 1 there).

    v minimises loss(v) + regularization / 2 ||v - w||^2, w being the global model of the round; it
    takes its steps on the same minibatches as the client's step on w, and is what is evaluated. A
    regularization of 0 is isolated training, a large one keeps v at the global model.
    Its range is our choice, around FederatedScope's 0.1.
    """

    name = "ditto"
    dimensions = (Dimension("regularization", 0.001, 1.0, "float", log=True, bins=4),)
    keeps_copy = True

    def pull(self, context: Context) -> Array:
        return context.hyperparameters["regularization"]
