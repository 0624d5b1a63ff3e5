"""Compiled multilayer perceptrons: Linear - ReLU layers, with batch normalisation or without.

`models/mlp.py` describes the model and creates a `Network`; the kernels of `training` call the
two functions registered here, the gradient of a minibatch and the logits. All parameters of a
course are one vector `w`, and all temporary values are in one vector `s`, so that a step allocates
almost nothing; variables that end with `_at`, or name a layer's vector, are offsets into them. Sums
run over rows in a fixed order, so that results do not depend on other courses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedhpo_gym.core.arrays import Integers, Singles
from fedhpo_gym.fl.compiled.arithmetic import (
    LANES,
    ONE,
    ZERO,
    add_product,
    add_scaled,
    copy,
    dot,
    residuals,
)
from fedhpo_gym.fl.compiled.jit import compiled, implements
from fedhpo_gym.fl.compiled.training import RowNumbers, gradient, predict

EPSILON, MOMENTUM = 1e-5, 0.1
"""Constants of batch normalisation: torch's defaults."""
_EPSILON, _KEPT, _TAKEN = np.float32(EPSILON), np.float32(1.0 - MOMENTUM), np.float32(MOMENTUM)
_U = np.uint64
_PER_UNIT = 4
"""Temporary values per hidden unit: inverse deviation, gain, and two for gradients."""


class Network(NamedTuple):
    """Dense rows, one after the other, and the shape of a perceptron.

    The parameters `w` of a course are, in this order: for every hidden layer weights (inputs x
    width) and bias, and with normalisation scale and shift; for the last layer weights (classes x
    width) and bias; with normalisation, the running mean and variance of every hidden layer.
    Inputs, units and classes are padded to multiples of eight; the padding stays zero.
    """

    x: Singles  # (n x inputs,) rows
    labels: Integers  # (n,) labels
    inputs: int  # numbers of a row, a multiple of eight
    width: int  # units of a hidden layer, a multiple of eight
    depth: int  # hidden layers
    classes: int  # number of classes
    trained: int  # parameters that are trained; running statistics follow them
    min_rows: int  # rows of the smallest minibatch
    normalised: bool  # whether hidden layers have batch normalisation


def memory(inputs: int, width: int, depth: int, classes: int, rows: int) -> int:
    """Return the length of `s` that gradients and predictions of some rows need."""
    centred = rows * (inputs + (depth - 1) * width)
    layers = depth * (2 * rows * width + _PER_UNIT * width)
    own = 2 * rows * width + width * width + rows * classes
    return centred + layers + own + max(inputs, width) + width


@compiled
def _layer_at(model: Any, layer: int) -> Any:
    """Return the offset of the weights of a layer in `w`."""
    width = model.width
    vectors = 3 if model.normalised else 1
    first = (model.inputs + vectors) * width
    return 0 if layer == 0 else first + (layer - 1) * (width + vectors) * width


@compiled
def _shift_at(model: Any, at: int) -> Any:
    """Return the offset of the shift (or bias) of a layer whose vectors begin at `at`."""
    return at + 2 * model.width if model.normalised else at


@compiled
def _last_bias(model: Any, last: int) -> Any:
    return last + (model.classes + LANES - 1) // LANES * LANES * model.width


@compiled
def _centre(x: Singles, at: int, mean: int, rows: int, width: int) -> None:
    """Subtract the mean row from x[at:] (rows x width), and write it to x[mean:]."""
    m = _U(mean)
    for k in range(_U(width)):
        x[m + k] = np.float32(0.0)
    for r in range(rows):
        add_scaled(x, mean, np.float32(1.0), x, at + r * width, width)
    share = np.float32(1.0) / np.float32(rows)
    for k in range(_U(width)):
        x[m + k] *= share
    for r in range(rows):
        add_scaled(x, at + r * width, np.float32(-1.0), x, mean, width)


@compiled
def _normalise(
    model: Any, w: Singles, at: int, running: int, rows: int, s: Singles, product: int, unit: int,
    shifted: int,
) -> None:  # fmt: skip
    """Compute the gains of a hidden layer, and update its running mean and variance.

    The products s[product:] are centred because `_centre` centred the inputs, so that their mean
    square is the variance. As in torch, the running variance is the unbiased one.
    """
    width = model.width
    n = _U(width)
    inverse, gain, p = _U(unit), _U(unit + width), _U(product)
    bias, scale = _U(at), _U(at + width)
    for k in range(n):
        s[inverse + k] = np.float32(0.0)
    for r in range(_U(rows)):
        for k in range(n):
            value = s[p + r * n + k]
            s[inverse + k] += value * value
    share = np.float32(1.0) / np.float32(rows)
    unbiased = np.float32(rows) / np.float32(max(rows - 1, 1))
    mean, variance = _U(running), _U(running + width)
    for k in range(n):
        spread = s[inverse + k] * share
        s[inverse + k] = np.float32(1.0) / np.sqrt(spread + _EPSILON)
        s[gain + k] = w[scale + k] * s[inverse + k]
        w[mean + k] = w[mean + k] * _KEPT + (s[_U(shifted) + k] + w[bias + k]) * _TAKEN
        w[variance + k] = w[variance + k] * _KEPT + spread * unbiased * _TAKEN


@compiled
def _rectify(
    width: int, w: Singles, shift: int, rows: int, s: Singles, product: int, gain: int, hidden: int
) -> None:
    """Write max(product x gain + shift, 0) to s[hidden:]."""
    n = _U(width)
    for r in range(_U(rows)):
        for k in range(n):
            value = w[_U(shift) + k] + s[_U(product) + r * n + k] * s[_U(gain) + k]
            s[_U(hidden) + r * n + k] = max(value, np.float32(0.0)) if value == value else value


@compiled
def _unrectify(
    width: int, g: Singles, shift: int, rows: int, s: Singles, hidden: int, back: int
) -> None:
    """Replace the gradient s[back:] of a layer's output by that before the ReLU."""
    n, b, h = _U(width), _U(back), _U(hidden)
    for k in range(n):
        g[_U(shift) + k] = np.float32(0.0)
    for r in range(_U(rows)):
        for k in range(n):
            i = r * n + k
            value = s[b + i] if s[h + i] > np.float32(0.0) else np.float32(0.0)
            s[b + i] = value
            g[_U(shift) + k] += value


@compiled
def _backward(
    model: Any, g: Singles, at: int, rows: int, s: Singles, product: int, unit: int, back: int,
    first: bool,
) -> None:  # fmt: skip
    """Replace the gradient s[back:] of the normalised values by that of the products."""
    width = model.width
    n = _U(width)
    inverse, gain, p, b = _U(unit), _U(unit + width), _U(product), _U(back)
    bias, scale, shift = _U(at), _U(at + width), _U(at + 2 * width)
    for k in range(n):
        g[bias + k] = g[scale + k] = np.float32(0.0)
    for r in range(_U(rows)):
        for k in range(n):
            g[scale + k] += s[b + r * n + k] * s[p + r * n + k]
    share = np.float32(1.0) / np.float32(rows)
    curve, level = _U(unit + 2 * width), _U(unit + 3 * width)
    for k in range(n):
        gradient = s[gain + k]
        s[curve + k] = gradient * s[inverse + k] * s[inverse + k] * g[scale + k] * share
        # Inputs are centred, so a term common to all rows changes no weight of the first layer.
        s[level + k] = np.float32(0.0) if first else gradient * g[shift + k] * share
        g[scale + k] *= s[inverse + k]
    for r in range(_U(rows)):
        for k in range(n):
            i = r * n + k
            value = s[b + i] * s[gain + k] - s[p + i] * s[curve + k]
            s[b + i] = value - s[level + k]


@implements(gradient, Network)
def _network(  # noqa: C901 - forward and backward
    model: Any,
    w: Singles,
    rows: RowNumbers,
    begin: int,
    end: int,
    rate: Any,
    g: Singles,
    s: Singles,
) -> None:
    inputs, width, depth, classes = model.inputs, model.width, model.depth, model.classes
    count = end - begin
    # Offsets in `s`: inputs of each layer, then per layer products, outputs and units, then work.
    square = count * width
    each = 2 * square + _PER_UNIT * width
    layers = count * (inputs + (depth - 1) * width)
    back = layers + depth * each
    other = back + square
    turned = other + square
    z = turned + width * width
    mean = z + count * classes
    shifted = mean + max(inputs, width)
    buffers = model.trained
    for r in range(count):
        copy(s, r * inputs, model.x, rows[begin + r] * inputs, inputs)
    inputs_at, size = ZERO, inputs
    for layer in range(depth):
        at, product = _layer_at(model, layer), layers + layer * each
        hidden, unit = product + square, product + 2 * square
        if model.normalised:
            _centre(s, inputs_at, mean, count, size)
        s[product : product + square] = np.float32(0.0)
        add_product(s, product, s, inputs_at, count, size, ONE, size, w, at, width)
        s[unit + width : unit + 2 * width] = np.float32(1.0)
        bias = at + size * width
        if model.normalised:
            s[shifted : shifted + width] = np.float32(0.0)
            add_product(s, shifted, s, mean, ONE, size, ONE, size, w, at, width)
            running = buffers + 2 * layer * width
            _normalise(model, w, bias, running, count, s, product, unit, shifted)
        _rectify(width, w, _shift_at(model, bias), count, s, product, unit + width, hidden)
        inputs_at += count * size
        size = width
        if layer + 1 < depth:
            copy(s, inputs_at, s, hidden, square)
    last = _layer_at(model, depth)
    hidden = layers + (depth - 1) * each + square
    bias, raised = _last_bias(model, last), np.empty(classes, dtype=np.float64)
    for r in range(count):
        for c in range(classes):
            product_of_class = dot(w, last + c * width, s, hidden + r * width, width)
            s[z + r * classes + c] = product_of_class + w[bias + c]
        label = model.labels[rows[begin + r]]
        residuals(s, z + r * classes, ONE, classes, label, rate, False, raised)
    g[last:] = np.float32(0.0)
    for r in range(count):
        for c in range(classes):
            g[bias + c] += s[z + r * classes + c]
    add_product(g, last, s, z, classes, count, classes, ONE, s, hidden, width)
    s[back : back + square] = np.float32(0.0)
    add_product(s, back, s, z, count, classes, ONE, classes, w, last, width)
    for layer in range(depth - 1, -1, -1):
        at, product = _layer_at(model, layer), layers + layer * each
        hidden, unit = product + square, product + 2 * square
        size = width if layer else inputs
        inputs_at -= count * size
        bias = at + size * width
        _unrectify(width, g, _shift_at(model, bias), count, s, hidden, back)
        if model.normalised:
            _backward(model, g, bias, count, s, product, unit, back, layer == 0)
        g[at : at + size * width] = np.float32(0.0)
        add_product(g, at, s, inputs_at, size, count, size, ONE, s, back, width)
        if layer:
            for i in range(_U(width)):
                for j in range(_U(width)):
                    s[_U(turned) + j * _U(width) + i] = w[_U(at) + i * _U(width) + j]
            s[other : other + square] = np.float32(0.0)
            add_product(s, other, s, back, count, width, ONE, width, s, turned, width)
            back, other = other, back


@implements(predict, Network)
def _predict_network(
    model: Any, w: Singles, rows: Any, begin: int, end: int, out: Singles, s: Singles, _: bool
) -> None:
    inputs, width, depth, classes = model.inputs, model.width, model.depth, model.classes
    count = end - begin
    square, n = count * width, _U(width)
    for r in range(count):
        copy(s, r * inputs, model.x, rows[begin + r] * inputs, inputs)
    inputs_at, size = ZERO, inputs
    product, unit = count * max(inputs, width), count * max(inputs, width) + square
    for layer in range(depth):
        at = _layer_at(model, layer)
        s[product : product + square] = np.float32(0.0)
        add_product(s, product, s, inputs_at, count, size, ONE, size, w, at, width)
        bias = _U(at + size * width)
        running, gain, shift = _U(model.trained + 2 * layer * width), _U(unit), _U(unit + width)
        for k in range(n):
            s[gain + k], s[shift + k] = np.float32(1.0), w[bias + k]
            if model.normalised:
                gain_value = w[bias + n + k] / np.sqrt(w[running + n + k] + _EPSILON)
                s[gain + k] = gain_value
                s[shift + k] = w[bias + n + n + k] + (w[bias + k] - w[running + k]) * gain_value
        for r in range(_U(count)):
            for k in range(n):
                value = s[_U(product) + r * n + k] * s[gain + k] + s[shift + k]
                s[r * n + k] = max(value, np.float32(0.0)) if value == value else value
        size = width
    last = _layer_at(model, depth)
    for r in range(count):
        for c in range(classes):
            logit = dot(w, last + c * width, s, r * width, width)
            out[r * classes + c] = logit + w[_last_bias(model, last) + c]
