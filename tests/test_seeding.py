"""Streams depend on seed, name and keys, and on nothing else."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream, streams


def draw(seed: int, name: str, *keys: int) -> list[int]:
    return [int(number) for number in stream(seed, name, *keys).integers(2**31, size=8)]


def test_frozen_draws() -> None:
    # A change here changes every published number.
    assert stream(0, "clients", 7).integers(1000, size=5).tolist() == [294, 316, 744, 719, 242]


def test_every_argument_matters() -> None:
    arguments: list[tuple[Any, ...]] = [
        (0, "a"),
        (1, "a"),
        (0, "b"),
        (0, "a", 0),
        (0, "a", 0, 0),
        (0, "a", 1),
        (0, "a", 0, 1),
        (0, "a", 1, 0),
    ]
    draws = {tuple(draw(*each)) for each in arguments}
    assert len(draws) == len(arguments)


def test_same_in_another_process_with_another_hash_seed() -> None:
    code = "from fedhpo_gym.core.seeding import stream; print(stream(5, 'x', 1).random().hex())"
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "4242",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert result.stdout.strip() == stream(5, "x", 1).random().hex()


def test_leaves_the_global_generator_alone() -> None:
    before = pickle.dumps(np.random.get_state())  # noqa: NPY002
    stream(0, "a").random(1000)
    assert pickle.dumps(np.random.get_state()) == before  # noqa: NPY002


@pytest.mark.parametrize("key", [-1, 0.5, 2**32, False])
def test_refuses_a_bad_key(key: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`keys\[1\]` must be an integer in \[0, "):
        stream(0, "a", 0, key)  # type: ignore[arg-type]


WORDS = st.integers(0, 2**32 - 1)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 3).flatmap(
        lambda n: st.lists(st.tuples(*[WORDS] * (n + 1)), min_size=1, max_size=9)
    ),
    st.sampled_from([1, 40]),
    st.text(max_size=5),
)
def test_many_streams_are_those_made_one_by_one(
    keys: list[tuple[int, ...]], copies: int, name: str
) -> None:
    found = list(streams(name, keys * copies))
    assert len(found) == len(keys) * copies
    for rng, (seed, *others) in zip(found, keys * copies, strict=True):
        assert rng.bit_generator.state == stream(seed, name, *others).bit_generator.state


def test_many_streams_take_large_seeds_and_refuse_keys_out_of_range() -> None:
    large = [(2**70 + i, 3) for i in range(50)]
    expected = [stream(seed, "a", key).random() for seed, key in large]
    assert [rng.random() for rng in streams("a", large)] == expected
    assert list(streams("a", [])) == []
    for key in (-1, 2**32, True, 1.5):
        with pytest.raises(InvalidArgumentError, match="must be"):
            list(streams("a", [(1, key)] * 50))  # type: ignore[list-item]
