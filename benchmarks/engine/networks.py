"""The models that are compared, of torch's own layers; needs nothing but torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn


def logistic(inputs: int, classes: int) -> nn.Module:
    """Return logistic regression."""
    return nn.Linear(inputs, classes)


def perceptron(inputs: int, classes: int) -> nn.Module:
    """Return one hidden layer of 64 units."""
    hidden = [nn.Linear(inputs, 64), nn.BatchNorm1d(64), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(64, classes))


def convnet(inputs: int, classes: int) -> nn.Module:
    """Return the network of FEMNIST, for images of one channel and 28 x 28 pixels."""
    del inputs
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3136, 2048), nn.ReLU()),
        nn.Linear(2048, classes),
    )


NETWORKS: Mapping[str, Callable[[int, int], nn.Module]] = {
    "logistic": logistic,
    "perceptron": perceptron,
    "convnet": convnet,
}
"""Each takes the size of the first axis of a sample, and the number of classes."""
