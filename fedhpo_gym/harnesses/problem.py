"""A trial environment as a function of a configuration and a fidelity.

The other harnesses and users who bring a loop of their own call `Problem.evaluate`. Every
evaluation is the first trial of an episode, so budgets and earlier trials have no effect. Values
are in the units of their objectives; losses are the same values signed so that lower is better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from fedhpo_gym.agents.base import SCALAR, read_problem
from fedhpo_gym.core.checks import coerce, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.evaluation.multi_objective import read_constraints
from fedhpo_gym.objectives import Objective
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.wrappers import NamedAction


@dataclass(frozen=True)
class Outcome:
    """The result of an evaluation.

    Attributes:
        values: the objectives by name, in their units; losses are clipped at 10 nats.
        losses: the same, signed so that lower is better.
        excess: how far each constrained objective is beyond its limit; 0 or less is feasible.
        time_s: simulated seconds.
        info: of the step.
    """

    values: Mapping[str, float]
    losses: Mapping[str, float]
    excess: Mapping[str, float]
    time_s: float
    info: Mapping[str, Any]

    @property
    def diverged(self) -> bool:
        """Whether training diverged.

        Such a trial has failed. Libraries with a state for that (Optuna, CARP-S) set it; others
        get `values`, which hold the worst of each objective.
        """
        return bool(self.info["diverged"])


class Problem:
    """A trial environment without its loop: results do not depend on earlier evaluations.

    Every evaluation is the first trial of an episode, so no budget ends and no cost accumulates.
    Values are those of `info["objectives"]`, with losses clipped where rewards clip them. No value
    is worse than that of a diverged trial, and none is infinite or NaN.

    Attributes:
        id: of the environment.
        space: search space of a configuration. On a table all dimensions are grids.
        fidelities: search space of a fidelity; `full` is the highest of each.
        objectives: all objectives of an `MO-` id, else the first.
    """

    def __init__(
        self,
        env_id: str,
        *,
        clip: bool = True,
        options: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        """Make the environment.

        Args:
            env_id: an id of trials.
            clip: clip losses at 10 nats; False returns those of `info["objectives"]`, which are
                3.4e38 where training diverged and unsuitable for most models of an optimizer.
            options: of every `reset`; `{"instance": 3}` chooses one of `instances`, which are
                otherwise drawn anew for each evaluation.
            arguments: of `gymnasium.make`.

        Raises:
            InvalidArgumentError: a step of the environment is no trial, or an argument is wrong.
        """
        self.id = coerce("env_id", env_id, str)
        self._clip: bool = coerce("clip", clip, bool)
        self._options = coerce("options", options, Mapping[str, Any] | None)
        self._arguments = arguments
        self._opened: dict[int | None, gym.Env[Any, Any]] = {}
        env = self._environment(None)
        problem = read_problem(env, seed=0)
        self.fidelities = problem.fidelities
        dimensions = (d for d in problem.search_space.dimensions if d.name not in self.fidelities)
        self.space = SearchSpace(tuple(dimensions))
        self.full: dict[str, Value] = {d.name: d.high for d in self.fidelities.dimensions}
        all_objectives: tuple[Objective, ...] = env.get_wrapper_attr("objectives")
        self.objectives = all_objectives[:1] if problem.objectives == SCALAR else all_objectives
        constraints = (
            env.get_wrapper_attr("constraints") if env.has_wrapper_attr("constraints") else None
        )
        limits = read_constraints(all_objectives, constraints)
        self._limits = [(all_objectives[index], limit) for index, (limit, _) in limits.items()]

    @property
    def limited(self) -> tuple[str, ...]:
        """Names of the objectives with a limit."""
        return tuple(objective.name for objective, _ in self._limits)

    def evaluate(
        self,
        configuration: Mapping[str, Any],
        fidelity: Mapping[str, Any] | None = None,
        *,
        seed: int | None = None,
        noise_seed: int | None = None,
    ) -> Outcome:
        """Evaluate a configuration.

        Args:
            configuration: a value of each dimension of `space`; inactive ones may be included.
            fidelity: of `fidelities`; those left out are at their highest.
            seed: repetition to return; None for the mean over all.
            noise_seed: of the draws of `noise` and of `instances`; None continues the last stream.

        Raises:
            InvalidArgumentError: a name is missing or unknown, a value is out of range, or the
                configuration holds a fidelity.
            UnknownNameError: `fidelity` names something else.
            OffGridError: a value is not on the grid of a table.
        """
        env = self._environment(seed)
        env.reset(seed=noise_seed, options=None if self._options is None else {**self._options})
        values = coerce("configuration", configuration, Mapping[str, Any])
        fidelities = coerce("fidelity", fidelity or {}, Mapping[str, Any])
        if self.full.keys() & values:
            raise InvalidArgumentError(
                f"`configuration` must leave {sorted(self.full)} to `fidelity`, got "
                f"{short_repr(values)}"
            )
        for name in fidelities:
            require_known("fidelity", name, self.full)
        info = env.step({**values, **self.full, **fidelities})[4]
        reported: Mapping[str, float] = info["objectives"]
        losses = {
            objective.name: self._loss(objective, reported[objective.name])
            for objective in self.objectives
        }
        return Outcome(
            {
                objective.name: _flip_sign(objective, losses[objective.name])
                for objective in self.objectives
            },
            losses,
            {
                objective.name: _flip_sign(objective, reported[objective.name] - limit)
                for objective, limit in self._limits
            },
            float(info["cost"]["time_s"]),
            info,
        )

    def _loss(self, objective: Objective, value: float) -> float:
        """Return a value as a loss; costs and other bounded values are never clipped."""
        if self._clip and objective.open_ended:
            return objective.with_transform("clip").error(value)
        return objective.unclipped_error(value)

    def describe(self) -> dict[str, Any]:
        """Return the description of the environment, such as the source of its numbers."""
        return dict(self._environment(None).get_wrapper_attr("describe")())

    def with_objectives(self, names: Sequence[str]) -> "Problem":
        """Return the same problem with other objectives and without limits."""
        unbound = {"constraints": None} if self._limits else {}
        arguments = {**self._arguments, "objectives": list(names), **unbound}
        return Problem(self.id, clip=self._clip, options=self._options, **arguments)

    def _environment(self, seed: int | None) -> gym.Env[Any, Any]:
        """Return the environment of one repetition, or of the mean over all."""
        if seed not in self._opened:
            seed_argument = {} if seed is None else {"seed": seed}
            env = gym.make(
                self.id, disable_env_checker=True, **{**self._arguments, **seed_argument}
            )
            problem = read_problem(env, seed=0)
            if problem.process != "trial" or not isinstance(env.action_space, gym.spaces.Box):
                raise InvalidArgumentError(
                    "`env_id` must be one whose steps are trials of any configuration, got "
                    f"{self.id!r}; leave out DAC, and make FedHPO-B with continuous=True"
                )
            self._opened[seed] = NamedAction(env)
            self._opened[seed].reset(seed=0, options=self._options and {**self._options})
        return self._opened[seed]

    def close(self) -> None:
        """Close all environments."""
        for env in self._opened.values():
            env.close()
        self._opened.clear()


def _flip_sign(objective: Objective, value: float) -> float:
    """Return a value as a loss, or a loss as the value."""
    return value if objective.minimize else -value
