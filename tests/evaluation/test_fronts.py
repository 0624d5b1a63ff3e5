"""Pareto fronts and hypervolumes: by hand, by exhaustive search, and as a library computes them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.multi_objective import (
    attainment_surfaces,
    hypervolume,
    incumbent_volumes,
    non_dominated,
)


def test_by_hand() -> None:
    points = [[1, 3], [2, 2], [3, 1], [3, 3], [2, 2], [1, 4]]
    assert non_dominated(points).tolist() == [True, True, True, False, True, False]
    # Unit squares below (4, 4): 3 + 2 + 1 of the staircase.
    assert hypervolume(points, [4, 4]) == 6
    assert hypervolume(points, [1, 9]) == 0
    assert hypervolume([[0, 0, 0]], [1, 2, 3]) == 6
    assert hypervolume(np.zeros((0, 2)), [1, 1]) == 0


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_fronts_are_those_of_exhaustive_search(objectives: int) -> None:
    points = np.random.default_rng(objectives).integers(0, 6, (60, objectives)).astype(float)
    points[:2] = np.inf
    dominated = [any((q <= p).all() and (q < p).any() for q in points) for p in points]
    assert (~non_dominated(points)).tolist() == dominated


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_volumes_are_those_of_counted_cells(objectives: int) -> None:
    side = 6
    points = np.random.default_rng(objectives).integers(0, side + 2, (8, objectives)).astype(float)
    cells = np.array(list(itertools.product(range(side), repeat=objectives)))
    counted = (points[:, None] <= cells).all(axis=-1).any(axis=0).sum()
    assert hypervolume(points, [side] * objectives) == counted


@pytest.mark.parametrize("objectives", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_growing_volumes_are_of_the_front_that_one_believes_in(objectives: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    errors, told = rng.integers(0, 6, (2, 40, objectives)).astype(float)
    corner = np.full(objectives, 5.0)
    believed = [
        hypervolume(errors[:n][non_dominated(told[:n])], corner) for n in range(1, len(told) + 1)
    ]
    assert incumbent_volumes(errors, corner, told).tolist() == believed
    calm = [hypervolume(errors[:n], corner) for n in range(1, len(errors) + 1)]
    assert incumbent_volumes(errors, corner, errors).tolist() == calm


def test_a_front_that_one_believes_in_is_of_numbers_that_fit() -> None:
    points, corner = np.ones((3, 2)), np.full(2, 2.0)
    for told in (points[:2], np.ones((4, 2)), points[:, :1], np.ones(3)):
        with pytest.raises(InvalidArgumentError, match="`observed` must"):
            incumbent_volumes(points, corner, told)
    unknown = np.array([[0.0, 0.0], [np.nan, 0.0], [1.0, 1.0]])
    with pytest.raises(InvalidArgumentError, match="`observed` must"):
        incumbent_volumes(points, corner, unknown)
    with pytest.raises(InvalidArgumentError, match="`errors` must"):
        incumbent_volumes(unknown, corner, points)


@pytest.mark.parametrize("objectives", [2, 3, 4])
def test_another_library_agrees(objectives: int) -> None:
    why = "pymoo is not installed: pip install --no-deps pymoo autograd cma dill Deprecated wrapt"
    hv = pytest.importorskip("pymoo.indicators.hv", reason=why)
    sorting = pytest.importorskip("pymoo.util.nds.non_dominated_sorting", reason=why)
    points = np.random.default_rng(objectives).random((40, objectives))
    corner = np.ones(objectives)
    assert hypervolume(points, corner) == pytest.approx(hv.HV(ref_point=corner)(points), rel=1e-9)
    first = sorting.NonDominatedSorting().do(points, only_non_dominated_front=True)
    assert np.flatnonzero(non_dominated(points)).tolist() == sorted(first.tolist())


@pytest.mark.parametrize("points", [[["1", "2"]], "words", [[1.0, 2.0], [1.0]], [[1j]], [None], {}])
def test_what_are_no_points_is_refused(points: Any) -> None:
    for flat in ([1.0], [[float("nan")]], [[]]):
        with pytest.raises(InvalidArgumentError, match="axes"):
            hypervolume(flat, [1.0])
    with pytest.raises(InvalidArgumentError, match="one per objective"):
        hypervolume([[1.0]], [1.0, 2.0])
    rule = "must be an array of real numbers, got"
    with pytest.raises(InvalidArgumentError, match=f"`errors` {rule}"):
        non_dominated(points)
    with pytest.raises(InvalidArgumentError, match=f"`errors` {rule}"):
        hypervolume(points, [1.0, 1.0])
    with pytest.raises(InvalidArgumentError, match=f"`reference` {rule}"):
        hypervolume([[1.0, 2.0]], points)


@pytest.mark.parametrize(
    ("runs", "shares", "words"),
    [
        ([], [0.5], "`runs` must be at least one array"),
        ([np.zeros((0, 2))], [0.5], "`runs` must be at least one array"),
        ([np.zeros((1, 2))], [2.0], r"`shares` must be in \(0, 1\], got \[2.0\]"),
        (
            [np.zeros((1, 2))],
            ["half"],
            r"`shares` must be a list, each a number, in \(0, 1\], got \['half'\]",
        ),
        ([[["a", "b"]]], [0.5], "`runs` must be an array of real numbers"),
        ([[[1.0, 2.0], [1.0]]], [0.5], "`runs` must be an array of real numbers"),
        ([np.zeros((1, 2))], [0.0], r"`shares` must be in \(0, 1\], got \[0.0\]"),
    ],
)
def test_what_runs_cannot_attain(runs: Any, shares: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        attainment_surfaces(runs, shares)
