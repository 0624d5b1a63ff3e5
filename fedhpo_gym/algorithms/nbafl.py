"""NbAFL (Wei et al., 2020): noise before model aggregation, for differential privacy."""

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

from fedhpo_gym.algorithms.base import Array, Context, Parameters, at_least, fit
from fedhpo_gym.algorithms.fedavg import FedAvg
from fedhpo_gym.algorithms.settings import Setting
from fedhpo_gym.space import Value


class NbAFL(FedAvg):
    """FedAvg with clipped and noised messages, and FedProx's term mu / 2 ||w - w_broadcast||^2.

    C = w_clip, c = constant, T = the rounds a course is meant to take, N = all clients, L = clients
    sampled per round, n = training samples of the client, m = those of the smallest client:

    - Every message is clipped number by number: w <- w / max(1, |w| / C).
    - Uplink: N(0, s^2) is added to every number, s = C T c / (n epsilon).
    - Downlink: if T > sqrt(N) L, N(0, s^2) is added, s = 2 C c sqrt(T^2 - L^2 N) / (m N epsilon).

    c = sqrt(2 ln(1.25 / delta)) in the paper; the default of 1, FedHPO-Bench's, therefore stands
    for a delta of 0.76. These are FederatedScope's formulas, which made the original numbers; what
    differs from theirs is that uploads are clipped before noise is added, without which the noise
    is not calibrated to anything. Wei et al. clip the norm of the whole vector, take the smallest
    client's m for all clients, twice the uplink noise, and for L the rounds a client takes part in.
    Running statistics of normalisation layers are neither clipped nor noised, and evaluation is of
    the average before the next downlink noise, both as in FederatedScope. What a course really
    spends is `fedhpo_gym.tasks.privacy`'s to say.
    """

    name = "nbafl"
    settings: ClassVar = {
        "epsilon": Setting(20.0, 1e-6, 1e12),
        "w_clip": Setting(0.1, 1e-6, 1e6),
        "constant": Setting(1.0, 0.0, 100.0),
        "mu": Setting(0.0, 0.0, 1e6),
    }
    private = ("epsilon", "constant")

    def noise_multiplier(
        self, values: Mapping[str, Value], horizon: int, share: float, size: Callable[[], int]
    ) -> float:
        """Return w_clip T c / (n epsilon) over 2 w_clip sqrt(d) / n."""
        noise = horizon * float(values["constant"]) / float(values["epsilon"])
        return noise / (2.0 * math.sqrt(size()))

    def broadcast(self, parameters: Parameters, context: Context) -> Parameters:
        t, n, sampled = context.horizon, context.num_clients, context.num_sampled
        exposed = at_least(t**2 - sampled**2 * n, 0.0)  # 0 where T <= sqrt(N) L: no noise
        scale = 2.0 * _unit(context) * exposed**0.5 / (context.num_samples * n)
        clipped = _clip(parameters, context)
        return _add_noise(clipped, scale, "nbafl downlink", context) if exposed.any() else clipped

    def pull(self, context: Context) -> Array:
        return context.hyperparameters["mu"]

    def upload(self, parameters: Parameters, context: Context) -> Parameters:
        scale = _unit(context) * context.horizon / context.num_samples
        return _add_noise(_clip(parameters, context), scale, "nbafl uplink", context)


def _unit(context: Context) -> Array:
    """Return C c / epsilon, (items,)."""
    values = context.hyperparameters
    return values["w_clip"] * values["constant"] / values["epsilon"]


def _clip(parameters: Parameters, context: Context) -> Parameters:
    limit = context.hyperparameters["w_clip"]
    return {
        name: value / at_least(abs(value) / fit(limit, value), 1.0)
        for name, value in parameters.items()
    }


def _add_noise(values: Parameters, scale: Array, purpose: str, context: Context) -> Parameters:
    """Add normal noise of (items,) standard deviations; every parameter has its own."""
    return {
        name: value + fit(scale, value) * context.normal(f"{purpose} {name}", value)
        for name, value in values.items()
    }
