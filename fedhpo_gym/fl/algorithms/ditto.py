"""Ditto (Li et al., 2021): personal models beside the global one, pulled towards it."""

from __future__ import annotations

from fedhpo_gym.fl.algorithms.base import Array, Context
from fedhpo_gym.fl.algorithms.fedavg import FedAvg


class Ditto(FedAvg):
    """FedAvg whose clients also train a model v of their own (Algorithm 1 there).

    v minimises loss(v) + regularization / 2 ||v - w||^2, w being the global model of the round; it
    takes its steps on the same minibatches as the client's step on w, and is what is evaluated. A
    regularization of 0 is isolated training, a large one keeps v at the global model.
    """

    name = "ditto"
    hyperparameters = {"regularization": None}  # noqa: RUF012
    keeps_copy = True

    def pull(self, context: Context) -> Array:
        """See `Algorithm.pull`."""
        return context.hyperparameters["regularization"]
