"""A problem as an objective of Optuna: `study.optimize(objective(id), n_trials=50)`."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_optional
from fedhpo_gym.harnesses.problem import Outcome, Problem
from fedhpo_gym.space import Dimension, Value

if TYPE_CHECKING:
    import optuna


class TrialFunction:
    """The objective of a study. Values are in natural units; `directions` names the better ones.

    Trials that diverge fail, at the first of the rounds where they have; the study goes on.

    Attributes:
        problem: the environment as a function.
        directions: for `optuna.create_study(directions=...)`, where there are many objectives or
            higher is better.
    """

    def __init__(self, problem: Problem, rounds: Sequence[int] = ()) -> None:
        self.problem, self._rounds = problem, tuple(rounds)
        if self._rounds and len(problem.objectives) > 1:
            raise InvalidArgumentError(
                "`rounds` must be empty where rewards are vectors, as Optuna prunes by one value, "
                f"got {rounds!r} for {problem.id}"
            )
        for rung in self._rounds:
            problem.fidelities["round"].validate(rung, "rounds")
        if any(first >= second for first, second in pairwise(self._rounds)):
            raise InvalidArgumentError(
                f"`rounds` must be given lowest first, each once, got {rounds!r}"
            )
        directions = [
            "minimize" if objective.minimize else "maximize" for objective in problem.objectives
        ]
        self.directions: list[str] = directions

    def __call__(self, trial: "optuna.trial.Trial") -> float | tuple[float, ...]:
        import optuna

        configuration = self.suggest(trial)
        for rung in self._rounds:
            outcome = self.problem.evaluate(configuration, {"round": rung})
            if outcome.diverged:
                break
            (value,) = outcome.values.values()
            trial.report(value, rung)
            if trial.should_prune():
                raise optuna.TrialPruned
        else:
            outcome = self.problem.evaluate(configuration)
        self.note(trial, outcome)
        # Optuna marks a trial as failed if its objective returns NaN.
        values = tuple(math.nan if outcome.diverged else value for value in outcome.values.values())
        return values if len(values) > 1 else values[0]

    def suggest(self, trial: "optuna.trial.Trial") -> dict[str, Value]:
        """Return a configuration of the active dimensions."""
        configuration: dict[str, Value] = {}
        for dimension in self.problem.space.dimensions:
            if dimension.is_active(configuration):
                configuration[dimension.name] = _suggest_value(trial, dimension)
        return configuration

    def note(self, trial: "optuna.trial.Trial", outcome: Outcome) -> None:
        """Set constraints and simulated seconds on a trial."""
        for name, excess in outcome.excess.items():
            trial.set_constraint(name, excess)
        trial.set_user_attr("time_s", outcome.time_s)


@validate_call
def objective(env_id: str, *, rounds: Sequence[int] = (), **arguments: Any) -> TrialFunction:
    """Return an objective for `study.optimize`.

    Grids are categories. Constraints are set on the trials, which samplers of Optuna 5 read.

    Args:
        env_id: an id of trials.
        rounds: at which values are reported, lowest first, and a pruner may stop the trial.
        arguments: of `fedhpo_gym.harnesses.problem.Problem`.

    Raises:
        InvalidArgumentError: an argument is wrong.
        MissingDependencyError: Optuna is not installed.
    """
    with require_optional("an objective of Optuna", "optuna", "agents", "optuna"):
        import optuna  # noqa: F401 - said before the first trial
    return TrialFunction(Problem(env_id, **arguments), rounds)


def _suggest_value(trial: "optuna.trial.Trial", dimension: Dimension) -> Value:
    name, low, high, log = dimension.name, dimension.low, dimension.high, dimension.log
    if dimension.values is not None:
        category: Value = trial.suggest_categorical(name, dimension.values)  # type: ignore[assignment]
        return category
    if dimension.kind == "int":
        return trial.suggest_int(name, int(low), int(high), log=log)
    return trial.suggest_float(name, low, high, log=log)
