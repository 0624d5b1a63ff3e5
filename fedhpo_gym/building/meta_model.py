"""The meta-model of Profet (Klein et al., 2019): features of tasks, and sampled networks.

A Bayesian GP latent variable model places tasks by what configurations score in them. A Bayesian
network then reads a configuration and a task's place; every sample of its weights is a function.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import Range, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_known, require_optional
from fedhpo_gym.core.seeding import stream

with require_optional(
    "fitting a meta-model", "gpytorch", "bo", "torch", "gpytorch", "linear_operator"
):
    import gpytorch
    import torch
    from gpytorch.models.gplvm import BayesianGPLVM, VariationalLatentVariable
    from torch import Tensor

Count = Annotated[int, Range(1)]

INDUCING: Final = 50
"""Most inducing points of the latent variable model."""
STEP, FRICTION, WARM_UP = 1e-2, 0.05, 1e-3
"""Of the sampler: its step, its friction, and the first noise variance of targets."""


def gate_tensor(sums: Tensor) -> Tensor:
    """Return x (1 + x / sqrt(1 + x^2)) / 2, as `stored.meta_data.smooth_gate` does."""
    return sums * (1.0 + sums * torch.rsqrt(1.0 + sums * sums)) * 0.5


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "gate": gate_tensor}


@dataclass(frozen=True)
class TaskFeatures:
    """Where T tasks are in a latent space of Q dimensions, in units of its lengthscales."""

    mean: Floats  # (T, Q)
    deviation: Floats  # (T, Q)


@contextmanager
def _seeded_torch(seed: int, name: str) -> Iterator[None]:
    """Give torch random numbers of a name, and one thread: small products are faster so."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, name).integers(2**31)))
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@validate_call
def task_features(
    values: NDArray[np.floating], dimensions: int, *, steps: int = 2000, seed: int = 0
) -> TaskFeatures:
    """Return latent features of tasks (Section 3.2; Titsias and Lawrence, 2010).

    The values of a task are standardised first. The model begins at principal components.

    Args:
        values: (T, N) of the same N configurations in T tasks.
        dimensions: Q, of the latent space.
        steps: of Adam on the variational bound.
        seed: of the model's draws.
    """
    if values.ndim != 2 or min(values.shape) < 2 or not np.isfinite(values).all():
        raise InvalidArgumentError(
            f"`values` must be (T, N) finite numbers of two tasks or more, got {values.shape}"
        )
    if not 1 <= dimensions < len(values):
        raise InvalidArgumentError(
            f"`dimensions` must be from 1 to {len(values) - 1}, below the number of tasks, got "
            f"{dimensions}"
        )
    centred = values - values.mean(axis=1, keepdims=True)
    rows = centred / (centred.std(axis=1, keepdims=True) + 1e-8)
    with _seeded_torch(seed, "task_features"):
        return _fit_latent(torch.from_numpy(rows.astype(np.float32)), dimensions, steps)


def _fit_latent(rows: Tensor, dimensions: int, steps: int) -> TaskFeatures:
    tasks, width = rows.shape
    left_vectors, sizes, _ = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    start = left_vectors[:, :dimensions] * sizes[:dimensions]
    start = start / start[:, :1].std()
    count = min(INDUCING, tasks)
    inducing = start[torch.randperm(tasks)[:count]] + 0.01 * torch.randn(count, dimensions)
    prior = gpytorch.priors.NormalPrior(torch.zeros(tasks, dimensions), torch.ones(1))
    places = VariationalLatentVariable(tasks, width, dimensions, torch.nn.Parameter(start), prior)

    class Model(BayesianGPLVM):  # type: ignore[misc]
        def __init__(self) -> None:
            shape = torch.Size([width])
            posterior = gpytorch.variational.CholeskyVariationalDistribution(count, shape)
            points = inducing.expand(width, count, dimensions).clone()
            strategy = gpytorch.variational.VariationalStrategy(
                self, points, posterior, learn_inducing_locations=False
            )
            super().__init__(places, strategy)
            self.mean_module = gpytorch.means.ZeroMean()
            kernel = gpytorch.kernels.MaternKernel(2.5, ard_num_dims=dimensions)
            self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    model, likelihood = Model(), gpytorch.likelihoods.GaussianLikelihood()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=tasks)
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    for _ in tqdm(range(steps), desc="task features", unit="step", disable=None, delay=5.0):
        optimizer.zero_grad()
        loss = -bound(model(model.sample_latent_variable()), rows.T).sum()
        loss.backward()
        optimizer.step()
    scale = model.covar_module.base_kernel.lengthscale.detach()[0]
    mean = (places.q_mu.detach() / scale).double().numpy()
    deviation = (torch.nn.functional.softplus(places.q_log_sigma.detach()) / scale).double().numpy()
    return TaskFeatures(mean, deviation)


@validate_call
def sampled_networks(
    rows: NDArray[np.floating],
    targets: NDArray[np.floating],
    *,
    widths: Sequence[Count],
    samples: Count,
    activation: str = "tanh",
    chains: Count = 1,
    burn_in: Count = 50_000,
    keep_every: Count = 100,
    batch: Count = 5,
    least_noise: float = 1e-3,
    seed: int = 0,
) -> dict[str, NDArray[np.float32]]:
    """Sample weights of networks by adaptive Hamiltonian Monte Carlo with stochastic gradients.

    The sampler is that of Springenberg et al. (2016), of which the released code of Profet divides
    the noise by the number of rows: the posterior is as much colder. Inputs and targets should be
    standardised. Returned are, for M networks, `weight_i` (M, inputs, outputs) and `bias_i`
    (M, outputs) of every layer, and `log_variance` (M, outputs) of the noise of targets.

    Args:
        rows: (n, inputs).
        targets: (n, outputs).
        widths: of the hidden layers.
        samples: M, a multiple of `chains`.
        activation: a key of `ACTIVATIONS`, between layers.
        chains: that are run side by side, from weights of their own.
        burn_in: steps before the first sample.
        keep_every: steps from one sample of a chain to the next.
        batch: rows of a step.
        least_noise: deviation that is added to that of targets: what is known without error would
            otherwise outweigh all else.
        seed: of all draws.
    """
    if rows.ndim != 2 or targets.ndim != 2 or len(rows) != len(targets) or not rows.size:
        raise InvalidArgumentError(
            f"`rows` (n, inputs) and `targets` (n, outputs) must fit together, got {rows.shape} "
            f"and {targets.shape}"
        )
    if not (np.isfinite(rows).all() and np.isfinite(targets).all()):
        raise InvalidArgumentError("`rows` and `targets` must be finite numbers")
    require_known("activation", activation, ACTIVATIONS)
    if samples % chains:
        raise InvalidArgumentError(
            f"`samples` must be a multiple of `chains`, {chains}, got {samples}"
        )
    inputs, outputs = (
        torch.from_numpy(np.ascontiguousarray(array, np.float32)) for array in (rows, targets)
    )
    shapes = list(pairwise((rows.shape[1], *widths, targets.shape[1])))
    names = [f"{kind}_{layer}" for kind in ("weight", "bias") for layer in range(len(shapes))]
    with _seeded_torch(seed, "sampled_networks"):
        start = [torch.randn(chains, *shape) / math.sqrt(shape[0]) for shape in shapes]
        start += [torch.zeros(chains, 1, shape[1]) for shape in shapes]
        noise = torch.full((chains, 1, targets.shape[1]), math.log(WARM_UP))
        sampler = _Sampler([*start, noise], len(rows), least_noise**2)
        draws: list[list[NDArray[np.float32]]] = []
        steps = burn_in + keep_every * (samples // chains - 1)
        bar = tqdm(range(1, steps + 1), desc="networks", unit="step", disable=None, delay=5.0)
        for step in bar:
            batch_rows = torch.randint(len(rows), (chains, batch))
            sampler.step(
                inputs[batch_rows], outputs[batch_rows], ACTIVATIONS[activation], step <= burn_in
            )
            if step >= burn_in and (step - burn_in) % keep_every == 0:
                draws.append([array.detach().numpy().copy() for array in sampler.parameters])
    arrays = [np.concatenate(pieces) for pieces in zip(*draws, strict=True)]
    named_arrays = dict(zip([*names, "log_variance"], arrays, strict=True))
    return {
        name: array if name in names[: len(shapes)] else array[:, 0]
        for name, array in named_arrays.items()
    }


class _Sampler:
    """Weights, their momenta, and running estimates of the gradients' spread."""

    def __init__(self, parameters: list[Tensor], count: int, least: float) -> None:
        self.parameters = [parameter.requires_grad_() for parameter in parameters]
        self._count, self._least = count, least
        self._memory, self._slope, self._square = (
            [torch.ones_like(parameter) for parameter in parameters] for _ in range(3)
        )
        self._momentum = [torch.zeros_like(parameter) for parameter in parameters]

    def step(
        self, rows: Tensor, targets: Tensor, activation: Callable[[Tensor], Tensor], adapts: bool
    ) -> None:
        """Move once, on (chains, batch, ...) rows; adapt the estimates while burning in."""
        gradients = torch.autograd.grad(self._energy(rows, targets, activation), self.parameters)
        with torch.no_grad():
            for i, slope in enumerate(gradients):
                if adapts:
                    share = self._slope[i] ** 2 / self._square[i]
                    self._memory[i] += 1.0 - share * self._memory[i]
                    rate = 1.0 / (self._memory[i] + 1.0)
                    self._slope[i] += rate * (slope - self._slope[i])
                    self._square[i] += rate * (slope**2 - self._square[i])
                inverse = torch.rsqrt(self._square[i] + 1e-10)
                spread = 2.0 * STEP**2 / self._count * FRICTION * inverse - STEP**4 / self._count**2
                momentum = self._momentum[i]
                momentum -= STEP**2 * inverse * slope + FRICTION * momentum
                momentum += torch.randn_like(slope) * spread.clamp(min=1e-16).sqrt()
                self.parameters[i] += momentum

    def _energy(
        self, rows: Tensor, targets: Tensor, activation: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the negative logarithm of the posterior, scaled up to all rows."""
        layers = len(self.parameters) // 2
        hidden = rows
        for layer in range(layers):
            hidden = hidden @ self.parameters[layer] + self.parameters[layers + layer]
            hidden = activation(hidden) if layer < layers - 1 else hidden
        spread = self.parameters[-1]
        variance = torch.exp(spread) + self._least
        away = 0.5 * ((hidden - targets) ** 2 / variance + torch.log(variance))
        prior = sum(0.5 * (weights**2).sum() for weights in self.parameters[:-1])
        prior = prior + 0.5 * ((spread - math.log(WARM_UP)) ** 2).sum()
        return away.sum() * (self._count / targets.shape[1]) + prior
