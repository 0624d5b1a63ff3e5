"""HPOBench's calls; its own code checks them where `HPOBENCH` names its source tree."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ConfigSpace", reason="run `pip install '.[agents]'`")

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.harnesses.hpobench import Benchmark
from known_optimum import BEST, CONDITIONAL, CREDIT, DIVERGING, OPTIMUM

TREE = os.environ.get("HPOBENCH", "")


@pytest.mark.slow
def test_the_optimum_comes_out_and_fidelities_are_at_their_highest() -> None:
    benchmark = Benchmark(CREDIT, rng=1, constraints={"fairness_std": 0.1})
    found = benchmark.objective_function(BEST)
    assert found["function_value"] == benchmark(BEST) == OPTIMUM
    assert found["cost"] == found["info"]["cost"]["time_s"] > 1000
    highest = dict(benchmark.get_fidelity_space().get_default_configuration())
    assert benchmark.objective_function(BEST, highest) == found
    assert benchmark.objective_function(BEST, {"round": 27})["cost"] < found["cost"] / 10
    assert (
        benchmark.objective_function_test(BEST)["function_value"] == found["info"]["test"]["loss"]
    )


@pytest.mark.slow
def test_spaces_are_drawn_from_a_seed_and_what_they_draw_is_answered() -> None:
    for env_id, more in ((CREDIT, {}), (CONDITIONAL, {"options": {"instance": 1}})):
        benchmark = Benchmark(env_id, rng=np.random.RandomState(3), **more)
        drawn = [list(benchmark.get_configuration_space(5).sample_configuration(20)) for _ in "ab"]
        assert drawn[0] == drawn[1]
        for configuration in drawn[0]:
            fidelity = benchmark.fidelity_space.sample_configuration()
            found = benchmark.objective_function(configuration, fidelity, rng=2)
            assert found == benchmark.objective_function(dict(configuration), fidelity, rng=2)
            assert np.isfinite(found["function_value"])


@pytest.mark.parametrize("rng", ["x", -1, 1 << 40, np.random.default_rng(0)])
def test_what_is_no_seed_is_refused(rng: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="`rng` must be a whole number from 0"):
        Benchmark(CREDIT, rng=rng)


def test_a_trial_that_diverged_has_the_worst_value_and_says_so() -> None:
    benchmark = Benchmark(CREDIT)
    for configuration, value in ((DIVERGING, 10.0), (BEST, OPTIMUM)):
        found = benchmark.objective_function(configuration)
        assert (found["function_value"], found["info"]["diverged"]) == (value, value == 10.0)


def test_vectors_are_dictionaries_of_what_is_minimized() -> None:
    benchmark = Benchmark(f"MO-{CREDIT}", objectives=["val_loss", "val_f1"])
    found = benchmark.objective_function(BEST)
    f1 = found["info"]["objectives"]["val_f1"]
    assert found["function_value"] == {"val_loss": OPTIMUM, "val_f1": -f1}
    benchmark = Benchmark(CREDIT, objectives=["time_s"])
    with pytest.raises(InvalidArgumentError, match="time_s"):
        benchmark.objective_function_test(BEST)


@pytest.mark.skipif(not TREE, reason="set HPOBENCH to a checkout of github.com/automl/HPOBench")
@pytest.mark.filterwarnings("ignore")
def test_it_runs_as_a_benchmark_of_hpobench(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under its abstract class, whose constructor and check of parameters call ours."""
    monkeypatch.syspath_prepend(TREE)
    from hpobench.abstract_benchmark import AbstractBenchmark

    class Theirs(AbstractBenchmark):
        own = Benchmark(CREDIT)
        get_configuration_space = staticmethod(own.get_configuration_space)
        get_fidelity_space = staticmethod(own.get_fidelity_space)
        get_meta_information = staticmethod(own.get_meta_information)

        @AbstractBenchmark.check_parameters
        def objective_function(self, configuration, fidelity=None, rng=None, **more):  # noqa: ANN001, ANN003, ANN202
            return self.own.objective_function(configuration, fidelity, rng, **more)

        def objective_function_test(self, configuration, fidelity=None, rng=None, **more):  # noqa: ANN001, ANN003, ANN202
            return self.own.objective_function_test(configuration, fidelity, rng, **more)

    theirs = Theirs(rng=1)
    assert theirs(BEST) == OPTIMUM
    assert theirs.configuration_space == theirs.own.configuration_space
    assert theirs.get_meta_information()["name"] == CREDIT
    assert "hpobench" in sys.modules


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("FedHPO-B-LR-v1", {"continuous": True}),
        ("FedHPO-Generated-LR-v1", {"choose_fidelity": True}),
    ],
)
def test_ids_of_many_tasks_have_a_test_loss(env_id: str, arguments: dict[str, Any]) -> None:
    benchmark = Benchmark(env_id, options={"instance": 3}, **arguments)
    configuration = benchmark.get_configuration_space(seed=0).sample_configuration()
    found = benchmark.objective_function_test(configuration)["function_value"]
    assert found == benchmark.objective_function(configuration)["info"]["test"]["loss"]
