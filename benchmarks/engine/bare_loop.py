"""One federated course as a bare compiled loop: the least that a course can cost in compiled code.

No groups, no settings per client, no divergence, no feedback: local SGD, the weighted average, and
loss, accuracy and macro-F1 of every client and split after every round. Gradients, draws and
metrics are the engine's own compiled functions, so the curves are equal bit for bit, which
`round_speed.py` checks before it times them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedhpo_gym.fl.compiled import rng
from fedhpo_gym.fl.compiled.training import gradient, measure


@njit(nogil=True, error_model="numpy", boundscheck=False)
def run(
    model: Any,
    rows: Any,
    held: Any,
    labels: Any,
    words: Any,
    settings: tuple[Any, ...],
    cohort: NDArray[np.int64],
    weight: NDArray[np.float32],
    w: NDArray[np.float32],
    sizes: tuple[int, int],
    out: NDArray[np.float32],
) -> None:
    """Train a model in place, with the clients of each round, and write its curves.

    Shapes: `cohort` and `weight` (rounds, sampled); `w` (1, numbers); `settings` are learning
    rate, factor of the parameters, batch size and local epochs.
    """
    rate, decay, batch, epochs = settings
    pool, state = np.empty(rng.POOL, dtype=np.uint32), np.empty(rng.STATE, dtype=np.uint64)
    groups = np.arange(out.shape[2]).reshape(1, -1)
    local, average = np.empty(w.shape[1], dtype=np.float32), np.empty_like(w)
    g, s = np.zeros(model.trained, dtype=np.float32), np.empty(sizes[0], dtype=np.float32)
    order, words = rows.order.copy(), words.copy()
    for number in range(len(cohort)):
        average[:] = np.float32(0.0)
        for place, client in enumerate(cohort[number]):
            begin, end = rows.first[client], rows.first[client + 1]
            local[:] = w[0]
            words[-2], words[-1] = number, client
            rng.start(words, pool, state)
            for _ in range(epochs):
                order[begin:end] = rows.order[begin:end]
                rng.shuffle(state, order[begin:end])
                for at in range(begin, end, batch):
                    until = min(at + batch, end)
                    each = np.float32(1.0) / np.float32(until - at) * rate
                    gradient(model, local, order, at, until, each, g, s)
                    for p in range(np.uint64(len(g))):
                        local[p] = local[p] * decay - g[p]
            for p in range(w.shape[1]):
                average[0, p] += weight[number, place] * local[p]
        w[:] = average
        measure(model, held, labels, groups, w, sizes[1], out[number])
