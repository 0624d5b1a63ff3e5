"""Logistic regression: gradients and predictions, on dense and on sparse rows.

`fl/models/logistic.py` builds a `Dense` or a `Sparse` for each federation, and the loops of
`fl/compiled/training.py` call the functions here by the type of that record. All sums have a fixed
order, so that a gradient has the same bits whatever trains beside it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedhpo_gym.core.arrays import Integers, Singles
from fedhpo_gym.fl.compiled.arithmetic import (
    BLOCK,
    ONE,
    ZERO,
    add_product,
    add_scaled,
    dot,
    exp,
    residuals,
    sigmoid,
    transposed,
)
from fedhpo_gym.fl.compiled.jit import compiled, implements
from fedhpo_gym.fl.compiled.training import RowNumbers, gradient, predict


class Dense(NamedTuple):
    """Dense rows, one after the other."""

    x: Singles  # (n x width,) inputs, of which the last one before the padding is 1
    labels: Integers  # (n,) labels
    width: int  # inputs of a row, a multiple of `LANES`
    classes: int  # number of classes
    trained: int  # numbers that are trained, classes x width
    min_rows: int  # rows of the smallest minibatch
    squashed: bool  # whether products go through a sigmoid before the softmax


class Sparse(NamedTuple):
    """Sparse rows: row r is first[r]:first[r + 1], in the order of the columns."""

    column: RowNumbers  # (stored,) columns
    value: Singles  # (stored,) values
    first: Integers  # (n + 1,) where rows begin
    labels: Integers  # (n,)
    width: int  # weights of a class, padding included
    classes: int
    trained: int  # numbers that are trained, classes x width
    min_rows: int  # rows of the smallest minibatch
    bias: int  # the column of the bias


@compiled
def _logits(
    model: Any, w: Singles, rows: Any, begin: int, end: int, s: Singles, fresh: bool
) -> None:
    """Set s to products (classes x rows), and s[classes x BLOCK:] to the columns of the rows."""
    width, classes, count, at = model.width, model.classes, end - begin, model.classes * BLOCK
    if fresh:
        transposed(model.x, width, rows, begin, end, s, at)
    for k in range(classes * count):
        s[k] = np.float32(0.0)
    add_product(s, 0, w, 0, classes, width, 1, width, s, at, count)


@implements(gradient, Dense)
def _dense(
    model: Any,
    w: Singles,
    rows: RowNumbers,
    begin: int,
    end: int,
    rate: Any,
    g: Singles,
    s: Singles,
) -> None:
    width, classes, x = model.width, model.classes, model.x
    g[:] = np.float32(0.0)
    if classes == 2 and not model.squashed:
        for k in range(width):
            s[k] = w[width + k] - w[k]
        for row in range(begin, end):
            r = rows[row]
            z = float(dot(s, 0, x, r * width, width))
            second = 1.0 / (1.0 + exp(min(max(-z, -60.0), 60.0) if z == z else z))
            residual = (np.float32(second) - np.float32(model.labels[r])) * rate
            add_scaled(g, width, residual, x, r * width, width)
        for k in range(width):
            g[k] = -g[width + k]
        return
    raised = np.empty(classes, dtype=np.float64)
    for first in range(begin, end, BLOCK):
        last = min(first + BLOCK, end)
        count = last - first
        _logits(model, w, rows, first, last, s, True)
        for row in range(count):
            r = rows[first + row]
            residuals(s, row, count, classes, model.labels[r], rate, model.squashed, raised)
            for c in range(classes):
                add_scaled(g, c * width, s[c * count + row], x, r * width, width)


@implements(predict, Dense)
def _predict_dense(
    model: Any, w: Singles, rows: Any, begin: int, end: int, out: Singles, s: Singles, fresh: bool
) -> None:
    classes, count = model.classes, end - begin
    _logits(model, w, rows, begin, end, s, fresh)
    for c in range(classes):
        for row in range(count):
            z = s[c * count + row]
            out[row * classes + c] = sigmoid(z) if model.squashed else z


@compiled
def _product(model: Any, w: Singles, c: int, r: int) -> Any:
    at = c * model.width
    total = np.float32(0.0)
    for i in range(model.first[r], model.first[r + 1]):
        total += w[at + model.column[i]] * model.value[i]
    return total + w[at + model.bias]


@implements(gradient, Sparse)
def _sparse(
    model: Any,
    w: Singles,
    rows: RowNumbers,
    begin: int,
    end: int,
    rate: Any,
    g: Singles,
    s: Singles,
) -> None:
    classes = model.classes
    raised = np.empty(classes, dtype=np.float64)
    g[:] = np.float32(0.0)
    for row in range(begin, end):
        r = rows[row]
        for c in range(classes):
            s[c] = _product(model, w, c, r)
        residuals(s, ZERO, ONE, classes, model.labels[r], rate, False, raised)
        for c in range(classes):
            at = c * model.width
            for i in range(model.first[r], model.first[r + 1]):
                g[at + model.column[i]] += s[c] * model.value[i]
            g[at + model.bias] += s[c]


@implements(predict, Sparse)
def _predict_sparse(
    model: Any, w: Singles, rows: Any, begin: int, end: int, out: Singles, _: Singles, __: bool
) -> None:
    for row in range(begin, end):
        for c in range(model.classes):
            out[(row - begin) * model.classes + c] = _product(model, w, c, rows[row])
