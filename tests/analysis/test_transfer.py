"""HPO-B's measures: its published results to six digits, plain loops, and cases by hand."""

from __future__ import annotations

import gzip
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.analysis.transfer import MethodRuns, align_runs
from fedhpo_gym.core.errors import InvalidArgumentError

TRIALS = (0, 5, 10, 25, 50, 100)
OVER_RUNS = {
    "Random": (0.202854, 0.141873, 0.112000, 0.086356, 0.072174, 0.053977),
    "FSBO": (0.202854, 0.087432, 0.060237, 0.035615, 0.021006, 0.012491),
    "RGPE": (0.202854, 0.103624, 0.076319, 0.056155, 0.046384, 0.027761),
    "BOHAMIANN": (0.202854, 0.117570, 0.076705, 0.046083, 0.028035, 0.015799),
    "GP": (0.202854, 0.105919, 0.079885, 0.051090, 0.034504, 0.025759),
}
OVER_SPACES = [  # of the same methods, at 25, 50 and 100 trials
    *([0.083579, 0.069330, 0.050582], [0.037722, 0.023000, 0.012981]),
    *([0.053994, 0.044255, 0.025285], [0.047245, 0.028409, 0.015481]),
    [0.050777, 0.034548, 0.025387],
]
DISCRETE = tuple(OVER_RUNS)
CONTINUOUS = {  # at 0, 25, 50 and 100 trials
    "RS-C": (0.183450, 0.077708, 0.065995, 0.056121),
    "GP-C": (0.183450, 0.052519, 0.042783, 0.035797),
}


@pytest.fixture(scope="module")
def published(shared_datasets: Path) -> Any:
    """Read some of the published results of HPO-B."""
    folder = shared_datasets / "hpob" / "results"

    def read(names: Any, trials: int) -> MethodRuns:
        packed = {name: (folder / f"{name}.json.gz").read_bytes() for name in names}
        results = {name: json.loads(gzip.decompress(said)) for name, said in packed.items()}
        return align_runs(results, trials)

    return read


def test_regret_of_eight_published_methods(published: Any) -> None:
    runs = published(DISCRETE, 100)
    assert (len(runs.runs), runs.regret.shape) == (430, (430, 5, 101))
    found = np.round(runs.mean(runs.regret)[:, TRIALS], 6)
    np.testing.assert_allclose(found, list(OVER_RUNS.values()), atol=1e-12)
    found = np.round(runs.mean(runs.regret, "search spaces")[:, TRIALS[3:]], 6)
    np.testing.assert_allclose(found, OVER_SPACES, atol=1e-12)
    runs = published(CONTINUOUS, 100)
    found = np.round(runs.mean(runs.regret)[:, [0, 25, 50, 100]], 6)
    np.testing.assert_allclose(found, list(CONTINUOUS.values()), atol=1e-12)
    forest = published(["RF"], 5)
    assert round(float(forest.mean(forest.regret)[0, 5]), 6) == 0.133763


def test_ranks_and_differences_are_those_of_pandas_and_scipy(published: Any) -> None:
    pandas, scipy_stats = pytest.importorskip("pandas"), pytest.importorskip("scipy.stats")
    runs = published(DISCRETE, 100)
    for trial in (25, 50, 100):
        frame = pandas.DataFrame((1 - runs.regret[:, :, trial]).round(8))
        ranked = frame.rank(axis=1, ascending=False).to_numpy()
        np.testing.assert_array_equal(runs.ranks[:, :, trial], ranked)
        found = runs.critical_difference(trial)
        assert found.ranks == pytest.approx(np.sort(ranked.mean(axis=0)))
        expected = scipy_stats.friedmanchisquare(*ranked.T)
        assert found.friedman.statistic == pytest.approx(expected.statistic)
        alike = np.ones((5, 5), bool)  # Holm's procedure, step by step
        pairs = {
            pair: scipy_stats.wilcoxon(*ranked[:, pair].T, zero_method="pratt").pvalue
            for pair in combinations(range(5), 2)
        }
        for step, pair in enumerate(sorted(pairs, key=lambda one: pairs[one])):
            if pairs[pair] > 0.05 / (10 - step):
                break
            alike[pair] = alike[pair[::-1]] = False
        order = [DISCRETE.index(name) for name in found.agents]
        np.testing.assert_array_equal(found.p_values >= 0.05, alike[np.ix_(order, order)])


def by_hand() -> MethodRuns:
    a = {"7": {"1": {"s": [0.0, 0.5], "t": [0.5, 1.0]}}, "8": {"1": {"s": [0.25, 0.25]}}}
    b = {"7": {"1": {"s": [0.0, 0.25], "t": [0.5, 0.5]}}, "8": {"1": {"s": [1.0]}}}
    return align_runs({"a": a, "b": b}, 1)


def test_means_bands_and_ranks_by_hand() -> None:
    runs = by_hand()
    assert runs.runs == (("7", "1", "s"), ("7", "1", "t"), ("8", "1", "s"))
    assert runs.regret[:, :, 1].tolist() == [[0.5, 0.75], [0.0, 0.5], [0.75, 0.0]]
    assert runs.mean(runs.regret)[:, 1] == pytest.approx([1.25 / 3, 1.25 / 3])
    assert runs.mean(runs.regret, "search spaces")[:, 1] == pytest.approx([0.5, 0.3125])
    assert runs.ranks[:, :, 0].tolist() == [[1.5, 1.5], [1.5, 1.5], [2.0, 1.0]]
    assert runs.mean(runs.ranks)[:, 1] == pytest.approx([4 / 3, 5 / 3])
    spread = np.sqrt(np.mean(np.square([0.5 - 1.25 / 3, 1.25 / 3, 0.75 - 1.25 / 3])))
    assert runs.band(runs.regret)[0, 1] == pytest.approx(0.98 * spread / np.sqrt(3))
    near = {"a": {"7": {"1": {"s": [0.1, 0.2]}}}, "b": {"7": {"1": {"s": [0.1, 0.2 + 1e-9]}}}}
    assert align_runs(near, 1).ranks.tolist() == [[[1.5, 1.5], [1.5, 1.5]]]


def test_results_that_do_not_fit_are_refused() -> None:
    one = {"7": {"1": {"s": [0.5, 0.5]}}}
    for results, words in (
        ({"a": {}}, "at least one run"),
        ({"a": one, "b": {"7": {}}}, "b has none of search space 7, data set 1, seed s"),
        ({"a": {"7": {"1": {"s": [0.5]}}}}, "`n_trials` must be less than the 1 values that a has"),
        ({"a": {"7": {"1": {"s": [float("nan"), 1.0]}}}}, "finite"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            align_runs(results, 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="`trial` must be at most 1"):
        by_hand().critical_difference(2)
    with pytest.raises(InvalidArgumentError, match="row for each of 3 runs, got 2"):
        by_hand().mean(np.zeros((2, 1)))
