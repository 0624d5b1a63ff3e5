"""DP-FedAvg (McMahan et al., 2018), with adaptive clipping (Andrew et al., 2021)."""

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from fedhpo_gym.algorithms.base import Algorithm, Array, Context, Parameters, at_least, fit, flags
from fedhpo_gym.algorithms.scaffold import WIDE_RATE
from fedhpo_gym.algorithms.settings import Setting
from fedhpo_gym.objectives import planned_noise
from fedhpo_gym.space import Dimension, Value

MOVED, FACTOR, BELOW = "move of ", "factor of the clipping norm", "below the clipping norm"


class DPFedAvg(Algorithm):
    """Federated averaging that hides whether a client took part at all.

    Every client decides alone whether it takes part, with probability q = m / N (Poisson sampling,
    N clients, m expected). With D_i what client i makes of the model, C the clipping norm and z the
    noise multiplier, all parameters taken as one vector (Algorithm 1 of McMahan et al., their
    estimator with the fixed denominator, every client of weight 1):

    - Clients send D_i / max(1, ||D_i|| / C).
    - D = (their sum + N(0, (z C)^2)) / m, m <- server_momentum m + D,
      w <- w + server_learning_rate m. In a round of nobody D is noise alone.

    C begins at `update_clip`, and stays there where `clip_rate` is 0. Else it follows a quantile
    of the norms (Andrew et al., Algorithm 1): b_i is 1 where ||D_i|| is at most C, and 0 elsewhere,
    b = 1 / 2 + (sum of (b_i - 1 / 2) + N(0, s^2)) / m, C <- C exp(-clip_rate (b - clip_quantile)).
    Differs from the paper: b is cut off at 0 and 1, since noise on few clients would end a course.
    s = `count_noise` z, and so that both together protect as z does, updates get the noise
    z / sqrt(1 - 1 / (2 count_noise)^2) in place of z (Theorem 1 there).

    z is `noise_multiplier`; where `epsilon` is positive, it is the smallest that keeps the rounds
    that are planned (epsilon, delta)-private. Running statistics of normalisation layers are
    averaged by samples, as elsewhere, and protected by nothing. Ranges are around the norms and
    rates that Andrew et al. tune.
    """

    name = "dpfedavg"
    dimensions = (
        Dimension("update_clip", 0.01, 10.0, "float", log=True, bins=4, scope="server"),
        Dimension("server_momentum", 0.0, 0.9, "float", bins=2, scope="server"),
        WIDE_RATE,
    )
    settings: ClassVar = {
        "noise_multiplier": Setting(1.0, 0.0, 1e6),
        "epsilon": Setting(0.0, 0.0, 1e6, instead="noise_multiplier"),
        "delta": Setting(1e-5, 1e-12, 0.5),
        "clip_rate": Setting(0.0, 0.0, 1.0),
        "clip_quantile": Setting(0.5, 0.0, 1.0),
        "count_noise": Setting(5.0, 0.6, 1e6),
    }
    private = ("noise_multiplier", "epsilon", "delta")
    sends_updates = True
    counts_equally = True
    poisson = True

    def noise_multiplier(
        self, values: Mapping[str, Value], horizon: int, share: float, size: Callable[[], int]
    ) -> float:
        """Return z as training has it: in single precision."""
        noise, epsilon, delta = (float(np.float32(values[name])) for name in self.private)
        return planned_noise(epsilon, delta, horizon, share) if epsilon > 0.0 else noise

    def init_state(self, parameters: Parameters, context: Context) -> Parameters:
        buffers = {MOVED + name: value - value for name, value in parameters.items()}
        initial_factor = 0.0 * context.hyperparameters["update_clip"] + 1.0
        return {**buffers, FACTOR: initial_factor[None]}

    def reports(self, parameters: Parameters, context: Context) -> Parameters:
        return {BELOW: (0.0 * context.hyperparameters["update_clip"])[None]}

    def upload(self, parameters: Parameters, context: Context) -> Parameters:
        clip, norm = _clip(context), context.norm(parameters)
        divisor = at_least(norm / clip, 1.0)
        sent = {name: value / fit(divisor, value) for name, value in parameters.items()}
        return {**sent, BELOW: (flags(norm <= clip) - 0.5)[None]}

    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
        values = context.hyperparameters
        noise, adapts = _noise(context), flags(values["clip_rate"] > 0.0)
        share = adapts / (2.0 * values["count_noise"]) ** 2
        scale = noise / (1.0 - share) ** 0.5 * _clip(context) / context.num_sampled
        updated, new_state = {}, {}
        for name, value in parameters.items():
            mean = average[name] + fit(scale, value) * context.normal(f"dpfedavg {name}", value)
            buffer = fit(values["server_momentum"], value) * state[MOVED + name] + mean
            updated[name] = value + fit(values["server_learning_rate"], value) * buffer
            new_state[MOVED + name] = buffer
        below = average[BELOW]
        spread = (values["count_noise"] * noise / context.num_sampled)[None]
        below = below + 0.5 + spread * context.normal("dpfedavg count", below)
        share_below = -at_least(-at_least(below[0], 0.0), -1.0)
        change = values["clip_rate"] * (values["clip_quantile"] - share_below)
        new_state[FACTOR] = state[FACTOR] * context.power(math.e, change)[None]
        return updated, new_state


def _clip(context: Context) -> Array:
    return context.hyperparameters["update_clip"] * context.state()[FACTOR][0]


def _noise(context: Context) -> Array:
    """Return z of the courses, (courses,)."""
    values = context.hyperparameters
    noise = 1.0 * values["noise_multiplier"]
    for course in range(len(noise)):
        epsilon, delta = (float(values[name][course]) for name in ("epsilon", "delta"))
        if epsilon > 0.0:
            rate = float(context.num_sampled[course]) / context.num_clients
            noise[course] = planned_noise(epsilon, delta, context.horizon, rate)
    return noise
