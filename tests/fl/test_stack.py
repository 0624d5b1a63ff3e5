"""Laws of stacked federations: no course notices which others are trained beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from fedhpo_gym.datasets.records import make_dataset  # noqa: E402
from fedhpo_gym.federations.federation import make_federation  # noqa: E402
from fedhpo_gym.fl.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch, Curves  # noqa: E402
from fedhpo_gym.fl.models import LogisticRegression  # noqa: E402
from fedhpo_gym.fl.packing import Course, Needs, PerClient, pack  # noqa: E402

GIVEN: dict[str, dict[str, float]] = {
    "fedavg": {},
    "fedopt": {"server_momentum": 0.9, "server_learning_rate": 0.5},
    "fedadam": {"server_learning_rate": 0.1, "adaptivity": 0.01},
    "fedprox": {"mu": 0.4},
    "nbafl": {"epsilon": 5.0, "w_clip": 0.3, "constant": 2.0, "mu": 0.5},
    "dpfedavg": {
        "update_clip": 0.3,
        "server_momentum": 0.5,
        "server_learning_rate": 0.9,
        "noise_multiplier": 0.3,
        "clip_rate": 0.2,
    },
    "ditto": {"regularization": 2.0},
    "fedbn": {},
    "local": {},
    "fednova": {"server_momentum": 0.5, "server_learning_rate": 0.8},
    "scaffold": {"server_learning_rate": 0.8},
}
RNG = np.random.default_rng(5)
LABELS = RNG.integers(3, size=700)
DATA = make_dataset("made", RNG.normal(size=(700, 6)) + LABELS[:, None], LABELS, 3)
# Two of them share a seed, and differ in who holds what; all differ in their features.
FEDERATIONS = {
    key: make_federation(DATA, seed, alpha=alpha, preprocessing="standardized")
    for key, (seed, alpha) in enumerate([(1, 0.5), (2, 0.5), (2, 5.0), (7, 0.2)])
}


def course(key: int, sampled: float = 0.6, **changes: float) -> Course:
    config = {"learning_rate": 0.1, "weight_decay": 0.01, "batch_size": 8, "step_size": 2}
    return Course({**config, **changes}, sampled, key)


COURSES = [
    course(0),
    course(1, learning_rate=0.3),
    course(2, 1.0),
    course(3, step_size=1),
    course(2, 0.4, learning_rate=1e30, weight_decay=1e30),
    course(1, batch_size=5),
    course(3, 1.0, **{"learning_rate@1": 0.5, "batch_size@3": 3, "step_size@0": 4}),
    course(0, batch_size=64),
    course(2, batch_size=64),
]
NEXT = [
    course(0, learning_rate=0.02),
    course(1, learning_rate=0.3),
    course(2, 0.4),
    course(3, step_size=3),
    course(2, 0.4),
    course(1, batch_size=8),
    course(3, 1.0),
    course(1),
    course(2, batch_size=16),
]
RESTARTED = (2, 6)


def run(algorithm: str, chosen: Sequence[int]) -> list[Curves]:
    """Train some courses, change them all, start two of them again, and train on."""
    extra = GIVEN[algorithm]
    first, then = (
        [Course({**c.configuration, **extra}, c.client_sample_rate, c.seed) for c in courses]
        for courses in ([COURSES[i] for i in chosen], [NEXT[i] for i in chosen])
    )
    batch = CourseBatch(
        FEDERATIONS, LogisticRegression, get_algorithm(algorithm), first, horizon=9, observe=True
    )
    curves = [batch.advance(2)]
    batch.restart([place for place, index in enumerate(chosen) if index in RESTARTED])
    curves.append(batch.advance(1))
    batch.configure(then, FEDERATIONS)
    return [*curves, batch.advance(2, evaluated=[2])]


def assert_same(found: Curves, expected: Curves, place: int, other_place: int = 0) -> None:
    """Compare all that is known of a course with another batch, of it alone by default."""
    np.testing.assert_array_equal(found.metrics[place], expected.metrics[other_place])
    assert found.diverged_at[place] == expected.diverged_at[other_place]
    assert found.feedback is not None
    assert expected.feedback is not None
    for field in fields(found.feedback):
        one, other = (getattr(curves.feedback, field.name) for curves in (found, expected))
        np.testing.assert_array_equal(one[place], other[other_place], err_msg=field.name)


@pytest.mark.parametrize("algorithm", GIVEN)
def test_courses_of_several_federations_and_rounds_are_those_they_are_alone(algorithm: str) -> None:
    together = run(algorithm, range(len(COURSES)))
    assert algorithm == "local" or together[0].diverged_at.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0]
    for index in range(len(COURSES)):
        alone = run(algorithm, [index])
        for found, expected in zip(together, alone, strict=True):
            assert_same(found, expected, index)


@settings(max_examples=3, deadline=None)
@given(st.permutations(range(len(COURSES))), st.integers(1, len(COURSES)))
def test_neither_order_nor_company_matters(order: list[int], number: int) -> None:
    together, some = run("fedavg", range(len(COURSES))), run("fedavg", order[:number])
    for place, index in enumerate(order[:number]):
        for found, expected in zip(some, together, strict=True):
            np.testing.assert_array_equal(found.metrics[place], expected.metrics[index])


@pytest.mark.parametrize(("algorithm", "limit"), [("nbafl", 1), ("nbafl", 3000), ("local", 1)])
def test_memory_limits_change_no_number(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, limit: int
) -> None:
    expected = run(algorithm, range(len(COURSES)))
    monkeypatch.setattr("fedhpo_gym.fl.records.MAX_LOCAL_BYTES", limit)
    for found, one in zip(run(algorithm, range(len(COURSES))), expected, strict=True):
        for place in range(len(COURSES)):
            assert_same(found, one, place, place)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(1, 2)), max_size=40))
def test_every_course_is_packed_once_with_its_like(kinds: list[tuple[int, int, int]]) -> None:
    one = PerClient(1)
    needed = [Needs(seed, (), PerClient(size), one, 1) for seed, _, size in kinds]
    rounds = [finished for _, finished, _ in kinds]
    packed = pack(needed, rounds, 4, {0: "one", 1: "one", 2: "two"})
    places = [place for group in packed for block in group.blocks for place in block.courses]
    assert sorted(places) == list(range(len(kinds)))
    assert len(packed) == len({seed > 1 for seed, _, _ in kinds})
    for block in (block for group in packed for block in group.blocks):
        assert 1 <= len(block.courses) <= 4
        assert {(needed[i], rounds[i]) for i in block.courses} == {(block.needs, block.round)}
