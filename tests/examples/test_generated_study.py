"""The study of generated tasks: its measures on what is known, and that it runs to its end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.multi_objective import kendall
from fedhpo_gym.stored.meta_data import open_meta_data

pytest.importorskip("sklearn")
import generated_report as told
import generated_study as study
import generated_tasks as measured


def test_what_smoothness_explains_is_predicted_and_noise_is_not() -> None:
    rng = stream(0, "test_generated_study")
    features = rng.random((171, 4))
    wanted = np.stack([np.sin(3.0 * features[:, 0]) + features[:, 1], rng.standard_normal(171)])
    smooth, noise = measured.predicted_share(features, wanted)
    assert smooth > 0.95
    assert noise < 0.1


def test_the_effective_dimension_counts_what_matters() -> None:
    features = stream(1, "test_generated_study").random((400, 4))
    steps = np.round(features)
    owner = np.array([0, 1, 2, 2])  # the last two are of one category
    wanted = np.stack([steps[:, 0], steps[:, 0] + steps[:, 1], steps[:, 2] + steps[:, 3]])
    explained, effective, shares = measured.importances(features, wanted, owner)
    assert (explained > 0.95).all()
    np.testing.assert_allclose(effective, [1.0, 2.0, 1.0], atol=0.3)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)


def test_scores_of_real_tasks_are_those_of_the_pool() -> None:
    data = open_meta_data("Joint")
    tasks = data.where("test")[:2]
    found, places = measured.real_tasks(data, tasks), measured.shared_places(data)
    for row, task in zip(found.scores(), tasks, strict=True):
        np.testing.assert_array_equal(row, data.scores[task, places[task], -1, -1])
        there = data.actions[task][places[task]]
        np.testing.assert_array_equal(measured.shared_actions(data), there)
    at_rate = data.values[tasks[0], places[tasks[0]], 0, -1, 0]
    np.testing.assert_array_equal(found.of("val_loss", 0)[0], at_rate)


def test_rank_correlations_are_those_of_the_definition() -> None:
    rng = stream(2, "test_generated_study")
    one, other = rng.integers(6, size=(2, 3, 9)).astype(float)  # with ties
    pairs = np.array([[kendall(a, b) for b in other] for a in one])
    np.testing.assert_allclose(told.agreements(one, other), pairs, atol=1e-6)
    np.testing.assert_allclose(told.taus(one, other), pairs.diagonal(), atol=1e-12)


def test_distances_and_their_chances_are_those_of_scipy() -> None:
    rng = stream(4, "test_generated_study")
    own, other = rng.integers(9, size=12).astype(float), rng.integers(2, 12, 300).astype(float)
    scipys = stats.ks_2samp(own, other, method="asymp")
    assert told.distance(np.sort(own), np.sort(other)) == pytest.approx(scipys.statistic)
    surveys = np.array([str(i) for i in range(12)])
    found = told.compared({"all": own}, surveys, {"all": other})
    assert found["all"] == pytest.approx((scipys.statistic, min(2.0 * scipys.pvalue, 1.0)))


def test_many_tests_are_corrected_as_holm_does() -> None:
    np.testing.assert_allclose(
        told.holm(np.array([0.04, 0.01, 0.03, 0.5])), [0.09, 0.04, 0.09, 0.5]
    )


@pytest.mark.slow
def test_the_judge_finds_a_planted_fault_and_nothing_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(told, "FOLDS", 4)
    monkeypatch.setattr(told.Judge.area, "__defaults__", (40,))
    rng = stream(3, "test_generated_study")
    real, same = rng.standard_normal((60, 5)), rng.standard_normal((120, 5))
    surveys = np.array([f"real {i // 3}" for i in range(60)])
    others = np.array([f"made {i}" for i in range(120)])
    judge = told.Judge(real, surveys, same, others)
    area, low, high = judge.area(judge.told(range(5))[0])
    assert 0.35 < area < 0.65
    assert low < area < high
    faulty = same.copy()
    faulty[:, 3] += 4.0
    judge = told.Judge(real, surveys, faulty, others)
    chance, weight = judge.told(range(5))
    assert judge.area(chance)[0] > 0.97
    assert weight.argmax() == 3


@pytest.mark.slow
@pytest.mark.usefixtures("few_meta_tasks")
def test_the_study_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few draws and trees: what they say is the question of the tests above."""
    pytest.importorskip("matplotlib")
    for name, value in {"REMOVED": 1, "FOLDS": 3, "DRAWS": 10, "RESAMPLES": 200}.items():
        monkeypatch.setattr(told, name, value)
    monkeypatch.setattr(told.Judge.area, "__defaults__", (10,))
    from sklearn import ensemble

    trees = ensemble.ExtraTreesClassifier
    monkeypatch.setattr(ensemble, "ExtraTreesClassifier", lambda _, **of: trees(10, **of))
    words = ["--quick", "--out", str(tmp_path), "--workers", "1"]
    study.main(words)
    first = capsys.readouterr().out
    assert "| held-out and generated tasks |" in first
    assert "| generated and surrogate |" in first
    assert "| noise-free and pool |" in first
    assert (tmp_path / "generated.png").stat().st_size > 10_000
    for path in tmp_path.glob("tuned-*.json"):
        both = json.loads(path.read_text())
        for reached in (*both["true"].values(), *both["told"].values()):
            assert 0.0 <= reached[0] <= 1.0
            assert len(reached) == 8
        assert max(one[-1] for one in both["told"].values()) == 1.0
    (gone, *kept) = sorted(tmp_path.glob("t*-*.json"))
    times = [path.stat().st_mtime_ns for path in kept]
    gone.unlink()
    study.main(words)
    assert capsys.readouterr().out == first
    assert [path.stat().st_mtime_ns for path in kept] == times
