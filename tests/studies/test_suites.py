"""Suites: lists that exist, and a small one that follows its rule."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.core.errors import UnknownNameError
from fedhpo_gym.studies import SUITES, suite
from fedhpo_gym.studies.environments import make_environment
from fedhpo_gym.studies.suites import representative


@pytest.mark.parametrize("name", SUITES)
def test_every_problem_of_a_suite_is_registered_and_named_once(name: str) -> None:
    ids = suite(name)
    assert ids
    assert len(set(ids)) == len(ids)
    assert set(ids) <= set(gym.registry)


def test_the_paper_has_twenty_problems_and_none_is_new() -> None:
    assert len(suite("paper")) == 20
    assert all(env_id.endswith("-v0") for env_id in suite("paper"))


def test_a_wrong_name_is_told_the_right_ones() -> None:
    with pytest.raises(UnknownNameError, match="'lr'"):
        suite("lrs")


def test_the_central_one_comes_first_and_then_the_farthest_by_hand() -> None:
    # Ranks 0, 1/4, 1/2, 3/4, 1: "c" is central; "a" and "e" are as far, then "b" and "d".
    features = np.array([[1.0], [2.0], [30.0], [400.0], [5000.0]])
    assert representative("abcde", features, 4) == ("c", "a", "e", "b")
    assert representative("abcde", features, 9) == ("c", "a", "e", "b", "d")


def test_what_is_unknown_is_neither_near_nor_far_and_equals_share_a_rank() -> None:
    features = np.array([[1.0, 7.0], [np.nan, 7.0], [3.0, 7.0]])
    assert representative("abc", features, 3) == ("b", "a", "c")


def test_the_small_suite_answers_from_stored_numbers_alone() -> None:
    for env_id in suite("small"):
        with make_environment(env_id, {}) as env:
            env.reset(seed=0)
            assert env.unwrapped.backend.name != "raw"  # type: ignore[attr-defined]
