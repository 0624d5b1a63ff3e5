"""Loss, accuracy and macro-F1 of many models on groups of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedhpo_gym.fl.compiled.arithmetic import BLOCK, Floats, Integers, exp_of_negatives, log
from fedhpo_gym.fl.compiled.jit import compiled, kernel
from fedhpo_gym.fl.compiled.training import Rows


def predict(
    model: Any, w: Floats, rows: Any, begin: int, end: int, out: Floats, s: Floats, fresh: bool
) -> None:
    """Set out (rows x classes) to the logits of rows[begin:end], `BLOCK` at most; `s` is memory.

    Every kind of model has its own. Without `fresh`, s still holds what the last call made of the
    rows.
    """
    raise NotImplementedError


@compiled
def _count(
    logits: Floats, rows: Any, begin: int, end: int, labels: Integers, counts: Any, loss: float,
    raised: Any,
) -> float:  # fmt: skip
    """Add a block's labels, predictions and hits to (3, classes) counts, and its loss to `loss`."""
    classes = counts.shape[1]
    for row in range(end - begin):
        at, best = row * classes, row * classes
        for c in range(at + 1, at + classes):
            if logits[c] > logits[best]:
                best = c
        top, label = logits[best], labels[rows[begin + row]]
        for c in range(at, at + classes):
            raised[c] = float(logits[c]) - float(top)
        # In single precision, what has overflowed is infinite.
        loss += float(top - logits[at + label])
        counts[0, label] += 1
        counts[1, best - at] += 1
        counts[2, label] += best - at == label
    exp_of_negatives(raised, (end - begin) * classes)
    together = 1.0  # a logarithm of a product costs less than a sum of logarithms
    for row in range(end - begin):
        total = 0.0
        for c in range(row * classes, (row + 1) * classes):
            total += raised[c]
        together *= total
        if together > 1e200:
            loss += log(together)
            together = 1.0
    return loss + log(together)


@compiled
def _accuracy_and_f1(counts: Any, held: int) -> tuple[Any, Any]:
    hits, present = 0, 0
    score = np.float32(0.0)
    for c in range(counts.shape[1]):
        hits += counts[2, c]
        occurs = counts[0, c] + counts[1, c]
        if occurs:
            present += 1
            score += np.float32(2 * counts[2, c]) / np.float32(occurs)
    return np.float32(hits) / np.float32(held), score / np.float32(max(present, 1))


@kernel
def measure(
    model: Any, rows: Rows, labels: Integers, group: Integers, w: Floats, size: int, out: Floats
) -> None:
    """Write (models, groups, 3) loss, accuracy and macro-F1.

    The loss is the mean cross-entropy, added up in double precision; logits far below the largest
    are clamped. Macro-F1 is over the classes that occur among labels or predictions, as
    scikit-learn's. All are 0 of a group without rows.

    Shapes: `labels` (n,); `group` (models, groups); `w` (models, numbers).
    """
    classes, models = model.classes, len(w)
    logits = np.empty(BLOCK * classes, dtype=np.float32)
    raised = np.empty(BLOCK * classes, dtype=np.float64)
    s = np.empty(size, dtype=np.float32)
    counts = np.empty((models, 3, classes), dtype=np.int64)
    loss = np.empty(models, dtype=np.float64)
    for column in range(group.shape[1]):
        n = 0
        while n < models:
            # Models that are measured on the same rows go through them together.
            last, own = n + 1, group[n, column]
            while last < models and group[last, column] == own:
                last += 1
            begin, end = rows.first[own], rows.first[own + 1]
            counts[n:last] = 0
            loss[n:last] = 0.0
            for first in range(begin, end, BLOCK):
                until = min(first + BLOCK, end)
                for m in range(n, last):
                    predict(model, w[m], rows.order, first, until, logits, s, m == n)
                    loss[m] = _count(
                        logits, rows.order, first, until, labels, counts[m], loss[m], raised
                    )
            held = max(end - begin, 1)
            for m in range(n, last):
                out[m, column, 0] = loss[m] / held
                out[m, column, 1], out[m, column, 2] = _accuracy_and_f1(counts[m], held)
            n = last
