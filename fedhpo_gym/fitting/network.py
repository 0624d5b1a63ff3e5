"""Fits a small network with Adam, in numpy: the same numbers on every run of one machine."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.fitting.data import PreparedRows
from fedhpo_gym.seeding import stream
from fedhpo_gym.surrogates.heads import Heads

Array = NDArray[np.float32]

WIDTHS = (96, 96, 96)
LEARNING_RATE = 4e-3
MOMENTS = (0.9, 0.99)
CLIP = 1.0
"""Residuals beyond count linearly (Huber): chaotic courses must not bend the whole surface."""
WARM_UP = 50


def train_network(
    rows: PreparedRows,
    *,
    steps: int,
    batch: int,
    widths: tuple[int, ...] = WIDTHS,
) -> Heads:
    """Return a network whose curves fit those of rows; weights are stored in half precision.

    The error is that of the curves, and not of the coefficients that the network returns: few
    outliers of a curve are one large coefficient. Rounds that a course was not trained for do not
    count. Heads of seeds are what they share plus what is
    their own, so that what one seed shows is learned for all.

    Args:
        rows: what to fit.
        steps: optimiser steps; the learning rate falls to zero over them along a cosine.
        batch: rows per step.
        widths: sizes of the hidden layers.
    """
    rng = stream(0, "surrogate_network")
    basis = rows.basis.reshape(len(rows.basis), -1)
    unit = np.float32(math.sqrt(rows.basis.shape[1]))  # coefficients grow with the knots
    plain, seed = rows.inputs[:, : -rows.seeds], rows.inputs[:, -rows.seeds :]
    parameters = _initial((plain.shape[1], *widths), rows.seeds, len(basis), rng)
    moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]
    order = np.arange(len(plain))
    position = len(plain)
    for step in range(1, steps + 1):
        if position + batch > len(plain):
            rng.shuffle(order)
            position = 0
        chosen = order[position : position + batch]
        position += batch
        gradients = _gradients(
            parameters,
            plain[chosen],
            seed[chosen],
            (rows.curves[chosen], rows.known[chosen]),
            basis * unit,
        )
        rate = LEARNING_RATE * min(1.0, step / WARM_UP)
        rate *= 0.5 * (1.0 + math.cos(math.pi * step / steps))
        _adam(parameters, gradients, moments, rate, step)
    *layers, shared, own, bias = parameters
    names = [f"{part}_{i}" for i in range(len(widths)) for part in ("weight", "bias")]
    stored = dict(zip(names, layers, strict=True))
    stored |= {"heads": (shared + own) * unit, "head_bias": bias * unit}
    return Heads({name: value.astype(np.float16) for name, value in stored.items()})


def _initial(
    sizes: tuple[int, ...], seeds: int, outputs: int, rng: np.random.Generator
) -> list[Array]:
    parameters: list[Array] = []
    for inputs, width in pairwise(sizes):
        weight = rng.standard_normal((inputs, width), dtype=np.float32)
        parameters += [weight * np.float32(math.sqrt(2 / inputs)), np.zeros(width, np.float32)]
    head = rng.standard_normal((1, sizes[-1], outputs), dtype=np.float32)
    parameters.append(head * np.float32(0.1 * math.sqrt(2 / sizes[-1])))  # start near the mean
    parameters.append(np.zeros((seeds, sizes[-1], outputs), np.float32))
    parameters.append(np.zeros((seeds, outputs), np.float32))
    return parameters


def _gradients(
    parameters: list[Array],
    rows: Array,
    seed: Array,
    wanted: tuple[Array, NDArray[np.bool_]],
    basis: Array,
) -> list[Array]:
    *layers, shared, own, bias = parameters
    hidden = [rows]
    for weight, offset in zip(layers[::2], layers[1::2], strict=True):
        hidden.append(np.maximum(hidden[-1] @ weight + offset, 0.0))
    heads = shared + own
    found: Array = seed @ bias
    where = [np.flatnonzero(column) for column in seed.T]
    for head, mine in zip(heads, where, strict=True):
        found[mine] += hidden[-1][mine] @ head
    curves, known = wanted
    clipped: Array = np.clip(found @ basis - curves, -CLIP, CLIP)
    clipped *= known  # what was filled in is no data
    slope: Array = clipped @ basis.T
    slope /= len(rows)
    of_heads: Array = np.stack([hidden[-1][mine].T @ slope[mine] for mine in where])
    shared_slope: Array = of_heads.sum(axis=0, keepdims=True)
    gradients: list[Array] = [shared_slope, of_heads, seed.T @ slope]
    delta = np.empty_like(hidden[-1])
    for head, mine in zip(heads, where, strict=True):
        delta[mine] = slope[mine] @ head.T
    delta *= hidden[-1] > 0
    for layer in range(len(hidden) - 2, -1, -1):
        gradients = [hidden[layer].T @ delta, delta.sum(axis=0), *gradients]
        if layer:
            delta = (delta @ layers[2 * layer].T) * (hidden[layer] > 0)
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
