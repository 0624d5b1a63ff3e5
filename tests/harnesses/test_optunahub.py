"""A benchmark of OptunaHub."""

from __future__ import annotations

import pytest

pytest.importorskip("optunahub", reason="run `pip install '.[optunahub]'`")

import optuna

from fedhpo_gym.harnesses.optunahub import Problem
from known_optimum import BEST, CONDITIONAL, CREDIT, OPTIMUM


def test_a_study_under_the_base_problem_finds_the_optimum() -> None:
    problem = Problem(CREDIT)
    study = optuna.create_study(
        directions=problem.directions, sampler=optuna.samplers.RandomSampler(seed=0)
    )
    study.enqueue_trial(BEST)
    study.optimize(problem, n_trials=10)
    assert study.best_value == problem.evaluate(BEST) == OPTIMUM
    for name, distribution in study.trials[3].distributions.items():
        assert problem.search_space[name] == distribution


def test_vectors_constraints_and_conditions() -> None:
    problem = Problem(f"MO-{CREDIT}", constraints={"fairness_p10": 0.9})
    assert [one.name for one in problem.directions] == ["MINIMIZE", "MAXIMIZE", "MINIMIZE"]
    loss, fairness, _ = problem.evaluate(BEST)
    assert loss == OPTIMUM
    assert problem.evaluate_constraints(BEST) == {"fairness_p10": 0.9 - fairness}
    other = problem.evaluate_constraints({**BEST, "batch_size": 256})["fairness_p10"]
    assert other == 0.9 - problem.evaluate({**BEST, "batch_size": 256})[1] != 0.9 - fairness
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    conditional = Problem(CONDITIONAL, options={"instance": 1})
    study.optimize(conditional, n_trials=20)
    assert len({frozenset(trial.params) for trial in study.trials}) > 1
