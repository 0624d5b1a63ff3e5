"""One federated course of logistic regression as a plain torch loop: what an engine has to beat.

No framework, no log, no message: local SGD, the weighted average, and loss, accuracy and macro-F1
of every client and split after every round. `engine_speed.py` times it; the tests compare its
curves with the engine's, draw for draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Fidelity

Step = Callable[[Tensor, Tensor, Tensor, float, float], None]
"""Takes weight (classes, d + 1), x (n, d + 1), y (n,), learning rate and weight decay; one SGD step
in place."""


class Draws(Protocol):
    """Where a course gets its randomness from."""

    def clients(self, round_index: int, count: int, sampled: int) -> list[int]:
        """Return the clients of a round."""

    def orders(self, round_index: int, client: int, size: int, epochs: int) -> Iterable[Tensor]:
        """Return the order of a client's samples in each local epoch."""


class TorchDraws:
    """Draws from one torch generator: the fast way."""

    def __init__(self, seed: int) -> None:
        """Seed the generator."""
        self._generator = torch.Generator().manual_seed(seed)

    def clients(self, round_index: int, count: int, sampled: int) -> list[int]:
        """See `Draws`."""
        return torch.randperm(count, generator=self._generator)[:sampled].tolist()

    def orders(self, round_index: int, client: int, size: int, epochs: int) -> Iterable[Tensor]:
        """See `Draws`."""
        return (torch.randperm(size, generator=self._generator) for _ in range(epochs))


def autograd_step(weight: Tensor, x: Tensor, y: Tensor, rate: float, decay: float) -> None:
    """Take one SGD step with the gradient of torch's autograd, as for any model."""
    leaf = weight.detach().requires_grad_()
    with torch.enable_grad():
        loss = functional.cross_entropy(functional.linear(x, leaf), y)
        (gradient,) = torch.autograd.grad(loss, leaf)
    weight.mul_(1.0 - rate * decay).add_(gradient, alpha=-rate)


def by_hand_step(weight: Tensor, x: Tensor, y: Tensor, rate: float, decay: float) -> None:
    """Take one SGD step with the gradient of softmax regression written out."""
    residual = functional.softmax(functional.linear(x, weight), 1)
    residual.sub_(functional.one_hot(y, len(weight)))
    weight.addmm_(residual.T, x, beta=1.0 - rate * decay, alpha=-rate / len(y))


STEPS: Mapping[str, Step] = {"autograd": autograd_step, "gradient by hand": by_hand_step}


class PlainCourse:
    """One course; `advance` goes on from where the last call stopped."""

    def __init__(
        self,
        federation: Federation,
        configuration: Mapping[str, float],
        client_sample_rate: float,
        draws: Draws,
        step: Step = autograd_step,
    ) -> None:
        """Create the course at round 0, with the engine's initial weights."""
        features, classes = federation.features.shape[1], federation.num_classes
        bound = 1 / np.sqrt(features)
        drawn = stream(federation.seed, "init").uniform(-bound, bound, (classes, features + 1))
        ones = np.ones((len(federation.features), 1), dtype=np.float32)
        x = torch.from_numpy(np.hstack([federation.features, ones]))
        y = torch.tensor(federation.labels)
        self._weight = torch.from_numpy(drawn.astype(np.float32))
        self._train = [(x[rows[0]], y[rows[0]]) for rows in federation.clients]
        self._evaluate = Evaluator(federation, x, y)
        self._epochs = int(configuration["step_size"])
        self._batch_size = int(configuration["batch_size"])
        self._rate = float(configuration["learning_rate"])
        self._decay = float(configuration["weight_decay"])
        self._sampled = Fidelity(0, client_sample_rate).sampled_clients(federation.num_clients)
        self._draws = draws
        self._step = step
        self._round = 0

    def advance(self, rounds: int) -> NDArray[np.float32]:
        """Train some more rounds: (rounds, clients, splits, metrics) learning curves."""
        with torch.no_grad():
            return np.stack([self._one_round() for _ in range(rounds)])

    def _one_round(self) -> NDArray[np.float32]:
        sampled = self._draws.clients(self._round, len(self._train), self._sampled)
        total = sum(len(self._train[client][1]) for client in sampled)
        average = torch.zeros_like(self._weight)
        for client in sampled:
            local = self._train_locally(client)
            average.add_(local, alpha=len(self._train[client][1]) / total)
        self._weight = average
        self._round += 1
        return self._evaluate(functional.linear(self._evaluate.x, average))

    def _train_locally(self, client: int) -> Tensor:
        x, y = self._train[client]
        weight = self._weight.clone()
        for order in self._draws.orders(self._round, client, len(y), self._epochs):
            xs, ys = (
                torch.split(x[order], self._batch_size),
                torch.split(y[order], self._batch_size),
            )
            for x_batch, y_batch in zip(xs, ys, strict=True):
                self._step(weight, x_batch, y_batch, self._rate, self._decay)
        return weight


class Evaluator:
    """All metrics of all clients and splits, from the logits of all rows.

    Attributes:
        x: inputs of all rows.
    """

    def __init__(self, federation: Federation, x: Tensor, y: Tensor) -> None:
        groups = [torch.from_numpy(rows) for client in federation.clients for rows in client]
        rows = torch.cat(groups)
        self._classes = federation.num_classes
        self._shape = (federation.num_clients, len(SPLITS), len(METRICS))
        self._sizes = torch.tensor([len(group) for group in groups])
        self._group = torch.repeat_interleave(torch.arange(len(groups)), self._sizes)
        self.x, self._y = x[rows], y[rows]
        self._true = self._count(self._group, self._y)

    def __call__(self, logits: Tensor) -> NDArray[np.float32]:
        """Return (clients, splits, metrics) metrics of the (rows, classes) logits of `x`."""
        losses = functional.cross_entropy(logits, self._y, reduction="none")
        predicted = logits.argmax(1)
        hit = predicted == self._y
        hits = self._count(self._group[hit], self._y[hit])
        loss = torch.zeros(len(self._sizes)).index_add_(0, self._group, losses) / self._sizes
        both = self._true + self._count(self._group, predicted)
        f1 = (2 * hits / both.clamp(min=1)).sum(1) / (both > 0).sum(1)
        metrics = torch.stack([loss, hits.sum(1) / self._sizes, f1], dim=1)
        return metrics.reshape(self._shape).numpy()

    def _count(self, group: Tensor, label: Tensor) -> Tensor:
        size = len(self._sizes) * self._classes
        return torch.bincount(group * self._classes + label, minlength=size).view(-1, self._classes)
