"""The families whose training speed is measured: one record each, with an independent module.

A new family is one more `Family` in `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from turns import Compared, Schedule


@dataclass(frozen=True)
class Family:
    """One way to train, and everything that it is compared with.

    Attributes:
        task: name of the task.
        configuration: of the course; courses of a batch differ in the learning rate.
        client_sample_rate: fraction of clients sampled per round.
        rounds: rounds of a course.
        every: rounds from one evaluation to the next, as in FedHPO-Bench's script for the task.
        courses: courses of the batch.
        measured: rounds measured in a batch, alone, of the plain loop, of FederatedScope.
        warm_up: rounds before.
        turns: of our engine and pfl; see `Schedule`.
        compared: the same model of torch's own layers, what it reads, and the length to which
            gradients are shortened.
        flops: of the products of one row, of each layer, forward: 2 x inputs x outputs x places.
        settings: FederatedScope's configuration, by dotted name.
    """

    task: str
    configuration: Mapping[str, float]
    client_sample_rate: float
    rounds: int
    every: int
    courses: int
    measured: tuple[int, int, int, int]
    warm_up: int
    turns: Schedule
    compared: Compared
    flops: tuple[float, ...]
    settings: Mapping[str, Any]

    def work(self, trained: float, evaluated: float) -> float:
        """Return the floating-point operations of products over rows.

        Forward, the gradient of the weights and, in all layers but the first, that of the inputs;
        an evaluated row goes forward only.
        """
        forward = sum(self.flops)
        return trained * (3 * forward - self.flops[0]) + evaluated * forward


def _table(features: Any) -> Tensor:
    return torch.from_numpy(np.asarray(features, dtype=np.float32))


def _images(features: Any) -> Tensor:
    pixels = torch.from_numpy(np.array(features)).unsqueeze(1)
    return pixels.float().div_(255.0).sub_(0.1307).div_(0.3081)


_CNN = Family(
    task="CNN-FEMNIST",
    configuration={
        "learning_rate": 0.01,
        "weight_decay": 0.0,
        "dropout": 0.0,
        "batch_size": 32,
        "step_size": 1,
    },
    client_sample_rate=0.2,
    rounds=500,
    every=2,
    courses=2,
    measured=(2, 4, 2, 4),
    warm_up=2,
    turns=Schedule(warm_up=1, rounds=1, turns=5),
    compared=Compared("convnet", _images, max_norm=5.0),
    flops=(2 * 25 * 32 * 28 * 28, 2 * 25 * 32 * 64 * 14 * 14, 2 * 3136 * 2048, 2 * 2048 * 62),
    settings={
        "model.type": "convnet2",
        "model.hidden": 2048,
        "model.dropout": 0.0,
        "optimizer.grad_clip": 5.0,
    },
)

FAMILIES: Mapping[str, Family] = {
    "MLP": Family(
        task="MLP-CreditG",
        configuration={
            "learning_rate": 0.01,
            "weight_decay": 0.0,
            "batch_size": 64,
            "step_size": 1,
            "model_depth": 1,
            "model_width": 64,
        },
        client_sample_rate=1.0,
        rounds=500,
        every=1,
        courses=120,
        measured=(6, 30, 30, 10),
        warm_up=2,
        turns=Schedule(warm_up=2, rounds=20, turns=9),
        compared=Compared("perceptron", _table),
        flops=(2 * 20 * 64, 2 * 64 * 2),
        settings={"model.type": "mlp", "model.hidden": 64, "model.layer": 2, "model.dropout": 0.0},
    ),
    "CNN": _CNN,
    "CNN-4": replace(
        _CNN,
        configuration={**_CNN.configuration, "batch_size": 4},
        measured=(1, 2, 1, 1),
        turns=Schedule(warm_up=1, rounds=1, turns=3),
        warm_up=1,
    ),
}
