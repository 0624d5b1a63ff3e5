"""Loss, accuracy and macro-F1 of many models on groups of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedhpo_gym.fl.compiled.elementary import exp, log
from fedhpo_gym.fl.compiled.jit import kernel
from fedhpo_gym.fl.compiled.sums import BLOCK
from fedhpo_gym.fl.compiled.training import Floats, Integers, Rows


def predict(model: Any, w: Floats, rows: Any, begin: int, end: int, out: Floats, s: Floats) -> None:
    """Set out (rows x classes, one row after the other) to the logits of rows[begin:end].

    Every kind of model has its own, see `jit.implements`; s is memory that it may use. The number
    of rows is at most `BLOCK`.
    """
    raise NotImplementedError


@kernel
def measure(  # noqa: C901 - one loop
    model: Any, rows: Rows, labels: Integers, group: Integers, w: Floats, size: int, out: Floats
) -> None:
    """Write (models, groups, 3) loss, accuracy and macro-F1.

    The loss is the mean cross-entropy, added up in double precision; logits far below the largest
    are clamped. Macro-F1 is over the classes that occur among labels or predictions, as
    scikit-learn's. All are 0 of a group without rows.

    Args:
        model: data and shape of a model.
        rows: the rows of every group.
        labels: (n,) labels of all rows.
        group: (models, groups) groups to measure on.
        w: (models, numbers) parameters.
        size: numbers of memory that `predict` needs.
        out: what is written.
    """
    classes = model.classes
    logits = np.empty(BLOCK * classes, dtype=np.float32)
    s = np.empty(size, dtype=np.float32)
    counts = np.empty((3, classes), dtype=np.int64)
    for n in range(len(w)):
        for column in range(group.shape[1]):
            begin, end = rows.first[group[n, column]], rows.first[group[n, column] + 1]
            counts[:] = 0
            loss = 0.0
            for first in range(begin, end, BLOCK):
                last = min(first + BLOCK, end)
                predict(model, w[n], rows.order, first, last, logits, s)
                together = 1.0  # a logarithm of a product costs less than a sum of logarithms
                for row in range(first, last):
                    at, label = (row - first) * classes, labels[rows.order[row]]
                    best = 0
                    for c in range(1, classes):
                        if logits[at + c] > logits[at + best]:
                            best = c
                    top = float(logits[at + best])
                    total = 0.0
                    for c in range(classes):
                        below = float(logits[at + c]) - top
                        total += 1.0 if c == best else exp(-60.0 if below < -60.0 else below)
                    together *= total
                    if together > 1e200:
                        loss += log(together)
                        together = 1.0
                    # In single precision, what has overflowed is infinite.
                    loss += float(logits[at + best] - logits[at + label])
                    counts[0, label] += 1
                    counts[1, best] += 1
                    if best == label:
                        counts[2, label] += 1
                loss += log(together)
            hits, present = 0, 0
            score = np.float32(0.0)
            for c in range(classes):
                hits += counts[2, c]
                occurs = counts[0, c] + counts[1, c]
                if occurs:
                    present += 1
                    score += np.float32(2 * counts[2, c]) / np.float32(occurs)
            held = max(end - begin, 1)
            out[n, column, 0] = loss / held
            out[n, column, 1] = np.float32(hits) / np.float32(held)
            out[n, column, 2] = score / np.float32(max(present, 1))
