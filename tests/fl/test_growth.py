"""What a round costs follows from who takes part, not from how many there are."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from fedhpo_gym.algorithms import get_algorithm
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl.compiled import training
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import get_model

SAMPLED, EACH, FEW, MANY = 10, 12, 1_000, 100_000


def batch_of(clients: int) -> CourseBatch:
    """Return a course that samples ten of the clients, each with as many samples."""
    rng = stream(0, "test_growth")
    features = rng.random((EACH * 10, 6)).astype(np.float32)
    splits = [tuple(np.split(own, (6, 9))) for own in np.split(np.arange(EACH * 10), 10)]
    everyone = tuple(splits[client % 10] for client in range(clients))
    federation = Federation(features, rng.integers(3, size=EACH * 10), 3, everyone, 1)
    given = {"learning_rate": 0.1, "weight_decay": 0.0, "batch_size": 4, "step_size": 1}
    course = Course(given, SAMPLED / clients, 1)
    return CourseBatch({1: federation}, get_model("LR"), get_algorithm("fedavg"), [course])


def peak_bytes(clients: int) -> int:
    batch = batch_of(clients)
    batch.advance(2, evaluated=())
    tracemalloc.start()
    try:
        batch.advance(2, evaluated=())
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_of_a_round_grows_by_the_order_of_sampling_alone() -> None:
    """One number of eight bytes per client is drawn to sample; nothing else has so many."""
    grown = peak_bytes(MANY) - peak_bytes(FEW)
    assert grown <= 8 * (MANY - FEW) + 16_384  # bytes; half a page per hundred clients would show


@pytest.mark.parametrize("clients", [FEW, MANY])
def test_as_many_clients_train_and_as_many_rows_are_ordered(
    clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(clients)
    seen: list[Any] = []
    train = training.train

    def watched(*given: Any) -> Any:
        seen.append(given)
        return train(*given)

    monkeypatch.setattr(training, "train", watched)
    batch.advance(3, evaluated=())
    assert len(seen) == 3
    for _, rows, _, _, items, order, _, local, *_ in seen:
        assert len(order) == len(local) == len(items.client) == SAMPLED
        assert (rows.first[items.client + 1] - rows.first[items.client]).sum() == SAMPLED * 6
        assert np.array_equal(items.client[order], np.sort(items.client))


@pytest.mark.parametrize("ahead", [0, 2])
def test_those_who_were_foreseen_train(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(FEW)
    seen: list[Any] = []
    train = training.train

    def watched(*given: Any) -> Any:
        seen.append(given[4].client)
        return train(*given)

    foreseen = np.flatnonzero(batch.sampled(ahead + 1)[0])
    monkeypatch.setattr(training, "train", watched)
    batch.advance(ahead + 1, evaluated=())
    assert np.array_equal(np.unique(np.concatenate(seen)), foreseen)
