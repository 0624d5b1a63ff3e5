"""Kernels for all compiled models: local training, averaging and evaluation of many courses.

`CompiledTrainer` calls `train` and `measure` once a round, or `advance` for several rounds of plain
averaging. `gradient` and `predict` are placeholders: `logistic` and `perceptron` register the
variant of each model with `implements`. An item is a (course, client) pair that trains in a round.
Every sum has a fixed order, so that a course has the same bits alone, in any batch and on any
number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Integers, Singles
from fedhpo_gym.fl.compiled import rng
from fedhpo_gym.fl.compiled.arithmetic import BLOCK, copy, exp_of_negatives, log
from fedhpo_gym.fl.compiled.jit import compiled, kernel


def predict(
    model: Any, w: Singles, rows: Any, begin: int, end: int, out: Singles, s: Singles, fresh: bool
) -> None:
    """Set out (rows x classes) to the logits of rows[begin:end], `BLOCK` at most; `s` is memory.

    Each type of model registers its variant. Without `fresh`, `s` still holds the values that the
    previous call computed from the same rows.
    """
    raise NotImplementedError


@compiled
def _count(
    logits: Singles, rows: Any, begin: int, end: int, labels: Integers, counts: Any, loss: float,
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
        # The difference is in single precision, where an overflow becomes infinite.
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


@compiled
def _equal(table: Integers, row: int, other: int) -> bool:
    is_equal = True
    for column in range(table.shape[1]):
        is_equal = is_equal and table[row, column] == table[other, column]
    return is_equal


_TOGETHER = 8 * BLOCK
"""Rows that are predicted together before counting, so that small groups share blocks."""


@kernel
def measure(  # noqa: C901 - one loop
    model: Any, rows: Rows, labels: Integers, group: Integers, w: Singles, size: int, out: Singles
) -> None:
    """Write (models, groups, 3) loss, accuracy and macro-F1 to `out`.

    The loss is the mean cross-entropy, summed in double precision; logits far below the largest are
    clamped. Macro-F1 averages over the classes that occur among labels or predictions, as in
    scikit-learn. A group without rows has zeros.

    Shapes: `labels` (n,); `group` (models, groups); `w` (models, numbers).
    """
    classes, models, columns = model.classes, *group.shape
    logits = np.empty((models, _TOGETHER * classes), dtype=np.float32)
    raised = np.empty(BLOCK * classes, dtype=np.float64)
    s = np.empty(size, dtype=np.float32)
    counts = np.empty((models, 3, classes), dtype=np.int64)
    loss = np.empty(models, dtype=np.float64)
    n = 0
    while n < models:
        # Consecutive models with the same groups read the rows together.
        last = n + 1
        while last < models and _equal(group, last, n):
            last += 1
        begin, end = 0, 0  # rows with predictions: they may span consecutive groups
        for column in range(columns):
            client_row = group[n, column]
            at, until = rows.first[client_row], rows.first[client_row + 1]
            counts[n:last] = 0
            loss[n:last] = 0.0
            for first in range(at, until, BLOCK):
                block = min(first + BLOCK, until)
                if not begin <= first <= block <= end:
                    begin, end, following = first, until, column + 1
                    while (
                        following < columns
                        and group[n, following] == client_row + following - column
                    ):
                        end = rows.first[group[n, following] + 1]
                        following += 1
                    end = min(end, begin + _TOGETHER)
                    for some in range(begin, end, BLOCK):
                        for m in range(n, last):
                            predict(
                                model, w[m], rows.order, some, min(some + BLOCK, end),
                                logits[m, (some - begin) * classes :], s, m == n,
                            )  # fmt: skip
                for m in range(n, last):
                    loss[m] = _count(
                        logits[m, (first - begin) * classes :], rows.order, first, block, labels,
                        counts[m], loss[m], raised,
                    )  # fmt: skip
            held = max(until - at, 1)
            for m in range(n, last):
                out[m, column, 0] = loss[m] / held
                out[m, column, 1], out[m, column, 2] = _accuracy_and_f1(counts[m], held)
        n = last


RowNumbers = NDArray[np.int32]

_MOST_ORDERED = 1 << 22
"""Row numbers of the epochs of a client that are stored for the next courses."""


class Settings(NamedTuple):
    """Hyperparameters of local training, (items,) each."""

    rate: Singles  # learning rates
    decay: Singles  # factors of the parameters, 1 - learning rate x weight decay
    pull: Singles  # strength of the pull towards the received model
    momentum: Singles  # factor of the last move that a step repeats
    batch_size: Integers  # samples per minibatch
    epochs: Integers  # local epochs


class Rows(NamedTuple):
    """Rows of groups: those of group g are order[first[g]:first[g + 1]]."""

    order: RowNumbers
    first: Integers


class CompiledBatch(NamedTuple):
    """Items that train: (items,) courses, clients, and rounds that name their random streams."""

    course: Integers
    client: Integers
    number: Integers


def gradient(
    model: Any,
    w: Singles,
    rows: RowNumbers,
    begin: int,
    end: int,
    rate: Any,
    g: Singles,
    s: Singles,
) -> None:
    """Set g to rate x the gradient of the mean loss on rows[begin:end].

    It may update running statistics in `w`; `s` is working memory.
    """
    raise NotImplementedError


@compiled
def _step(
    w: Singles,
    g: Singles,
    decay: Any,
    pull: Any,
    anchor: Singles,
    rate: Any,
    shift: Singles,
    share: Any,
    last: Singles,
) -> None:
    """Take a step in place, and write the move of `w` to `last`.

    w <- decay w - g + pull anchor - rate shift + share last; empty arrays are left out.
    """
    for p in range(len(g)):
        old = w[p]
        new = old * decay - g[p]
        if len(anchor):
            new += pull * anchor[p]
        if len(shift):
            new -= rate * shift[p]
        if len(last):
            new += share * last[p]
            last[p] = new - old
        w[p] = new


@compiled
def _plain_step(w: Singles, g: Singles, decay: Any) -> None:
    for p in range(np.uint64(len(g))):
        w[p] = w[p] * decay - g[p]


@kernel
def train(  # noqa: C901 - one loop
    model: Any,
    rows: Rows,
    words: NDArray[np.uint32],
    settings: Settings,
    items: CompiledBatch,
    order_of_items: Integers,
    live: NDArray[np.bool_],
    sent: Singles,
    local: Singles,
    anchor: Singles,
    anchor_of: Integers,
    shift: Singles,
    size: int,
) -> None:
    """Train items in `local`; they start at `sent` of their course, or in place if it is empty.

    Shapes: `order_of_items` (items,); `live` (courses,); `sent` (courses, numbers); `local` (items,
    numbers); `anchor_of` (items,), the rows of `anchor`, or (0,) where it has none.
    """
    largest = 0
    for client in items.client:
        largest = max(largest, rows.first[client + 1] - rows.first[client])
    num_orders = max(min(settings.epochs.max(), _MOST_ORDERED // max(largest, 1)), 1)
    orders = np.empty((num_orders, largest), dtype=np.int32)
    known_client, known_number, num_drawn = -1, -1, 0
    pool = np.empty(rng.POOL, dtype=np.uint32)
    state = np.empty(rng.STATE, dtype=np.uint64)
    words = words.copy()
    g = np.zeros(model.trained, dtype=np.float32)
    s = np.empty(size, dtype=np.float32)
    moves = settings.momentum.any()
    last = np.zeros(model.trained if moves else 0, dtype=np.float32)
    nowhere = np.empty(0, dtype=np.float32)
    for item in order_of_items:
        course, client = items.course[item], items.client[item]
        begin, held = rows.first[client], rows.first[client + 1] - rows.first[client]
        w = local[item]
        if len(sent):
            copy(w, 0, sent[course], 0, len(w))
        if not live[course] or not held:
            continue
        rate, decay = settings.rate[item], settings.decay[item]
        batch = min(settings.batch_size[item], held)
        share, pull = settings.momentum[item], np.float32(0.0)
        towards = nowhere
        corrected = shift[item] if len(shift) else nowhere
        if len(anchor):
            pull = rate * settings.pull[item]
            decay -= pull
            towards = anchor[anchor_of[item]]
        last[:] = 0.0
        round_number, epochs = items.number[item], settings.epochs[item]
        # Items of one client and round share their minibatches: the orders are drawn once.
        if client != known_client or round_number != known_number or epochs > num_orders:
            words[-2], words[-1] = round_number, client
            rng.start(words, pool, state)
            known_client, known_number, num_drawn = client, round_number, 0
        for epoch in range(epochs):
            order = orders[epoch % num_orders]
            if epoch >= num_drawn:
                for i in range(held):
                    order[i] = rows.order[begin + i]
                rng.shuffle(state, order[:held])
                num_drawn += 1
            for at in range(0, held, batch):
                until = min(at + batch, held)
                if until - at < model.min_rows:
                    continue
                each = np.float32(1.0) / np.float32(until - at) * rate
                gradient(model, w, order, at, until, each, g, s)
                if moves or len(towards) or len(corrected):
                    _step(w, g, decay, pull, towards, rate, corrected, share, last)
                else:
                    _plain_step(w, g, decay)
        if epochs > num_orders:
            known_client = -1  # the first orders were overwritten


@kernel
def add_up(
    courses: Integers, weight: Singles, local: Singles, average: Singles, first: int, end: int
) -> None:
    """Add weighted parameters to the averages of their courses, in the order of items.

    Shapes: `courses` (items,); `weight` (items,); `local` (items, numbers); `average` (courses,
    numbers), columns first:end.
    """
    for item in range(len(weight)):
        item_weight, values, total = weight[item], local[item], average[courses[item]]
        for p in range(np.uint64(first), np.uint64(end)):
            total[p] += item_weight * values[p]


@kernel
def add_squares(values: Singles, total: NDArray[np.float64]) -> None:
    """Add the squares of (n, numbers) values to (n,) totals."""
    for n in range(len(values)):
        for p in range(values.shape[1]):
            total[n] += float(values[n, p]) * float(values[n, p])


@kernel
def finite(values: Singles, flags: NDArray[np.bool_]) -> None:
    """Set (n,) flags: whether all values of a row of (n, numbers) are finite."""
    for n in range(len(values)):
        total = np.float32(0.0)
        for p in range(values.shape[1]):
            total += values[n, p] * np.float32(0.0)  # NaN for NaN and infinities
        flags[n] = total == np.float32(0.0)


@kernel
def add_updates(
    courses: Integers,
    weight: Singles,
    received: Singles,
    received_of: Integers,
    local: Singles,
    mean: NDArray[np.float64],
    first: int,
    end: int,
) -> None:
    """Add weighted updates, which are float32, to the float64 means of their courses.

    Shapes: `received_of` (items,), rows of `received`; `mean` (courses, numbers), columns
    first:end.
    """
    for item in range(len(weight)):
        item_weight, total = weight[item], mean[courses[item]]
        sent, values = received[received_of[item]], local[item]
        for p in range(np.uint64(first), np.uint64(end)):
            total[p] += item_weight * (values[p] - sent[p])


@kernel
def add_products(
    courses: Integers,
    received: Singles,
    received_of: Integers,
    local: Singles,
    mean: NDArray[np.float64],
    first: int,
    end: int,
    sums: NDArray[np.float64],
) -> None:
    """Add products of updates with themselves and with their course's mean to (items, 2) sums.

    Columns first:end are added. Squares are float32 and sums float64. Two items are summed at the
    same time, because one sum alone would wait for each addition.
    """
    begin, count = np.uint64(first), np.uint64(end - first)
    memory = np.empty((4, end - first), dtype=np.float64)
    squares, inner, seconds, crossed = memory[0], memory[1], memory[2], memory[3]
    for item in range(0, len(sums), 2):
        other = min(item + 1, len(sums) - 1)
        for half, which in enumerate((item, other)):
            sent, values, target = received[received_of[which]], local[which], mean[courses[which]]
            own, both = memory[2 * half], memory[2 * half + 1]
            for p in range(count):
                update = values[begin + p] - sent[begin + p]
                own[p], both[p] = update * update, update * target[begin + p]
        a, b, c, d = sums[item, 0], sums[item, 1], sums[other, 0], sums[other, 1]
        for p in range(count):
            a += squares[p]
            b += inner[p]
            c += seconds[p]
            d += crossed[p]
        sums[item, 0], sums[item, 1], sums[other, 0], sums[other, 1] = a, b, c, d


@kernel
def compare(
    courses: Integers,
    sums: NDArray[np.float64],
    mean: NDArray[np.float64],
    limit: float,
    out: Singles,
) -> None:
    """Write (items, 2) norms of updates, and cosines with the mean update of their course.

    `sums` (items, 2) are the results of `add_products` over all columns.
    """
    lengths = np.zeros(len(mean))
    for course in range(len(mean)):
        for p in range(mean.shape[1]):
            lengths[course] += mean[course, p] * mean[course, p]
    for item in range(len(out)):
        norm = np.sqrt(sums[item, 0])
        cosine = sums[item, 1] / (norm * np.sqrt(lengths[courses[item]]))
        if not -np.inf < cosine < np.inf:
            cosine = 0.0
        out[item, 0] = min(norm, limit) if norm == norm else 0.0
        out[item, 1] = min(max(cosine, -1.0), 1.0)


class RoundPlan(NamedTuple):
    """Some rounds of courses: the items that train in each, and the rounds that are evaluated."""

    first: Integers  # (rounds + 1,) the items of round r are first[r]:first[r + 1]
    order: Integers  # (items,) order of training in a round, counted from its first item
    weight: Singles  # (items,) weights of trained parameters in averages
    samples: Singles  # (items,) weights of running statistics in averages
    evaluated: NDArray[np.bool_]  # (rounds,) whether models are measured after a round
    near: bool  # whether local steps are pulled towards the received model


_STRIP = 512
"""Columns that are summed over all items before the next ones, so that they stay in the cache."""


@kernel
def advance(  # noqa: C901 - one loop
    model: Any,
    rows: Rows,
    words: NDArray[np.uint32],
    settings: Settings,
    items: CompiledBatch,
    plan: RoundPlan,
    held: Rows,
    labels: Integers,
    group: Integers,
    finished: Integers,
    diverged_at: Integers,
    start: Singles,
    sizes: tuple[int, int],
    limit: float,
    compared: Singles,
    out: Singles,
) -> None:
    """Run rounds of averaging in place, without hooks of the algorithm, and measure models.

    `finished`, `diverged_at` (courses,) and `start` (courses, numbers) are updated in place;
    `compared` is the output of `compare`, or has no rows, and `out` (evaluated, courses, groups, 3)
    that of `measure`.
    """
    courses, numbers = start.shape
    live = diverged_at == 0
    sound = np.empty(courses, dtype=np.bool_)
    average = np.empty_like(start)
    mean = np.empty((courses if len(compared) else 0, model.trained), dtype=np.float64)
    nowhere = np.empty((0, 0), dtype=np.float32)
    most = 0
    for round_index in range(len(plan.evaluated)):
        most = max(most, plan.first[round_index + 1] - plan.first[round_index])
    memory = np.empty((most, numbers), dtype=np.float32)
    num_measured = 0
    for round_index in range(len(plan.evaluated)):
        begin, end = plan.first[round_index], plan.first[round_index + 1]
        course, weight = items.course[begin:end], plan.weight[begin:end]
        local = memory[: end - begin]
        train(
            model,
            rows,
            words,
            Settings(
                settings.rate[begin:end],
                settings.decay[begin:end],
                settings.pull[begin:end],
                settings.momentum[begin:end],
                settings.batch_size[begin:end],
                settings.epochs[begin:end],
            ),
            CompiledBatch(course, items.client[begin:end], items.number[begin:end]),
            plan.order[begin:end],
            live,
            start,
            local,
            start if plan.near else nowhere,
            course,
            nowhere,
            sizes[0],
        )
        sums = np.zeros((end - begin, 2), dtype=np.float64)
        mean[:] = 0.0
        average[:] = np.float32(0.0)
        for at in range(0, model.trained, _STRIP):
            until = min(at + _STRIP, model.trained)
            if len(compared):
                add_updates(course, weight, start, course, local, mean, at, until)
                add_products(course, start, course, local, mean, at, until, sums)
            add_up(course, weight, local, average, at, until)
        if len(compared):
            compare(course, sums, mean, limit, compared[begin:end])
        add_up(course, plan.samples[begin:end], local, average, model.trained, numbers)
        finite(average, sound)
        for c in range(courses):
            finished[c] += 1
            if live[c] and sound[c]:
                for p in range(numbers):
                    start[c, p] = average[c, p]
            elif live[c]:
                live[c], diverged_at[c] = False, finished[c]
        if plan.evaluated[round_index]:
            measure(model, held, labels, group, start, sizes[1], out[num_measured])
            for c in range(courses):
                for g in range(group.shape[1]):
                    # 0 x NaN and 0 x infinity are NaN.
                    if (
                        live[c]
                        and (out[num_measured, c, g, 0] + out[num_measured, c, g, 2]) * 0 != 0
                    ):
                        live[c], diverged_at[c] = False, finished[c]
            num_measured += 1
