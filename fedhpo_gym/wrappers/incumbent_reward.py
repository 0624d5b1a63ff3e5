"""A reward whose return is how good the best trial of an episode is."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import as_number, as_typed, shown
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.wrappers.checks import check_env

KINDS: Final = ("improvement", "anytime", "incumbent", "regret")
SHORTEST: Final = 1e-6
"""The shortest trial, in units of the budget, that a reward per cost is divided by."""

Floats = NDArray[np.float64]


class IncumbentReward(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Rewards the incumbent: the best trial of an episode so far.

    The incumbent is that of the environment: the best trial that keeps all constraints. What it
    lacks to the best value there can be is d, the error of the first objective without the clip. It
    is worth

        phi = c / (c + d), or -v / (1 + v) while no trial is feasible and its total violation is v,

    where c, `error_scale`, is the error of a guess: the loss of a prediction that knows nothing, or
    half of the worst error. So phi of feasible trials lies in [0, 1], falls strictly, and is
    comparable across problems: 1 is the best value, 1/2 a guess, and 0 a diverged trial. The lower
    the error, the more it is worth to lower it further. This is a saturation of half-value c, as
    that of Michaelis and Menten (1913). A clip would make all trials beyond it equal, and a
    logarithm has no bound. Let phi_t be that of the incumbent after t trials, and phi_0 = 0. Then
    the reward is

    ==============  ======================================  ======================================
    kind            reward                                  return of an episode of T trials
    ==============  ======================================  ======================================
    "improvement"   gamma phi_t - phi_(t-1)                 phi_T, where gamma = 1
    "anytime"       (phi_t - phi_(t-1)) (1 - s_t / B)       the mean of phi over the budget's time
    "incumbent"     phi_t                                   the longer the episode, the higher
    "regret"        -(phi* - phi_t), phi* at the optimum    the longer the episode, the lower
    ==============  ======================================  ======================================

    Here s_t are the simulated seconds since the reset when trial t ends, and B is the budget in
    seconds: what is found earlier serves longer. A trial that ends after the budget is worth
    nothing. The return is the area under the curve of the incumbent over time, divided by B.

    The improvement is a difference of potentials (Ng, Harada and Russell, 1999, Equation 2). With
    discount gamma, the discounted return is gamma^T phi_T: it is worth less to be late. `per_cost`
    divides an improvement by the simulated seconds of its trial, in units of the budget, so that a
    return is a rate of progress and no longer how good the outcome is.

    Attributes:
        kind: one of `KINDS`.
        optimum: phi of the best trial that an action can ask for; 1 unless `kind` is "regret".
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        kind: str = "improvement",
        discount: float = 1.0,
        per_cost: bool = False,
        budget_s: float | None = None,
    ) -> None:
        """Reward the incumbent instead of the trial.

        Args:
            env: a trial environment in `ScalarizePenalty`.
            kind: "improvement", "incumbent" or "regret".
            discount: gamma of "improvement", in (0, 1].
            per_cost: divide an improvement by the cost of its trial.
            budget_s: simulated seconds that time is measured in; by default the task's budget.

        Raises:
            UnknownNameError: there is no such kind.
            InvalidArgumentError: an argument is out of its range, `env` is of another kind, or
                "regret" is asked for where the optimum is not known.
        """
        check_reward(kind, discount, per_cost)
        check_env(env, "objectives", "error_scale", "task", "penalty", "all_trials")
        gym.utils.RecordConstructorArgs.__init__(
            self, kind=kind, discount=discount, per_cost=per_cost, budget_s=budget_s
        )
        gym.Wrapper.__init__(self, env)
        self.kind = kind
        self._discount, self._per_cost = float(discount), per_cost
        self._scale = float(self.get_wrapper_attr("error_scale"))
        task_budget_s = self.get_wrapper_attr("task").budget_s
        self._budget_s = _checked_budget(task_budget_s if budget_s is None else budget_s)
        self._best = np.zeros(1)
        self.optimum = self.find_optimum(self.get_wrapper_attr("all_trials"))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset; a backend exchanged outside this wrapper may have brought another optimum."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._best = np.zeros(1)
        vars(self).pop("_objective", None)
        self.optimum = self.find_optimum(self.get_wrapper_attr("all_trials"))
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; `info["score"]` says what the trial itself is worth."""
        observation, _, terminated, truncated, info = self.env.step(action)
        found, before = info["incumbent"], self._best
        violation = np.array([found.get("violation", 0.0)])
        self._best = self.potential(np.array([found[self._objective.name]]), violation)
        times_s, elapsed_s = info["cost"]["time_s"], info["elapsed_s"]
        reward = self.rewards(before, self._best, times_s, elapsed_s, self.optimum)
        return observation, float(reward[0]), terminated, truncated, info

    @functools.cached_property
    def _objective(self) -> Any:
        return self.get_wrapper_attr("objectives")[0]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the objective: it holds functions, which cannot be pickled."""
        return {name: value for name, value in vars(self).items() if name != "_objective"}

    def potential(self, values: Floats, violations: Floats) -> Floats:
        """Return the (N,) phi of trials.

        Args:
            values: (N,) values of the first objective.
            violations: (N,) total violations of constraints.
        """
        feasible = self._scale / (self._scale + self._objective.lacks(values))
        # 1 - 1 / (1 + v) is 1 where v is infinite.
        return np.where(violations > 0, 1.0 / (1.0 + violations) - 1.0, feasible)

    def rewards(
        self,
        before: Floats,
        after: Floats,
        times_s: float | Floats,
        elapsed_s: float | Floats,
        optimum: float | Floats,
    ) -> Floats:
        """Return the (N,) rewards of one trial each.

        Args:
            before: (N,) phi of the incumbents before it.
            after: (N,) phi of the incumbents after it.
            times_s: (N,) simulated seconds of the trials, or those of all.
            elapsed_s: (N,) simulated seconds since the reset, these trials included, or those of
                all.
            optimum: phi of the best trial that can be asked for; only "regret" looks at it.
        """
        if self.kind == "incumbent":
            return after.copy()
        if self.kind == "regret":
            return after - optimum
        if self.kind == "anytime":
            return (after - before) * np.maximum(1.0 - elapsed_s / self._budget_s, 0.0)
        gained = self._discount * after - before
        if not self._per_cost:
            return gained
        found: Floats = gained / np.maximum(times_s / self._budget_s, SHORTEST)
        return found

    def find_optimum(self, all_trials: Callable[[], tuple[Floats, Floats]]) -> float:
        """Return the phi of the best trial there is; 1 unless `kind` is "regret".

        Args:
            all_trials: returns (B,) values of the first objective and (B,) total violations.

        Raises:
            InvalidArgumentError: nothing stores them.
        """
        if self.kind != "regret":
            return 1.0
        return float(self.potential(*all_trials()).max())


def check_reward(kind: str, discount: float = 1.0, per_cost: bool = False) -> None:
    """Refuse what no `IncumbentReward` can be.

    Raises:
        UnknownNameError: there is no such kind.
        InvalidArgumentError: the discount is out of its range, or an option is given with a kind
            that has none.
    """
    require_known("reward", as_typed("reward", kind, str), KINDS)
    as_typed("reward_per_cost", per_cost, bool)
    number = as_number(discount)
    if number is None or not 0 < number <= 1:
        raise InvalidArgumentError(f"`reward_discount` must be in (0, 1], got {shown(discount)}")
    if kind != "improvement" and (per_cost or number != 1):
        raise InvalidArgumentError(
            "`reward_discount` and `reward_per_cost` change reward='improvement' only, "
            f"got reward={kind!r}; leave them out"
        )


def _checked_budget(budget_s: float) -> float:
    number = as_number(budget_s)
    if number is None or not 0 < number < math.inf:
        raise InvalidArgumentError(f"`budget_s` must be positive and finite, got {shown(budget_s)}")
    return float(number)
