"""A convolutional network for pictures of eight by eight pixels."""

from collections.abc import Sequence

from torch import nn

from fedhpo_gym.fl.models.module import module_model


def build(shape: Sequence[int], classes: int) -> nn.Module:
    """Return two convolutions of three by three, each halved by pooling, and a linear layer."""
    del shape  # rows of 64 pixels
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


SmallConvNet = module_model("SmallCNN", build, [])
