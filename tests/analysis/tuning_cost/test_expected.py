"""Procedure 1: the closed form is what simulation comes to, and what enumeration says."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.analysis.tuning_cost import (
    Runs,
    expected_best,
    expected_curve,
    probability_of_best,
    selection,
    simulate,
    simulate_by_cost,
)
from fedhpo_gym.cli import ERROR, main
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream


def library(key: int, count: int = 6, ties: bool = False) -> Runs:
    rng = stream(3, "library", key)
    validation, test = rng.normal(size=(2, count)) + 5
    if ties:
        validation, test = np.round(validation), np.round(test)
    return Runs.of(validation, test)


def enumerated(runs: Runs, budget: int) -> np.ndarray:
    """Return what every possible search reports; equal validations report their mean."""
    found = []
    for drawn in product(range(len(runs)), repeat=budget):
        lowest = min(runs.validation[list(drawn)])
        found.append(np.mean([t for v, t in zip(runs.validation, runs.test) if v == lowest]))  # noqa: B905
    return np.array(found)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("budget", [1, 2, 4])
def test_the_closed_form_is_the_mean_of_all_searches(budget: int, ties: bool) -> None:
    runs = library(0, ties=ties)
    every = enumerated(runs, budget)
    mean, variance = expected_best(runs, budget)
    assert mean == pytest.approx(every.mean())
    if not ties:
        assert variance == pytest.approx(every.var())


def test_equation_2_by_hand() -> None:
    # Two draws of {1, 2, 4}: the lowest is 1 in 5 of 9 cases, 2 in 3, 4 in 1.
    runs = Runs.of(np.array([4.0, 1.0, 2.0]))
    assert selection(runs.validation, 2) == pytest.approx([1 / 9, 5 / 9, 3 / 9])
    mean, variance = expected_best(runs, 2)
    assert mean == pytest.approx(15 / 9)
    assert variance == pytest.approx((5 + 12 + 16) / 9 - (15 / 9) ** 2)


def test_simulation_comes_to_the_closed_form() -> None:
    runs = library(1, count=40)
    for budget in (1, 5, 30):
        mean, variance = expected_best(runs, budget)
        drawn = simulate(runs, budget, repetitions=20_000, seed=budget)
        assert drawn.mean() == pytest.approx(mean, abs=4 * np.sqrt(variance / 20_000) + 1e-9)
        assert drawn.var() == pytest.approx(variance, rel=0.1, abs=1e-9)


def test_laws_of_the_expected_best() -> None:
    runs = Runs.of(library(2, count=30).validation)
    curve = expected_curve(runs, range(1, 200))
    assert np.all(np.diff(curve) <= 1e-12), "more trials are never worse"
    assert curve[0] == pytest.approx(runs.validation.mean())
    assert expected_best(runs, 10_000)[0] == pytest.approx(runs.validation.min())
    shuffled = Runs.of(runs.validation[::-1].copy())
    assert expected_best(shuffled, 7) == pytest.approx(expected_best(runs, 7))
    assert selection(runs.validation, 9).sum() == pytest.approx(1.0)


def test_selection_is_by_validation_and_never_by_test() -> None:
    runs = Runs.of(np.array([1.0, 2.0]), np.array([9.0, 0.0]))
    assert expected_best(runs, 2)[0] == pytest.approx(9 * 3 / 4)


def test_a_diverged_run_harms_while_it_may_be_selected() -> None:
    runs = Runs.of(np.array([1.0, np.inf]))
    assert expected_best(runs, 3)[0] == np.inf
    diverged_on_test = Runs.of(np.array([1.0, 2.0]), np.array([3.0, np.inf]))
    assert expected_best(diverged_on_test, 2000)[0] == pytest.approx(3.0)


def test_budgets_of_cost_by_hand() -> None:
    # Every run costs 2: three runs end within 7.
    runs = Runs(np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([2.0, 2.0]))
    found = simulate_by_cost(runs, np.array([1.9, 2.0, 7.0]), repetitions=20_000)
    assert found[0] == np.inf
    assert found[1] == pytest.approx(1.5, abs=0.02)
    assert found[2] == pytest.approx(1 + 1 / 8, abs=0.02)


def test_equal_costs_are_trials() -> None:
    runs = library(4, count=20)
    by_cost = simulate_by_cost(runs, np.array([1.0, 3.0, 9.0]), repetitions=20_000)
    assert by_cost == pytest.approx(expected_curve(runs, (1, 3, 9)), abs=0.03)


@pytest.mark.parametrize("ties", [False, True])
def test_the_probability_of_best_is_that_of_all_searches(ties: bool) -> None:
    libraries = {name: library(key, 4, ties) for key, name in enumerate("abc", start=10)}
    found = probability_of_best(libraries, 2)
    assert sum(found.values()) == pytest.approx(1.0)
    rng, wins = stream(0, "probability"), np.zeros(3)
    reported = np.stack([simulate(r, 2, 40_000, n) for n, r in enumerate(libraries.values())])
    lots = rng.uniform(size=reported.shape)  # equals share by lot
    wins = np.bincount(np.lexsort((lots, reported), axis=0)[0], minlength=3) / 40_000
    if not ties:
        assert [*found.values()] == pytest.approx(wins, abs=0.01)
    validated = {name: Runs.of(runs.test) for name, runs in libraries.items()}
    exact = probability_of_best(validated, 2)
    every = [np.unique(enumerated(r, 2), return_counts=True) for r in validated.values()]
    expected = np.zeros(3)
    for cases in product(*(zip(*one, strict=True) for one in every)):
        values = np.array([value for value, _ in cases])
        best = values == values.min()
        expected += np.prod([count for _, count in cases]) * best / best.sum() / 16**3
    assert [*exact.values()] == pytest.approx(expected)


def test_equal_libraries_share() -> None:
    runs = library(5)
    assert probability_of_best({"a": runs, "b": runs}, 3) == pytest.approx({"a": 0.5, "b": 0.5})


def test_what_makes_no_sense_is_refused() -> None:
    runs = library(6)
    for refused in (lambda: expected_best(runs, 0), lambda: simulate(runs, 0)):
        with pytest.raises(InvalidArgumentError, match="budget"):
            refused()
    with pytest.raises(InvalidArgumentError, match="repetitions"):
        simulate(runs, 1, 0)
    with pytest.raises(InvalidArgumentError, match="finite"):
        simulate_by_cost(runs, np.array([np.inf]))


def test_the_command_prints_the_closed_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    rows = [f"{name},P,{value},{value},1" for name, best in (("a", 1.0), ("b", 2.0))
            for value in (best, best + 1.0, best + 3.0)]  # fmt: skip
    path.write_text("\n".join(["algorithm,problem,validation,test,cost", *rows]), encoding="utf-8")
    assert main(["tuning-cost", str(path), "--trials", "2"]) == 0
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    # Of two draws of {1, 2, 4} the lowest is 15 / 9, of one draw 7 / 3.
    assert ["a", "2.333", "1.667"] in [line[:3] for line in said]
    assert ["a", "1.000", "1.000"] in said
    assert main(["tuning-cost", str(path), "--trials", "0"]) == ERROR
