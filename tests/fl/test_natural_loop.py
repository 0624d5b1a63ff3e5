"""FedAvg on natural tables beside a plain loop: pandas reads the file, numpy trains.

The loop shares the draws with the engine (who is in which split, minibatches, the first weights)
and nothing else: neither loader nor federation nor arithmetic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")
pandas = pytest.importorskip("pandas")

from fedhpo_gym.courses.training import make_batch, make_course  # noqa: E402
from fedhpo_gym.evaluation.records import Fidelity  # noqa: E402
from fedhpo_gym.federations.federation import Federation  # noqa: E402
from fedhpo_gym.fl.packing import PerClient  # noqa: E402
from fedhpo_gym.seeding import stream  # noqa: E402
from fedhpo_gym.tasks import get_task  # noqa: E402
from plain_draws import client_order, draw_round  # noqa: E402

pytestmark = pytest.mark.raw

WORDS = {
    "exam_london": ["schgend", "sex", "type"],
    "covid_testing": ["gender", "demo_group", "payor_group", "patient_class"],
    "hotel_market": ["meal", "reserved_room_type", "assigned_room_type", "customer_type"],
}
LOGS = {
    "covid_testing": ["col_rec_tat"],
    "hotel_market": [
        "children",
        "babies",
        "previous_cancellations",
        "previous_bookings_not_canceled",
        "days_in_waiting_list",
    ],
}
NAMES = {"exam_london": "ExamLondon", "covid_testing": "CovidTesting"} | {
    "hotel_market": "HotelMarket"
}
GIVEN: dict[str, Any] = {"learning_rate": 0.1, "weight_decay": 0.001}
GIVEN |= {"batch_size": 16, "step_size": 2}
ROUNDS, RATE, SEED = 6, 0.4, 2


def read(folder: Path, stem: str) -> Any:
    """Return (n, d) features with NaN, (n,) labels, and the rows of every client in order."""
    path = folder / "natural" / f"{stem}.csv.xz"
    frame = pandas.read_csv(path, dtype=str, keep_default_na=False)
    parts = []
    for name in frame.columns[2:]:
        column = frame[name]
        if name in WORDS[stem]:
            counts = column.value_counts()
            often = sorted(counts.index[counts >= 20])
            parts += [column == value for value in often]
            if len(often) < len(counts):
                parts.append(~column.isin(often))
        else:
            number = pandas.to_numeric(column)  # an empty cell is NaN
            parts.append(np.log1p(number) if name in LOGS.get(stem, []) else number)
            if number.isna().any():
                parts.append(number.isna())
    labels = frame["target"].map({v: i for i, v in enumerate(sorted(set(frame["target"])))})
    clients = [np.flatnonzero(frame["client"] == c) for c in sorted(set(frame["client"]))]
    return np.stack([p.to_numpy(float) for p in parts], axis=1), labels.to_numpy(), clients


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


@pytest.mark.parametrize("stem", NAMES)
def test_a_plain_loop_over_the_csv_gives_our_curves(
    stem: str, shared_datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(shared_datasets))
    features, labels, clients = read(shared_datasets, stem)
    parts = split(clients)
    expected = np.array(curves(standardized(features, parts), labels, parts))
    task = get_task(f"LR-{NAMES[stem]}-v1")
    batch = make_batch(task, [make_course(task, GIVEN, RATE, SEED)])
    found = batch.advance(ROUNDS).metrics[0, ..., 0]
    # float32 beside float64: a hundred times their rounding after a few hundred steps.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert expected[-1].mean() < expected[0].mean() - 0.01
