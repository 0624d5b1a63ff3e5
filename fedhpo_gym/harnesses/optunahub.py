"""A problem as a benchmark of OptunaHub, with the interface of its `BaseProblem`."""

from __future__ import annotations

from typing import Any

from fedhpo_gym.core.errors import require_optional
from fedhpo_gym.harnesses import optuna as optuna_harness
from fedhpo_gym.harnesses.problem import Outcome
from fedhpo_gym.space import Dimension

with require_optional("a problem of OptunaHub", "optunahub", "optunahub", "optunahub", "optuna"):
    import optuna
    import optunahub


class Problem(optunahub.benchmarks.BaseProblem):  # type: ignore[misc]  # no types come with it
    """`study.optimize(Problem(id), n_trials=50)`, with the search space and the directions.

    Where a space has conditions, `search_space` holds all dimensions, and a call suggests only the
    active ones.
    """

    def __init__(self, env_id: str, **arguments: Any) -> None:
        """Make the environment; arguments are those of `fedhpo_gym.harnesses.optuna.objective`."""
        self._function = optuna_harness.objective(env_id, **arguments)
        self._last: tuple[dict[str, Any], Outcome] | None = None

    def __call__(self, trial: optuna.trial.Trial) -> float | tuple[float, ...]:
        return self._function(trial)

    @property
    def search_space(self) -> dict[str, optuna.distributions.BaseDistribution]:
        return {
            dimension.name: _distribution(dimension)
            for dimension in self._function.problem.space.dimensions
        }

    @property
    def directions(self) -> list[optuna.study.StudyDirection]:
        return [
            optuna.study.StudyDirection[direction.upper()]
            for direction in self._function.directions
        ]

    def evaluate(self, params: dict[str, Any]) -> float | tuple[float, ...]:
        values = tuple(self._evaluate_once(params).values.values())
        return values if len(values) > 1 else values[0]

    def evaluate_constraints(self, params: dict[str, Any]) -> dict[str, float]:
        return dict(self._evaluate_once(params).excess)

    def _evaluate_once(self, params: dict[str, Any]) -> Outcome:
        """Return the outcome of some parameters, computed once for values and constraints."""
        if self._last is None or self._last[0] != params:
            self._last = dict(params), self._function.problem.evaluate(params)
        return self._last[1]


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    """Return the distribution of a dimension."""
    distributions = optuna.distributions
    if dimension.values is not None:
        return distributions.CategoricalDistribution(dimension.values)
    if dimension.kind == "int":
        return distributions.IntDistribution(int(dimension.low), int(dimension.high), dimension.log)
    return distributions.FloatDistribution(dimension.low, dimension.high, dimension.log)
