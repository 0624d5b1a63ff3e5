"""Objectives of Optuna."""

from __future__ import annotations

import math

import pytest

optuna = pytest.importorskip("optuna", reason="run `pip install '.[agents]'`")

from fedhpo_gym.core.errors import InvalidArgumentError, OffGridError  # noqa: E402
from fedhpo_gym.harnesses.optuna import objective  # noqa: E402
from known_optimum import BEST, CONDITIONAL, CREDIT, DIVERGING, OPTIMUM  # noqa: E402


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def test_a_study_finds_the_optimum_where_it_looks_there() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial(BEST)
    study.optimize(objective(CREDIT), n_trials=10)
    assert study.best_value == OPTIMUM
    assert study.best_params == BEST
    assert study.best_trial.user_attrs["time_s"] > 1000


def test_only_what_is_active_is_asked_for() -> None:
    function = objective(CONDITIONAL, options={"instance": 1})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(function, n_trials=30)
    assert len({frozenset(trial.params) for trial in study.trials}) > 1
    for trial in study.trials:
        assert trial.params.keys() == function.problem.space.validate(trial.params).keys()
        assert math.isfinite(trial.value)


def test_vectors_have_directions_and_constraints_are_set() -> None:
    function = objective(f"MO-{CREDIT}", constraints={"fairness_p10": 0.5})
    assert function.directions == ["minimize", "maximize", "minimize"]
    study = optuna.create_study(
        directions=function.directions, sampler=optuna.samplers.NSGAIISampler(seed=0)
    )
    study.optimize(function, n_trials=40)
    for trial in study.trials:
        assert trial.constraints == {"fairness_p10": 0.5 - trial.values[1]}
    fair = [trial for trial in study.trials if trial.values[1] >= 0.5]
    assert 0 < len(fair) < 40
    assert {trial.number for trial in study.best_trials} <= {trial.number for trial in fair}
    with pytest.raises(InvalidArgumentError, match="rounds"):
        objective(f"MO-{CREDIT}", rounds=[9])


@pytest.mark.parametrize(("prefix", "rounds"), [("", []), ("", [4, 27]), ("MO-", [])])
def test_a_trial_that_diverges_fails_and_the_study_goes_on(prefix: str, rounds: list[int]) -> None:
    function = objective(f"{prefix}{CREDIT}", rounds=rounds)
    study = optuna.create_study(directions=function.directions)
    for configuration in (DIVERGING, BEST):
        study.enqueue_trial(configuration)
    study.optimize(function, n_trials=2)
    failed, best = study.trials
    assert (failed.state.name, best.state.name) == ("FAIL", "COMPLETE")
    assert failed.user_attrs["time_s"] > 0
    assert best.values[0] == OPTIMUM


def test_rounds_are_reported_and_a_pruner_stops_there() -> None:
    pruner = optuna.pruners.ThresholdPruner(upper=0.6)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), pruner=pruner)
    study.enqueue_trial(BEST)
    study.optimize(objective(CREDIT, rounds=[4, 27]), n_trials=30)
    pruned = [trial for trial in study.trials if trial.state.name == "PRUNED"]
    assert study.trials[0].value == OPTIMUM
    assert [*study.trials[0].intermediate_values] == [4, 27]
    assert pruned
    assert all(max(trial.intermediate_values.values()) > 0.6 for trial in pruned)
    with pytest.raises(OffGridError):
        objective(CREDIT, rounds=[5])


@pytest.mark.parametrize("rounds", [[81, 9], [9, 9]])
def test_rounds_must_rise(rounds: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"`rounds` must be given lowest first"):
        objective(CREDIT, rounds=rounds)
