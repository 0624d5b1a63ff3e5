"""The paper's convolutional network with torch's own layers, autograd and optimizer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedhpo_gym.fl.models.cnn import MEAN, STD
from fedhpo_gym.fl.models.cnn_step import MAX_NORM

Drawn = dict[str, NDArray[np.float32]]

LAYERS = {
    "kernel1": "0.weight", "bias1": "0.bias", "scale1": "1.weight", "shift1": "1.bias",
    "mean1": "1.running_mean", "variance1": "1.running_var",
    "kernel2": "4.weight", "bias2": "4.bias", "scale2": "5.weight", "shift2": "5.bias",
    "mean2": "5.running_mean", "variance2": "5.running_var",
    "weight3": "9.weight", "bias3": "9.bias", "weight4": "11.weight", "bias4": "11.bias",
}  # fmt: skip


class Rows(nn.Module):
    """Flattens feature maps with the channels last, the order of our weights."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.permute(0, 2, 3, 1).flatten(1)


def plain_network(drawn: Drawn, channels: int) -> nn.Sequential:
    """Return the network with given parameters."""
    hidden, flat = drawn["weight3"].shape[1:]
    network = nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        Rows(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, drawn["bias4"].shape[1]),
    )  # fmt: skip
    state = network.state_dict()
    for ours, theirs in LAYERS.items():
        state[theirs] = torch.from_numpy(drawn[ours][0])
    network.load_state_dict(state)
    return network


def images(pixels: NDArray[np.uint8]) -> Tensor:
    """Return normalised (n, channels, height, width) images of (n, height, width, ...) pixels."""
    scaled = torch.from_numpy(pixels).float() / 255.0
    scaled = scaled[:, None] if scaled.ndim == 3 else scaled.permute(0, 3, 1, 2)
    return (scaled - MEAN) / STD


def train(network: nn.Sequential, x: Tensor, y: Tensor, rate: float, decay: float) -> None:
    """Take one SGD step on the mean cross-entropy, with the gradient clipped."""
    optimizer = torch.optim.SGD(network.parameters(), rate, weight_decay=decay)
    network.train()
    network.zero_grad()
    nn.functional.cross_entropy(network(x), y).backward()
    nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)
    optimizer.step()
