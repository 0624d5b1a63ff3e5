"""A small federation of images, and courses of the convolutional network on it."""

from __future__ import annotations

import numpy as np

from fedhpo_gym.data.records import Dataset, make_dataset
from fedhpo_gym.fl.course import Course


def small_images(shape: tuple[int, ...] = (8, 8)) -> Dataset:
    """Return 66 images of 3 classes by 4 users of 24, 20, 17 and 5 images."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(4), (24, 20, 17, 5))
    labels = rng.integers(3, size=len(users))
    pixels = rng.integers(0, 120, (len(users), *shape), dtype=np.uint8)
    pixels[np.arange(len(users)), labels * 2] += 100
    return make_dataset("small", pixels, labels, 3, users)


def course(
    rate: float = 0.05,
    decay: float = 0.001,
    dropout: float = 0.0,
    batch: int = 4,
    epochs: int = 1,
    sampled: float = 1.0,
    **more: float,
) -> Course:
    """Return a course of seed 1; `more` is what the algorithm reads."""
    configuration = {
        "learning_rate": rate,
        "weight_decay": decay,
        "dropout": dropout,
        "batch_size": batch,
        "step_size": epochs,
        **more,
    }
    return Course(configuration, sampled, 1)
