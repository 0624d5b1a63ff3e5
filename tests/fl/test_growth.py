"""What a round costs follows from who takes part, not from how many there are."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

pytest.importorskip("numba")

from fedhpo_gym.algorithms import get_algorithm
from fedhpo_gym.core import seeding
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl import participants
from fedhpo_gym.fl.compiled import training
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import get_model
from fedhpo_gym.fl.participants import ClientStreams, client_streams

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


@pytest.mark.slow
def test_memory_of_a_round_grows_by_the_order_of_sampling_alone() -> None:
    """One number of eight bytes per client is drawn to sample; nothing else has so many."""
    grown = peak_bytes(MANY) - peak_bytes(FEW)
    assert grown <= 8 * (MANY - FEW) + 16_384  # bytes; half a page per hundred clients would show


@pytest.mark.slow
@pytest.mark.parametrize("clients", [FEW, MANY])
def test_as_many_clients_train_and_as_many_rows_are_ordered(
    clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(clients)
    seen: list[Any] = []
    advance = training.advance

    def watched(*given: Any) -> Any:
        seen.append(given)
        return advance(*given)

    monkeypatch.setattr(training, "advance", watched)
    batch.advance(3, evaluated=())
    ((_, rows, _, _, items, plan, *_),) = seen
    assert np.array_equal(plan.first, SAMPLED * np.arange(4))
    for own in map(slice, plan.first[:-1], plan.first[1:]):
        client, order = items.client[own], plan.order[own]
        assert len(order) == SAMPLED
        assert (rows.first[client + 1] - rows.first[client]).sum() == SAMPLED * 6
        assert np.array_equal(client[order], np.sort(client))


@pytest.mark.parametrize("ahead", [0, 2])
def test_those_who_were_foreseen_train(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(FEW)
    seen: list[Any] = []
    advance = training.advance

    def watched(*given: Any) -> Any:
        seen.append(given[4].client)
        return advance(*given)

    foreseen = np.flatnonzero(batch.sampled(ahead + 1)[0])
    monkeypatch.setattr(training, "advance", watched)
    batch.advance(ahead + 1, evaluated=())
    assert np.array_equal(np.unique(np.concatenate(seen)), foreseen)


# ---------------------------- streams that are prepared for coming rounds are those made one by one

Names = list[tuple[int, ...]]
SEEDS = (0, 7, 2**32 - 1)
LARGE_SEEDS = (2**32, 2**70)


@st.composite
def asked_streams(draw: st.DrawFn) -> tuple[int, list[Names]]:
    """Draw a number of clients, and whom streams are asked_streams for again and again."""
    clients = draw(st.sampled_from([1, 2, 5, 30, 128, 256, 257, 1000]))
    seed = st.sampled_from(SEEDS) if draw(st.booleans()) else st.sampled_from(SEEDS + LARGE_SEEDS)
    cohort = st.lists(st.integers(0, clients - 1), min_size=1, max_size=35)
    rounds = st.lists(st.tuples(seed, st.integers(0, 600), cohort), min_size=1, max_size=3)
    calls = draw(st.lists(rounds, max_size=6))
    return clients, [
        [(seed, finished, client) for seed, finished, own in call for client in own]
        for call in calls
    ]


@settings(max_examples=60, deadline=None)
@given(asked_streams())
def test_they_are_those_made_one_by_one(case: tuple[int, list[Names]]) -> None:
    clients, calls = case
    prepared = ClientStreams(clients)
    for names in calls:
        for found, expected in zip(prepared(names), client_streams(names), strict=True):
            assert found.bit_generator.state == expected.bit_generator.state


def test_a_stream_begins_anew_whenever_it_is_asked_for() -> None:
    prepared = ClientStreams(5)
    first = prepared([(1, 0, 2)])[0].random(3).tolist()
    assert prepared([(1, 0, 2)])[0].random(3).tolist() == first


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many streams were prepared, time after time."""
    counts: list[int] = []
    real = seeding.seed_words

    def counted(name: str, keys: NDArray[np.uint32]) -> NDArray[np.uint64]:
        counts.append(len(keys))
        return real(name, keys)

    monkeypatch.setattr(seeding, "seed_words", counted)
    return counts


def test_few_clients_are_prepared_for_many_rounds(made: list[int]) -> None:
    prepared, rounds = ClientStreams(5), participants.MAX_PREPARED // 5
    prepared([(1, 2, 0)])
    assert made == []  # perhaps the only round before courses are packed anew
    for finished in range(3, 3 + rounds):
        prepared([(1, finished, client) for client in range(5)])
    assert made == [5 * rounds]
    prepared([(1, 3 + rounds, 0)])
    assert len(made) == 2


@pytest.mark.parametrize(
    ("seeds", "rounds", "each"), [(1, 10, 1), (8, 1, 1), (8, 1, 2)], ids=["jobs", "seeds", "both"]
)
def test_nothing_is_prepared_for_rounds_of_which_little_is_used(
    made: list[int], seeds: int, rounds: int, each: int
) -> None:
    prepared = ClientStreams(64)
    for first in range(0, 100, rounds):
        prepared(
            [
                (seed, first + finished, client)
                for seed in range(seeds)
                for finished in range(rounds)
                for client in range(each)
            ]
        )
    assert made == []


def test_what_is_prepared_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participants, "MAX_PREPARED", 40)
    prepared = ClientStreams(1)
    for finished in range(0, 10_000, 40):
        prepared([(1, finished, 0)])
    assert len(prepared._words) <= participants.MIN_PREPARED * 40 + 40
