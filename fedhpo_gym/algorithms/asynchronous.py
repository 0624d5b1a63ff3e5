"""FedAsync (Xie et al., 2019) and FedBuff (Nguyen et al., 2022), asynchronous algorithms.

A share `client_sample_rate` of the clients trains at any time. A client that finishes reports, and
another idle client begins with the current model. A round is one aggregation, so that no round
waits for the slowest client.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from fedhpo_gym.algorithms.base import Algorithm, Array, Context, Parameters, at_least, shift_model
from fedhpo_gym.algorithms.settings import Setting
from fedhpo_gym.space import Dimension

BUFFER = "buffer_size"
"""Reports that an aggregation waits for; 1 where a configuration does not say."""

_LATE: Mapping[str, Setting] = {
    "hinge_slope": Setting(0.0, 0.0, 1e6),
    "hinge_after": Setting(4.0, 0.0, 1e6),
    "mu": Setting(0.0, 0.0, 1e6),
}


class Asynchronous(Algorithm):
    """An aggregation adds the mean of discounted updates, times a rate, to the global model.

    An update that was begun tau aggregations ago counts s(tau) times, where
    s(tau) = (tau + 1)^-staleness_exponent / (1 + hinge_slope max(tau - hinge_after, 0)).

    The three functions of Xie et al. (2019, Section 5.2) are cases of it: an exponent and a slope
    of 0 are the constant one; a slope of 0 is the polynomial one; an exponent of 0 is the hinge.
    Reports count equally, whatever samples a client has. Running statistics of normalisation
    layers move towards those that clients report, by the discount times a rate of at most 1.

    Clients receive what `broadcast` returns when they begin. What `upload` makes of a client's
    model, or of its update where `sends_updates`, stands for the model or the update.

    Attributes:
        from_current: an update is the way to a client's model from the global model at its
            arrival; if False, from the one that the client received.
    """

    asynchronous = True
    from_current: ClassVar[bool]

    @abstractmethod
    def rate(self, context: Context) -> Array:
        """Return the (items,) rate."""

    def pull(self, context: Context) -> Array:
        """Pull towards the received model: the regulariser of FedAsync, which is FedProx's."""
        return context.hyperparameters["mu"]

    def discount(self, staleness: Array, context: Context) -> Array:
        """Return s of (items,) aggregations since reports were begun, (items,)."""
        values = context.hyperparameters
        late = at_least(staleness - values["hinge_after"], 0.0)
        power = context.power(staleness + 1.0, -values["staleness_exponent"])
        return power / (1.0 + values["hinge_slope"] * late)

    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
        """Step along `average`, the mean of discounted updates."""
        return shift_model(parameters, self.rate(context), average), state


class FedAsync(Asynchronous):
    """Every report is mixed in at once: w <- (1 - a) w + a w_client, a = mixing s(tau).

    Algorithm 1 of Xie et al. (2019); `mu` is their rho, and mixing and exponents are around theirs.
    """

    name = "fedasync"
    from_current = True
    dimensions = (
        Dimension("mixing", 0.1, 1.0, "float", bins=4, scope="server"),
        Dimension("staleness_exponent", 0.0, 1.0, "float", bins=3, scope="server"),
    )
    settings = _LATE

    def rate(self, context: Context) -> Array:
        return context.hyperparameters["mixing"]


class FedBuff(Asynchronous):
    """K = buffer_size updates are collected: w <- w + server_learning_rate mean(s(tau_i) D_i).

    D_i is the way from the model that a client received to what it made of it: Algorithm 1 of
    Nguyen et al. (2022), without secure aggregation. Their discount is the default: an exponent of
    1/2, and buffers are around their 10. Where all clients train at once, take equally long and
    are all waited for, a rate of 1 gives synchronous rounds with a mean that counts no samples.
    """

    name = "fedbuff"
    from_current = False
    dimensions = (
        Dimension(BUFFER, 1, 16, "int", log=True, bins=5, scope="server"),
        Dimension("server_learning_rate", 0.1, 1.0, "float", bins=3, scope="server"),
    )
    settings: ClassVar = {"staleness_exponent": Setting(0.5, 0.0, 10.0), **_LATE}

    def rate(self, context: Context) -> Array:
        return context.hyperparameters["server_learning_rate"]
