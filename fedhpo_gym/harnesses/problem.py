"""A trial environment as a function of a configuration and a fidelity, for whoever has the loop."""

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
    """What an evaluation brought.

    Attributes:
        values: what is rewarded, by name and in its unit; losses are cut off at 10 nats.
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

        Such a trial has failed. What has a state for that (Optuna, CARP-S) sets it; what takes
        numbers only gets `values`, which hold the worst of each objective.
        """
        return bool(self.info["diverged"])


class Problem:
    """A trial environment without its loop: what it answers does not depend on what was asked.

    Every evaluation is the first trial of an episode, so budgets end nothing, and nothing is paid
    before. The answers are those of `info["objectives"]`, with losses cut off where rewards cut
    them off. No answer is worse than that of a diverged trial, and none is infinite or NaN.

    Attributes:
        id: of the environment.
        space: what is tuned. On a table all dimensions are grids.
        fidelities: what else an evaluation is asked with; `full` is the highest of each.
        objectives: all that an `MO-` id rewards, else the first.
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
            clip: cut losses off at 10 nats; False gives those of `info["objectives"]`, which are
                3.4e38 where training diverged and spoil most models of an optimizer.
            options: of every `reset`; `{"instance": 3}` chooses one of `instances`, which else are
                drawn anew for each evaluation.
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
        found = read_problem(env, seed=0)
        self.fidelities = found.fidelities
        kept = (d for d in found.search_space.dimensions if d.name not in self.fidelities)
        self.space = SearchSpace(tuple(kept))
        self.full: dict[str, Value] = {d.name: d.high for d in self.fidelities.dimensions}
        known: tuple[Objective, ...] = env.get_wrapper_attr("objectives")
        self.objectives = known[:1] if found.objectives == SCALAR else known
        given = env.get_wrapper_attr("constraints") if env.has_wrapper_attr("constraints") else None
        limits = read_constraints(known, given)
        self._limits = [(known[place], limit) for place, (limit, _) in limits.items()]

    @property
    def limited(self) -> tuple[str, ...]:
        """Names of the objectives with a limit."""
        return tuple(one.name for one, _ in self._limits)

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
            configuration: a value of each dimension of `space`; what is not active may be there.
            fidelity: of `fidelities`; what is left out is at its highest.
            seed: answer for this repetition; None for the mean over all.
            noise_seed: of the draws of `noise` and of `instances`; None goes on with the last.

        Raises:
            InvalidArgumentError: a name is missing or unknown, a value is out of range, or the
                configuration holds a fidelity.
            UnknownNameError: `fidelity` names something else.
            OffGridError: a value is not on the grid of a table.
        """
        env = self._environment(seed)
        env.reset(seed=noise_seed, options=None if self._options is None else {**self._options})
        asked = coerce("configuration", configuration, Mapping[str, Any])
        given = coerce("fidelity", fidelity or {}, Mapping[str, Any])
        if self.full.keys() & asked:
            raise InvalidArgumentError(
                f"`configuration` must leave {sorted(self.full)} to `fidelity`, got "
                f"{short_repr(asked)}"
            )
        for name in given:
            require_known("fidelity", name, self.full)
        info = env.step({**asked, **self.full, **given})[4]
        told: Mapping[str, float] = info["objectives"]
        losses = {one.name: self._loss(one, told[one.name]) for one in self.objectives}
        return Outcome(
            {one.name: _signed(one, losses[one.name]) for one in self.objectives},
            losses,
            {one.name: _signed(one, told[one.name] - at) for one, at in self._limits},
            float(info["cost"]["time_s"]),
            info,
        )

    def _loss(self, objective: Objective, value: float) -> float:
        """Return a value as a loss; costs and other bounded values are what they are."""
        if self._clip and objective.open_ended:
            return objective.with_transform("clip").error(value)
        return objective.unclipped_error(value)

    def describe(self) -> dict[str, Any]:
        """Return what `reset` says: where numbers come from."""
        return dict(self._environment(None).get_wrapper_attr("describe")())

    def with_objectives(self, names: Sequence[str]) -> "Problem":
        """Return the same problem with other objectives, which no limits bind."""
        unbound = {"constraints": None} if self._limits else {}
        arguments = {**self._arguments, "objectives": list(names), **unbound}
        return Problem(self.id, clip=self._clip, options=self._options, **arguments)

    def _environment(self, seed: int | None) -> gym.Env[Any, Any]:
        """Return the environment that answers for one repetition, or for the mean."""
        if seed not in self._opened:
            own = {} if seed is None else {"seed": seed}
            env = gym.make(self.id, disable_env_checker=True, **{**self._arguments, **own})
            found = read_problem(env, seed=0)
            if found.process != "trial" or not isinstance(env.action_space, gym.spaces.Box):
                raise InvalidArgumentError(
                    "`env_id` must be one whose steps are trials of any configuration, got "
                    f"{self.id!r}; leave out DAC, and make FedHPO-B with continuous=True"
                )
            self._opened[seed] = NamedAction(env)
            self._opened[seed].reset(seed=0, options=self._options and {**self._options})
        return self._opened[seed]

    def close(self) -> None:
        """Close what was opened."""
        for env in self._opened.values():
            env.close()
        self._opened.clear()


def _signed(objective: Objective, value: float) -> float:
    """Return a value as a loss, or a loss as the value."""
    return value if objective.minimize else -value
