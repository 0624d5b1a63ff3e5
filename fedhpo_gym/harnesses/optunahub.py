"""A problem as a benchmark of OptunaHub: what `optunahub.benchmarks.BaseProblem` asks."""

from __future__ import annotations

from typing import Any

from fedhpo_gym.core.errors import require_optional
from fedhpo_gym.harnesses import optuna as own
from fedhpo_gym.harnesses.problem import Outcome
from fedhpo_gym.space import Dimension

with require_optional("a problem of OptunaHub", "optunahub", "optunahub", "optunahub", "optuna"):
    import optuna
    import optunahub


class Problem(optunahub.benchmarks.BaseProblem):  # type: ignore[misc]  # no types come with it
    """`study.optimize(Problem(id), n_trials=50)`, with the search space and the directions.

    Where a space has conditions, `search_space` holds what may be active, and a call asks a trial
    for what is.
    """

    def __init__(self, env_id: str, **arguments: Any) -> None:
        """Make the environment; arguments are those of `fedhpo_gym.harnesses.optuna.objective`."""
        self._function = own.objective(env_id, **arguments)
        self._last: tuple[dict[str, Any], Outcome] | None = None

    def __call__(self, trial: optuna.trial.Trial) -> float | tuple[float, ...]:
        return self._function(trial)

    @property
    def search_space(self) -> dict[str, optuna.distributions.BaseDistribution]:
        return {one.name: _distribution(one) for one in self._function.problem.space.dimensions}

    @property
    def directions(self) -> list[optuna.study.StudyDirection]:
        return [optuna.study.StudyDirection[way.upper()] for way in self._function.directions]

    def evaluate(self, params: dict[str, Any]) -> float | tuple[float, ...]:
        values = tuple(self._found(params).values.values())
        return values if len(values) > 1 else values[0]

    def evaluate_constraints(self, params: dict[str, Any]) -> dict[str, float]:
        return dict(self._found(params).excess)

    def _found(self, params: dict[str, Any]) -> Outcome:
        """Return what came of the parameters, which are asked about twice."""
        if self._last is None or self._last[0] != params:
            self._last = dict(params), self._function.problem.evaluate(params)
        return self._last[1]


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    """Return what Optuna draws a dimension from."""
    distributions = optuna.distributions
    if dimension.values is not None:
        return distributions.CategoricalDistribution(dimension.values)
    if dimension.kind == "int":
        return distributions.IntDistribution(int(dimension.low), int(dimension.high), dimension.log)
    return distributions.FloatDistribution(dimension.low, dimension.high, dimension.log)
