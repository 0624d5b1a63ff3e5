"""The problem `quadratic_deep` of DeepOBS and the ten optimizers tuned on it, all runs at once.

A noisy quadratic bowl in 100 dimensions: loss(theta) is the mean over points x of
(theta - x)^T H (theta - x) / 2. Of the eigenvalues of H, 90 are U(0, 1) and 10 are U(30, 60);
points are N(0, 0.6^2). Runs start at ones, in float32, with 7 minibatches of 128 an epoch, for
100 epochs (Schneider et al., 2019; Prabhu Teja S et al., 2020, tables 2 and 4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.analysis.tuning_cost import Prior
from fedhpo_gym.seeding import stream

DIMENSIONS, POINTS, BATCH, EPOCHS = 100, 1000, 128, 100
SCALE = 0.6
TRAIN, TEST, VALIDATION = 42, 43, 44
"""Seeds of the three sets of points, as DeepOBS has them; the first also makes the bowl."""

Array = NDArray[np.float64]
Values = Mapping[str, NDArray[np.float32]]


def log_normal(mean: float, deviation: float) -> Prior:
    """Return the distribution of 10^N(mean, deviation^2): logarithms have base 10."""
    return Prior("normal", mean, deviation, "log10")


POLY = Prior("uniform", 0.5, 5.5)
"""What the program draws; the paper says [0.5, 5]."""
BETA = Prior("uniform", -5.0, -1.0, "one_minus_log10")
MC = {"momentum": 0.9}
WC = {"weight_decay": 1e-5}


@dataclass(frozen=True)
class Optimizer:
    """An update rule and what is drawn for it.

    Attributes:
        rule: "sgd", "adagrad" or "adam".
        priors: of the hyperparameters that are drawn.
        fixed: the others that are not zero.
    """

    rule: str
    priors: Mapping[str, Prior]
    fixed: Mapping[str, float]


_MOMENTUM = Prior("uniform", 0.0, 1.0)
_CLIPPED = {"learning_rate": log_normal(-2.4543935562228762, 1.3641391791655386)}
_ADAM = {"learning_rate": log_normal(-3.0212300204337854, 1.2708856424869013)}
_BETAS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
OPTIMIZERS: Mapping[str, Optimizer] = {
    "Adam-LR": Optimizer("adam", _ADAM, _BETAS),
    "Adam": Optimizer(
        "adam",
        {
            "learning_rate": log_normal(-2.6967872556688617, 1.4208894762774538),
            "beta1": BETA,
            "beta2": BETA,
            "epsilon": Prior("uniform", -8.0, 0.0, "log10"),
        },
        {},
    ),
    "SGD-MCWC": Optimizer("sgd", _CLIPPED, {**MC, **WC}),
    "SGD-MW": Optimizer(
        "sgd",
        {
            "learning_rate": log_normal(-2.438163785483538, 1.2040263166410041),
            "momentum": _MOMENTUM,
            "weight_decay": Prior("uniform", -5.0, -1.0, "log10"),
        },
        {},
    ),
    "SGD-MCD": Optimizer("sgd", {**_CLIPPED, "power": POLY}, {**MC, **WC}),
    "Adagrad": Optimizer(
        "adagrad", {"learning_rate": log_normal(-2.004601189249433, 1.204469231243577)}, {}
    ),
    "Adam-WCD": Optimizer("adam", {**_ADAM, "power": POLY}, {**_BETAS, **WC}),
    "SGD-LR": Optimizer(
        "sgd", {"learning_rate": log_normal(-2.0957990019132593, 1.3121766191485007)}, {}
    ),
    "SGD-M": Optimizer(
        "sgd",
        {
            "learning_rate": log_normal(-2.3789883206086384, 1.4130924408241188),
            "momentum": _MOMENTUM,
        },
        {},
    ),
    "SGD-MC": Optimizer(
        "sgd", {"learning_rate": log_normal(-2.342230523721803, 1.5525436071081387)}, MC
    ),
}


@dataclass(frozen=True, eq=False)
class Bowl:
    """The problem.

    Attributes:
        hessian: (D, D).
        train: (N, D) points that minibatches are made of.
        validation: (M, D) points of whole minibatches.
        test: (M, D).
    """

    hessian: Array
    train: Array
    validation: Array
    test: Array

    @classmethod
    def make(cls) -> Bowl:
        """Draw it as DeepOBS does, from numpy's legacy generator."""
        rng = np.random.RandomState(TRAIN)
        eigenvalues = np.concatenate([rng.uniform(0, 1, 90), rng.uniform(30, 60, 10)])
        rotation = _rotation(rng)
        whole = POINTS // BATCH * BATCH
        points = [
            np.random.RandomState(seed).normal(0.0, SCALE, (POINTS, DIMENSIONS))
            for seed in (TRAIN, VALIDATION, TEST)
        ]
        hessian = rotation.T @ np.diag(eigenvalues) @ rotation
        return cls(hessian, points[0], points[1][:whole], points[2][:whole])

    def loss(self, theta: Array, points: Array) -> Array:
        """Return the mean loss over some points: (R, D), (M, D) -> (R,)."""
        middle = points.mean(axis=0)
        noise = 0.5 * np.sum((points - middle) @ self.hessian * (points - middle)) / len(points)
        away = theta.astype(np.float64) - middle
        with np.errstate(all="ignore"):
            result: Array = 0.5 * np.einsum("rd,rd->r", away @ self.hessian, away) + noise
        return result


def _rotation(rng: np.random.RandomState) -> Array:
    """Draw a rotation, uniformly, dimension by dimension (Diaconis and Shahshahani, 1987).

    A rotation of d dimensions, put below a fixed axis, and a reflection that takes this axis to a
    random direction make one of d + 1 dimensions.
    """
    angle = 2 * np.pi * rng.uniform()
    rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    for dimensions in range(3, DIMENSIONS + 1):
        direction = rng.normal(size=dimensions)
        mirror = np.eye(dimensions)[0] - direction / np.linalg.norm(direction)
        mirror /= np.linalg.norm(mirror)
        below = np.eye(dimensions)
        below[1:, 1:] = rotation
        rotation = below - 2 * np.outer(mirror, mirror @ below)
    return -rotation


def draw(optimizer: Optimizer, runs: int, seed: int, name: str) -> dict[str, NDArray[np.float32]]:
    """Draw configurations: every hyperparameter, (R,)."""
    rng = stream(seed, f"quadratic_deep {name}")
    values = {n: prior.sample(rng, runs) for n, prior in optimizer.priors.items()}
    fixed = {n: np.full(runs, value) for n, value in optimizer.fixed.items()}
    zero = dict.fromkeys(("momentum", "weight_decay", "power"), np.zeros(runs))
    return {n: value.astype(np.float32) for n, value in {**zero, **fixed, **values}.items()}


def train(bowl: Bowl, rule: str, values: Values, seed: int) -> tuple[Array, Array]:
    """Train all runs of one optimizer together.

    Args:
        bowl: the problem.
        rule: see `Optimizer`.
        values: (R,) of every hyperparameter.
        seed: of the order of the minibatches, which the runs share.

    Returns:
        Validation and test loss, (R, EPOCHS + 1) each: before the first epoch, and after each. A
        run that leaves the finite numbers has its first values from then on.
    """
    runs = len(values["learning_rate"])
    theta = np.ones((runs, DIMENSIONS), dtype=np.float32)
    hessian = bowl.hessian.astype(np.float32)
    step, rng = RULES[rule](values, theta.shape), stream(seed, "minibatches")
    losses = [[bowl.loss(theta, bowl.validation)], [bowl.loss(theta, bowl.test)]]
    with np.errstate(all="ignore"):
        for epoch in range(EPOCHS):
            rate = values["learning_rate"] * (1 - epoch / EPOCHS) ** values["power"]
            order = rng.permutation(POINTS)[: POINTS // BATCH * BATCH].reshape(-1, BATCH)
            for batch in order:
                gradient = (theta - bowl.train[batch].mean(axis=0).astype(np.float32)) @ hessian
                gradient += values["weight_decay"][:, None] * theta
                theta -= rate[:, None].astype(np.float32) * step(gradient)
            for found, points in zip(losses, (bowl.validation, bowl.test), strict=True):
                found.append(bowl.loss(theta, points))
    validation, test = (np.stack(found, axis=1) for found in losses)
    gone = np.logical_or.accumulate(~np.isfinite(validation + test), axis=1)
    return np.where(gone, validation[:, :1], validation), np.where(gone, test[:, :1], test)


Step = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def _sgd(values: Values, shape: tuple[int, ...]) -> Step:
    velocity = np.zeros(shape, dtype=np.float32)

    def step(gradient: NDArray[np.float32]) -> NDArray[np.float32]:
        velocity[:] = values["momentum"][:, None] * velocity + gradient
        return velocity

    return step


def _adagrad(_values: Values, shape: tuple[int, ...]) -> Step:
    squares = np.zeros(shape, dtype=np.float32)

    def step(gradient: NDArray[np.float32]) -> NDArray[np.float32]:
        squares[:] += gradient * gradient
        return gradient / (np.sqrt(squares) + np.float32(1e-10))

    return step


def _adam(values: Values, shape: tuple[int, ...]) -> Step:
    first, second = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    beta1, beta2 = values["beta1"][:, None], values["beta2"][:, None]
    epsilon = values["epsilon"][:, None]
    left1, left2 = np.ones_like(beta1), np.ones_like(beta2)

    def step(gradient: NDArray[np.float32]) -> NDArray[np.float32]:
        first[:] = beta1 * first + (1 - beta1) * gradient
        second[:] = beta2 * second + (1 - beta2) * gradient * gradient
        left1[:], left2[:] = left1 * beta1, left2 * beta2
        return (first / (1 - left1)) / (np.sqrt(second / (1 - left2)) + epsilon)

    return step


RULES: Mapping[str, Callable[[Values, tuple[int, ...]], Step]] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "adam": _adam,
}
