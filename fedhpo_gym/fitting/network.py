"""Fits a small network with Adam, in numpy: the same numbers on every run of one machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.seeding import stream
from fedhpo_gym.surrogates.network import Network

Array = NDArray[np.float32]

WIDTHS = (192, 192)
LEARNING_RATE = 4e-3
MOMENTS = (0.9, 0.99)
CLIP = 1.0
"""Residuals beyond count linearly (Huber): chaotic courses must not bend the whole surface."""
WARM_UP = 50


def train_network(
    rows: Array,
    targets: Array,
    *,
    steps: int,
    batch: int,
    widths: tuple[int, ...] = WIDTHS,
    progress: Callable[[int], object] | None = None,
) -> Network:
    """Return a network fitted to standardised targets; weights are stored in half precision.

    Args:
        rows: (n, features).
        targets: (n, outputs).
        steps: optimiser steps; the learning rate falls to zero over them along a cosine.
        batch: rows per step.
        widths: sizes of the hidden layers.
        progress: told the number of steps just done.
    """
    rng = stream(0, "surrogate_network")
    parameters = _initial((rows.shape[1], *widths, targets.shape[1]), rng)
    moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]
    order = np.arange(len(rows))
    position = len(rows)
    for step in range(1, steps + 1):
        if position + batch > len(rows):
            rng.shuffle(order)
            position = 0
        chosen = order[position : position + batch]
        position += batch
        gradients = _gradients(parameters, rows[chosen], targets[chosen])
        rate = LEARNING_RATE * min(1.0, step / WARM_UP)
        rate *= 0.5 * (1.0 + math.cos(math.pi * step / steps))
        _adam(parameters, gradients, moments, rate, step)
        if progress is not None:
            progress(1)
    names = [f"{part}_{i}" for i in range(len(widths) + 1) for part in ("weight", "bias")]
    stored = (p.astype(np.float16) for p in parameters)
    return Network(dict(zip(names, stored, strict=True)))


def _initial(sizes: tuple[int, ...], rng: np.random.Generator) -> list[Array]:
    parameters: list[Array] = []
    for inputs, outputs in pairwise(sizes):
        weight = rng.standard_normal((inputs, outputs), dtype=np.float32)
        parameters += [weight * np.float32(math.sqrt(2 / inputs)), np.zeros(outputs, np.float32)]
    parameters[-2] *= np.float32(0.1)  # start near the mean of the targets
    return parameters


def _gradients(parameters: list[Array], rows: Array, targets: Array) -> list[Array]:
    hidden = [rows]
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        hidden.append(np.maximum(hidden[-1] @ weight + bias, 0.0))
    residual = hidden[-1] @ parameters[-2] + parameters[-1] - targets
    delta = np.clip(residual, -CLIP, CLIP) / np.float32(len(rows))
    gradients: list[Array] = []
    for layer in range(len(hidden) - 1, -1, -1):
        gradients = [hidden[layer].T @ delta, delta.sum(axis=0), *gradients]
        if layer:
            delta = (delta @ parameters[2 * layer].T) * (hidden[layer] > 0)
    return gradients


def _adam(
    parameters: list[Array],
    gradients: list[Array],
    moments: list[tuple[Array, Array]],
    rate: float,
    step: int,
) -> None:
    """Update in place (Kingma and Ba, 2015)."""
    first, second = MOMENTS
    scale = np.float32(rate / (1 - first**step))
    correction = np.float32(1 / (1 - second**step))
    for parameter, gradient, (mean, square) in zip(parameters, gradients, moments, strict=True):
        mean += np.float32(1 - first) * (gradient - mean)
        square += np.float32(1 - second) * (gradient * gradient - square)
        parameter -= scale * mean / (np.sqrt(square * correction) + np.float32(1e-7))
