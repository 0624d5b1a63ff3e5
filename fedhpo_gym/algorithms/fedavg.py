"""FedAvg (McMahan et al., 2017), and what differs from it in one hook."""

from collections.abc import Collection

from fedhpo_gym.algorithms.base import Algorithm, Array, Context, Parameters
from fedhpo_gym.space import Dimension


class FedAvg(Algorithm):
    """Plain federated averaging: the average of the clients is the next global model."""

    name = "fedavg"

    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
        return average, state


class FedProx(FedAvg):
    """FedAvg whose clients minimise loss + mu / 2 ||w - w_broadcast||^2 (Li et al., 2020, Eq. 2).

    Values of mu are those of FedHPO-Bench's scripts.
    """

    name = "fedprox"
    dimensions = (Dimension("mu", 0.1, 5.0, "float", values=(0.1, 1.0, 5.0)),)

    def pull(self, context: Context) -> Array:
        return context.hyperparameters["mu"]


class FedBN(FedAvg):
    """FedAvg of everything but the normalisation layers (Li et al., 2021).

    Their scales, shifts and running statistics are each client's own (Section 4 there); evaluation
    is of the global parameters together with them. On a model without such layers it is FedAvg.
    """

    name = "fedbn"

    def personal(self, names: Collection[str], norms: Collection[str]) -> frozenset[str]:
        return frozenset(names) & frozenset(norms)


class Ditto(FedAvg):
    """FedAvg whose clients also train a model v of their own (Li et al., 2021, Algorithm 1).

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


class Local(FedAvg):
    """Every client trains a model of its own on its own data, in the rounds that sample it.

    All parameters stay with the clients, so nothing is left to average: the non-federated baseline
    "Isolated" (FedHPO-Bench, Appendix H.3.2). All clients start from the same initial model.
    """

    name = "local"
    copies = 0

    def personal(self, names: Collection[str], norms: Collection[str]) -> frozenset[str]:
        return frozenset(names)
