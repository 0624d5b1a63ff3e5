"""Streams that are prepared for coming rounds are those made one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhpo_gym import seeding
from fedhpo_gym.fl import minibatches
from fedhpo_gym.fl.minibatches import ClientStreams, client_streams

Names = list[tuple[int, ...]]
SEEDS = (0, 7, 2**32 - 1, 2**32, 2**70)


@st.composite
def asked(draw: st.DrawFn) -> tuple[int, list[Names]]:
    """Draw a number of clients, and whom streams are asked for again and again."""
    clients = draw(st.sampled_from([1, 2, 5, 30, 128, 256, 257, 1000]))
    one = st.tuples(st.sampled_from(SEEDS), st.integers(0, 600), st.integers(0, clients - 1))
    return clients, draw(st.lists(st.lists(one, min_size=1, max_size=40), max_size=6))


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


def test_few_clients_are_prepared_for_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = seeding.first_words

    def counted(name: str, keys: object) -> object:
        calls.append(len(keys))  # type: ignore[arg-type]
        return real(name, keys)  # type: ignore[arg-type]

    monkeypatch.setattr(seeding, "first_words", counted)
    prepared, rounds = ClientStreams(5), minibatches.MAX_PREPARED // 5
    for finished in range(3, 3 + rounds):
        prepared([(1, finished, client) for client in range(5)])
    assert calls == [5 * rounds]
    prepared([(1, 3 + rounds, 0)])
    assert len(calls) == 2


def test_what_is_prepared_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minibatches, "MAX_PREPARED", 40)
    prepared = ClientStreams(1)
    for finished in range(0, 10_000, 40):
        prepared([(1, finished, 0)])
    assert len(prepared._words) <= minibatches.MIN_PREPARED * 40 + 40
