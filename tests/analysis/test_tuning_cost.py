"""What tuning costs: closed forms beside enumeration and simulation, tunability, priors."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.analysis.tuning_cost import (
    WEIGHTS,
    Prior,
    RunLibrary,
    Runs,
    calibrate,
    epochs_run,
    expected_best,
    expected_curve,
    near_best,
    omega_tunability,
    probability_of_best,
    read_library,
    relative_performance,
    selection,
    simulate,
    simulate_by_cost,
)
from fedhpo_gym.cli import ERROR, main
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
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
    assert main(["tuning-cost", str(tmp_path)]) == ERROR
    line = capsys.readouterr().err.splitlines()[-1]
    assert "must be a CSV file with the columns algorithm, problem, validation" in line
    assert f"got the folder {tmp_path}; write" in line


def test_weights_by_hand() -> None:
    assert WEIGHTS["cpe"](3) == pytest.approx([3 / 6, 2 / 6, 1 / 6])
    assert WEIGHTS["cpl"](3) == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert WEIGHTS["cpu"](2).tolist() == [0.5, 0.5]
    assert WEIGHTS["one_shot"](3).tolist() == [1, 0, 0]
    assert WEIGHTS["peak"](3).tolist() == [0, 0, 1]
    with pytest.raises(InvalidArgumentError, match="trial"):
        WEIGHTS["cpe"](0)


def test_omega_tunability_lies_between_first_and_last() -> None:
    expected = np.array([[9.0, 5.0, 4.0], [3.0, 3.0, 3.0]])
    assert omega_tunability(expected, WEIGHTS["cpe"](3)) == pytest.approx([41 / 6, 3.0])
    assert omega_tunability(expected, WEIGHTS["one_shot"](3)).tolist() == [9, 3]
    assert omega_tunability(expected, WEIGHTS["peak"](3)).tolist() == [4, 3]
    assert omega_tunability(np.array([np.inf, 4.0]), WEIGHTS["peak"](2)) == 4
    falling = np.sort(stream(0, "omega").uniform(size=20))[::-1]
    early, uniform, late = (
        omega_tunability(falling, WEIGHTS[n](20)) for n in ("cpe", "cpu", "cpl")
    )
    assert early > uniform > late
    with pytest.raises(InvalidArgumentError, match="sum to 1"):
        omega_tunability(expected, np.ones(3))


def test_relative_performance_by_hand() -> None:
    # Two algorithms, two problems, two budgets.
    expected = np.array([[[1.0, 1.0], [4.0, 2.0]], [[2.0, 1.0], [2.0, 2.0]]])
    assert relative_performance(expected).tolist() == [[0.75, 1.0], [0.75, 1.0]]
    with pytest.raises(InvalidArgumentError, match="positive"):
        relative_performance(-expected)


def test_priors_are_scipys_fits() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    values = 10 ** stream(0, "prior").normal(-2.0, 1.3, size=50)
    found = Prior.fit(values, "normal", "log10")
    assert (found.a, found.b) == pytest.approx(scipy_stats.norm.fit(np.log10(values)))
    ends = Prior.fit(values, "uniform", "log10")
    location, scale = scipy_stats.uniform.fit(np.log10(values))
    assert (ends.a, ends.b) == pytest.approx((location, location + scale))


def test_priors_draw_what_they_say() -> None:
    rng = stream(0, "draws")
    assert np.log10(Prior("normal", -2.0, 0.5, "log10").sample(rng, 4000)).mean() == pytest.approx(
        -2.0, abs=0.05
    )
    betas = Prior("uniform", -5, -1, "one_minus_log10").sample(rng, 100)
    assert betas.min() >= 0.9
    assert betas.max() < 1.0
    momentum = Prior("uniform", 0, 1).sample(rng, 100)
    assert 0 <= momentum.min() < momentum.max() <= 1
    again = Prior.fit(betas, "uniform", "one_minus_log10")
    assert -5 <= again.a < again.b <= -1


def test_calibration_pools_what_is_near_the_best() -> None:
    assert near_best(np.array([1.0, 1.2, 1.21, np.inf])).tolist() == [True, True, False, False]
    searches = [
        (np.array([1.0, 1.1, 5.0]), {"lr": np.array([0.1, 0.01, 9.0])}),
        (np.array([70.0, 99.0]), {"lr": np.array([1.0, 9.0])}),
    ]
    found = calibrate(searches, {"lr": ("normal", "log10")})["lr"]
    assert (found.a, found.b) == pytest.approx((-1.0, np.sqrt(2 / 3)))
    with pytest.raises(InvalidArgumentError, match="range"):
        Prior.fit(np.array([0.0]), "normal", "log10")
    with pytest.raises(InvalidArgumentError, match="not negative"):
        near_best(np.array([-1.0]))
    with pytest.raises(InvalidArgumentError, match="order"):
        Prior("uniform", 1.0, 0.0)


def test_early_stopping_by_hand() -> None:
    assert epochs_run(np.array([3.0, 2.0, 2.0, 1.0, 1.5, 1.2, 0.1])) == 6
    assert epochs_run(np.array([3.0, 2.0, 2.5, 2.4, 1.0])) == 4
    assert epochs_run(np.array([3.0, 2.9, 2.8]), min_delta=0.15) == 3
    assert epochs_run(np.array([np.nan, np.nan, 0.0])) == 2
    assert epochs_run(np.array([1.0])) == 1
    with pytest.raises(InvalidArgumentError, match="patience"):
        epochs_run(np.array([1.0]), patience=0)


def test_a_library_is_read_from_any_table(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "problem,algorithm,validation,cost\np,fedavg,0.5,2\np,fedopt,0.4,3\np,fedavg,0.3,1\n"
    )
    library = read_library(path)
    assert library.algorithms == ("fedavg", "fedopt")
    runs = library.of("fedavg", "p")
    assert (runs.validation.tolist(), runs.test.tolist()) == ([0.5, 0.3], [0.5, 0.3])
    assert runs.cost.tolist() == [2, 1]
    assert len(runs) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("problem,algorithm\np,a\n", "must have the columns algorithm, problem, val"),
        ("problem,algorithm,validation\np,a,abc\n", "line 2: `validation` must be .* got 'abc'"),
        ("problem,algorithm,validation\np,a,inf\n", "line 2: `validation`"),
        ("problem,algorithm,validation\np,a,1\nq,b,1\n", "none of 'a' on 'q'"),
        ("problem,algorithm,validation,cost\np,a,1,0\n", "positive"),
        ("problem,algorithm,validation\n", "at least one run"),
    ],
)
def test_a_damaged_library_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(DamagedDataError, match=message):
        read_library(path)


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"no run library .* with algorithm, problem, val"):
        read_library(tmp_path / "none.csv")
    with pytest.raises(InvalidArgumentError, match="NaN"):
        Runs.of(np.array([np.nan]))
    with pytest.raises(InvalidArgumentError, match="one entry per run"):
        Runs.of(np.array([1.0]), np.array([1.0, 2.0]))
    with pytest.raises(InvalidArgumentError, match="none of 'b' on 'p'"):
        RunLibrary(("a", "b"), ("p",), {("a", "p"): Runs.of(np.ones(2))})
