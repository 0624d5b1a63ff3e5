"""Tunability, priors, early stopping and run libraries: by hand, and their laws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.analysis.tuning_cost import (
    WEIGHTS,
    Prior,
    RunLibrary,
    Runs,
    alpha_tunability,
    calibrate,
    epochs_run,
    exponential,
    near_best,
    omega_tunability,
    read_library,
    relative_performance,
)
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.core.seeding import stream

scipy_stats = pytest.importorskip("scipy.stats")


def test_weights_by_hand() -> None:
    assert WEIGHTS["cpe"](3) == pytest.approx([3 / 6, 2 / 6, 1 / 6])
    assert WEIGHTS["cpl"](3) == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert WEIGHTS["cpu"](2).tolist() == [0.5, 0.5]
    assert WEIGHTS["one_shot"](3).tolist() == [1, 0, 0]
    assert WEIGHTS["peak"](3).tolist() == [0, 0, 1]
    assert exponential(2, 0.1) == pytest.approx([1 / (1 + np.exp(-0.1)), 1 / (1 + np.exp(0.1))])
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


def test_alpha_tunability_by_hand() -> None:
    expected = np.array([[2.0, 1.05, 1.0], [1.5, 1.2, 1.1]])
    assert alpha_tunability(expected, 0.9).tolist() == [2, 3]
    assert alpha_tunability(expected, 0.95).tolist() == [2, np.inf]
    assert alpha_tunability(expected, 1.0).tolist() == [3, np.inf]
    with pytest.raises(InvalidArgumentError, match="alpha"):
        alpha_tunability(expected, 0.0)


def test_relative_performance_by_hand() -> None:
    # Two algorithms, two problems, two budgets.
    expected = np.array([[[1.0, 1.0], [4.0, 2.0]], [[2.0, 1.0], [2.0, 2.0]]])
    assert relative_performance(expected).tolist() == [[0.75, 1.0], [0.75, 1.0]]
    with pytest.raises(InvalidArgumentError, match="positive"):
        relative_performance(-expected)


def test_priors_are_scipys_fits() -> None:
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
