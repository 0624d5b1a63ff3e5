"""Streams that are prepared for coming rounds are those made one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedhpo_gym.core import seeding
from fedhpo_gym.fl import minibatches
from fedhpo_gym.fl.minibatches import ClientStreams, client_streams

Names = list[tuple[int, ...]]
SEEDS = (0, 7, 2**32 - 1)
LARGE_SEEDS = (2**32, 2**70)


@st.composite
def asked(draw: st.DrawFn) -> tuple[int, list[Names]]:
    """Draw a number of clients, and whom streams are asked for again and again."""
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
@given(asked())
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
    real = seeding.first_words

    def counted(name: str, keys: NDArray[np.uint32]) -> NDArray[np.uint64]:
        counts.append(len(keys))
        return real(name, keys)

    monkeypatch.setattr(seeding, "first_words", counted)
    return counts


def test_few_clients_are_prepared_for_many_rounds(made: list[int]) -> None:
    prepared, rounds = ClientStreams(5), minibatches.MAX_PREPARED // 5
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
    monkeypatch.setattr(minibatches, "MAX_PREPARED", 40)
    prepared = ClientStreams(1)
    for finished in range(0, 10_000, 40):
        prepared([(1, finished, 0)])
    assert len(prepared._words) <= minibatches.MIN_PREPARED * 40 + 40
