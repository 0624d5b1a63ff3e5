"""The laws of an objective."""
# ruff: noqa: S101 - asserting is what a law does

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedhpo_gym.evaluation.records import Evaluation, Evaluations, Fidelity
from fedhpo_gym.objectives import (
    COST_NAMES,
    NO_PRIVACY,
    Objective,
    PrivacyLedger,
    Spending,
    get_objective,
)
from fedhpo_gym.testing.rollout import plain

SPENT = (
    Spending(NO_PRIVACY, lambda: dict.fromkeys(COST_NAMES, 3.0)),
    Spending(PrivacyLedger(1.5, 1e-5, (0.1, 0.4, 1.6)), lambda: dict.fromkeys(COST_NAMES, 70.0)),
)
NUM_CLIENTS = 5


class ObjectiveConformance:
    """Laws of a registered objective.

    Attributes:
        name: key in `OBJECTIVES`.
    """

    name: ClassVar[str]

    @property
    def objective(self) -> Objective:
        """The objective in the registry."""
        return get_objective(self.name)

    def test_it_is_registered_under_its_own_name(self) -> None:
        assert self.objective.name == self.name
        assert self.objective.unit

    def test_values_of_ordinary_models_are_within_its_bounds(self) -> None:
        low, high = self.objective.bounds
        for value in self._values():
            assert type(value) is float
            assert low <= value <= high

    def test_it_is_a_pure_function(self) -> None:
        for seed in range(3):
            evaluation = some_evaluation(seed)
            before = plain([evaluation.best, evaluation.current, evaluation.num_samples])
            first = self._value(evaluation, SPENT[0])
            assert self._value(evaluation, SPENT[0]) == first
            assert plain([evaluation.best, evaluation.current, evaluation.num_samples]) == before

    def test_the_order_of_clients_does_not_matter(self) -> None:
        evaluation = some_evaluation(0)
        order = np.random.default_rng(1).permutation(NUM_CLIENTS)
        current = evaluation.current
        other = replace(
            evaluation,
            best=evaluation.best[:, order],
            current=None if current is None else current[:, order],
            num_samples=evaluation.num_samples[:, order],
        )
        values = [self._value(e, SPENT[0]) for e in (evaluation, other)]
        assert math.isclose(*values, rel_tol=1e-12)

    def test_many_at_once_are_bit_for_bit_each_alone(self) -> None:
        samples = some_evaluation(0).num_samples
        samples[:, 1] = samples[0, 3] = 0  # clients without data
        alone = [replace(some_evaluation(seed), num_samples=samples) for seed in range(9)]
        for failed in (2, 5):
            alone[failed] = diverged(alone[failed])
        together = Evaluations.stack(alone)
        for spent in SPENT:
            values = self.objective.compute(together, spent)
            assert values.dtype == np.float64
            assert values.tolist() == [self._value(one, spent) for one in alone]

    def test_a_course_that_diverged_is_worst_or_does_not_matter(self) -> None:
        for spent in SPENT:
            ordinary = [self._value(some_evaluation(s), spent) for s in range(5)]
            failed = [self._value(diverged(some_evaluation(s)), spent) for s in range(5)]
            if not self._reads_the_model(spent):  # what was spent was spent
                assert failed == ordinary
                continue
            assert set(failed) == {self.objective.worst}
            assert all(
                self.objective.unclipped_error(failed[0]) > self.objective.unclipped_error(value)
                for value in ordinary
            )

    def test_it_says_something(self) -> None:
        assert len(set(self._values())) > 1, "the same value for every model and all that is spent"

    def _reads_the_model(self, spent: Spending) -> bool:
        evaluation, other = some_evaluation(0), some_evaluation(1)
        swapped = replace(evaluation, best=other.best)
        return self._value(evaluation, spent) != self._value(swapped, spent)

    def _value(self, evaluation: Evaluation, spent: Spending) -> float:
        [value] = self.objective.compute(Evaluations.stack([evaluation]), spent).tolist()
        return float(value)

    def _values(self) -> list[float]:
        evaluations = [some_evaluation(seed) for seed in range(5)]
        return [self._value(e, spent) for e in evaluations for spent in SPENT]


def diverged(evaluation: Evaluation) -> Evaluation:
    """Return an evaluation whose training diverged under its last seed."""
    last = np.arange(len(evaluation.seeds)) == len(evaluation.seeds) - 1
    return replace(evaluation, diverged=last)


def some_evaluation(seed: int) -> Evaluation:
    """Return a random evaluation of two seeds and five clients; losses are below 3 nats."""
    rng = np.random.default_rng(seed)
    shape = (2, NUM_CLIENTS, 3, 3)
    best = rng.uniform(0.0, 1.0, shape)
    best[..., 0] *= 3.0
    return Evaluation(
        best=best,
        current=rng.permutation(best, axis=1),
        num_samples=rng.integers(10, 200, shape[:3]),
        best_round=np.array([3, 9]),
        diverged=np.zeros(2, dtype=bool),
        seeds=(1, 2),
        fidelity=Fidelity(9, 1.0),
    )
