"""Rewards of one number: of a trial under soft constraints, and of the incumbent; its regret.

`ScalarizePenalty` subtracts a penalty for exceeded limits from the reward of each trial.
`IncumbentReward` rewards the best trial so far, or its improvement, by the rule `IncumbentValue`.
`RegretInfo` leaves rewards alone, and adds the regret of the incumbent to `info`. `check_reward`
refuses settings that do not fit together.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import gymnasium as gym
import numpy as np

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import Range, coerce, short_repr, to_json_data
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.evaluation.multi_objective import Constraints, read_constraints
from fedhpo_gym.wrappers.checks import check_env

LARGEST: Final = float(np.finfo(np.float32).max)
"""The largest penalty that a trial may have: a reward must be finite as float32, too."""


class Penalty:
    """The penalty of soft constraints: sum_j weight_j max(0, error_j - limit_j)."""

    def __init__(self, objectives: Sequence[Any], constraints: Constraints | None) -> None:
        self._limits: Floats = np.full(len(objectives), np.inf)
        self._weights: Floats = np.zeros(len(objectives))
        for index, (limit, weight) in read_constraints(objectives, constraints).items():
            # In the precision of scores, so that a value equal to the limit does not exceed it.
            with np.errstate(over="ignore"):
                self._limits[index] = np.float32(objectives[index].limit_error(limit))
            self._weights[index] = weight
        self._weighted = np.flatnonzero(self._weights).tolist()
        with np.errstate(over="ignore"):
            worst = self.of(np.array([objective.score_bounds[0] for objective in objectives]))
        if not worst <= LARGEST:
            raise InvalidArgumentError(
                "`constraints` must have limits and weights whose penalty is finite as float32 for "
                f"the worst trial, got {short_repr(constraints)}"
            )

    def of(self, scores: Floats) -> Floats:
        total = np.zeros(scores.shape[:-1])
        # Column by column: a matrix product may round differently for another number of rows.
        for column in self._weighted:
            excess = np.maximum(-scores[..., column] - self._limits[column], 0.0)
            total = total + self._weights[column] * excess
        return total


class ScalarizePenalty(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Reward = score of the first objective minus a penalty for each violated soft constraint.

    FedHPO-Bench (Section 3.2) turns the vector into a scalar by "treating privacy and
    fairness-related values as soft constraints to penalize". A constraint is a limit in the
    objective's own unit; the excess costs `weight` per unit:
    r = score_0 - sum_j weight_j max(0, error_j - limit_j). An objective without a limit is never
    violated. Where an objective has a transform, the limit stays in its own unit and the excess is
    of errors.

    A trial environment takes the same constraints for its incumbent, which is the best trial that
    keeps all limits. Weights do not change which trials keep them; they order those that do not.

    Attributes:
        vector_reward: False: this wrapper returns a number, the wrapped environment a vector.
        penalty: the penalty of violated constraints.
    """

    vector_reward = False

    def __init__(self, env: gym.Env[Any, Any], *, constraints: Constraints | None = None) -> None:
        """Make the reward one built-in float.

        Args:
            env: an environment whose reward is the vector of scores of
                `env.unwrapped.objectives`.
            constraints: by objective, a limit, or `{"limit": limit, "weight": weight}`; the
                weight is 1 if not given.

        Raises:
            UnknownNameError: a constraint names no objective of the environment.
            InvalidArgumentError: `constraints` is no mapping, a limit is not finite, a weight is
                outside [1e-6, 1e6] or so large that a penalty may not be finite, or `env` is of
                another kind.
        """
        objectives = check_env(env, "objectives").get_wrapper_attr("objectives")
        self.penalty = Penalty(objectives, constraints)
        gym.utils.RecordConstructorArgs.__init__(self, constraints=to_json_data(constraints))
        gym.Wrapper.__init__(self, env)
        if constraints and hasattr(env.unwrapped, "constrain"):
            env.unwrapped.constrain(constraints)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step with a scalar reward, `info["score"]`, already reduced by `info["penalty"]`."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        scores = np.asarray(reward, dtype=np.float64)
        penalty = float(self.penalty.of(scores))
        score = float(scores[0]) - penalty
        info = {**info, "score": score, "penalty": penalty}
        return observation, score, terminated, truncated, info


KINDS: Final = ("improvement", "anytime", "incumbent", "regret")
SHORTEST: Final = 1e-6
"""Shortest duration of a trial, in units of the budget, in the divisor of a reward per cost."""

BUDGET = Annotated[float, Range(0, math.inf, "()")]


class IncumbentValue:
    """The worth phi of incumbents, and what trials earn by it: the rule of `IncumbentReward`."""

    def __init__(
        self,
        problem: Any,
        kind: str = "improvement",
        discount: float = 1.0,
        per_cost: bool = False,
        budget_s: float | None = None,
    ) -> None:
        check_reward(kind, discount, per_cost)
        self.kind, self._discount, self._per_cost = kind, float(discount), per_cost
        self._problem, self._scale = problem, float(problem.error_scale)
        limit = problem.task.budget_s if budget_s is None else budget_s
        self._budget_s = float(coerce("budget_s", limit, BUDGET))

    @property
    def objective(self) -> Any:
        """The first objective; not stored, because its functions cannot be pickled."""
        return self._problem.objectives[0]

    def potential(self, values: Floats, violations: Floats) -> Floats:
        """Return the (N,) phi of trials with (N,) values and violations."""
        feasible = self._scale / (self._scale + self.objective.distance_to_best(values))
        # -v / (1 + v), also where v is infinite; 1 / (1 + v) - 1 would be 0 for a small v.
        with np.errstate(divide="ignore"):
            return np.where(violations > 0, -1.0 / (1.0 + 1.0 / violations), feasible)

    def rewards(
        self,
        before: Floats,
        after: Floats,
        times_s: float | Floats,
        elapsed_s: float | Floats,
        optimum: float | Floats,
    ) -> Floats:
        """Return the (N,) rewards of one trial each, from (N,) numbers."""
        if self.kind == "incumbent":
            return after.copy()
        if self.kind == "regret":
            return after - optimum
        if self.kind == "anytime":
            return (after - before) * np.maximum(1.0 - elapsed_s / self._budget_s, 0.0)
        improvement = self._discount * after - before
        if not self._per_cost:
            return improvement
        return improvement / np.maximum(times_s / self._budget_s, SHORTEST)

    def find_optimum(self, all_trials: Callable[[], tuple[Floats, Floats]]) -> float:
        """Return the phi of the best trial there is; 1 unless `kind` is "regret"."""
        if self.kind != "regret":
            return 1.0
        return float(self.potential(*all_trials()).max())


class IncumbentReward(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Rewards the incumbent: the best trial of an episode so far.

    The incumbent is that of the environment: the best trial that keeps all constraints, or the
    first one of the least total violation while none does. It is worth

        phi = c / (c + d) where it keeps them, and phi = -v / (1 + v) where it does not.

    Here d is the distance of its first objective from the best value that it can have, without the
    clip; c, `error_scale`, is the error of a guess: the loss of a prediction that knows nothing, or
    half of the worst error; and v = sum_j w_j x_j / (high_j - low_j) is the total violation: weight
    times excess over each limit, as a share of the range of its objective. An incumbent that breaks
    a limit is therefore worth less than any that keeps all, and the less the larger the weight.
    Otherwise phi lies in [0, 1], falls strictly with d, and is comparable across problems: 1 is the
    best value, 1/2 a guess, and 0 a diverged trial. The lower the error, the more it is worth to
    lower it further. This is a saturation of half-value c, as that of Michaelis and Menten (1913).
    A clip would make all trials beyond it equal, and a logarithm has no bound. Let phi_t be that of
    the incumbent after t trials, and phi_0 = 0. Then the reward is

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
        value: the rule.
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
            kind: "improvement", "anytime", "incumbent" or "regret".
            discount: gamma of "improvement", in (0, 1].
            per_cost: divide an improvement by the cost of its trial.
            budget_s: simulated seconds that time is measured in; by default the task's budget.

        Raises:
            UnknownNameError: there is no such kind.
            InvalidArgumentError: an argument is out of its range, `env` is of another kind, or
                "regret" is asked for where the optimum is not known.
        """
        check_env(env, "objectives", "error_scale", "task", "penalty", "all_trials")
        settings = {"kind": kind, "discount": discount, "per_cost": per_cost, "budget_s": budget_s}
        gym.utils.RecordConstructorArgs.__init__(self, **to_json_data(settings))
        gym.Wrapper.__init__(self, env)
        self.value = IncumbentValue(env.unwrapped, kind, discount, per_cost, budget_s)
        self._start()

    def _start(self) -> None:
        self.optimum = self.value.find_optimum(self.get_wrapper_attr("all_trials"))
        self._incumbent: tuple[float, float] | None = None
        self._potential = np.zeros(1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset; a backend exchanged outside this wrapper may have another optimum."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._start()
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; `info["score"]` is the score of the trial itself."""
        observation, _, terminated, truncated, info = self.env.step(action)
        best, before = info["incumbent"], self._potential
        incumbent = best[self.value.objective.name], best.get("violation", 0.0)
        if incumbent != self._incumbent:  # else it is worth what it was
            self._incumbent = incumbent
            self._potential = self.value.potential(*np.array(incumbent)[:, None])
        times_s, elapsed_s = info["cost"]["time_s"], info["elapsed_s"]
        reward = self.value.rewards(before, self._potential, times_s, elapsed_s, self.optimum)
        return observation, float(reward[0]), terminated, truncated, info


def check_reward(
    kind: str, discount: float = 1.0, per_cost: bool = False, known: Sequence[str] = KINDS
) -> None:
    """Refuse a kind, a discount or a division by cost that rewards do not have."""
    require_known("reward", coerce("reward", kind, str), known)
    coerce("reward_per_cost", per_cost, bool)
    gamma = coerce("reward_discount", discount, Annotated[float, Range(0, 1, "(]")])
    if kind != "improvement" and (per_cost or gamma != 1):
        raise InvalidArgumentError(
            "`reward_discount` and `reward_per_cost` change reward='improvement' only, "
            f"got reward={kind!r}; leave them out"
        )


class RegretInfo(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Adds the incumbent's regret to `info`: how far it is from the best that can be reached.

    It is the regret of docs/regret.md: that of the incumbent's configuration at full fidelity.
    `info["regret"]` is in the unit of the first objective; it is left out while no trial keeps the
    constraints. `info["relative_regret"]` is in units of the regret of a random configuration.

    Observations and rewards stay as they are, but `info` then reveals the optimum to any agent that
    reads it. No registered environment has this wrapper.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wrap an environment.

        Args:
            env: a trial environment that answers from stored numbers.

        Raises:
            InvalidArgumentError: `env` is of another kind, or its optimum is unknown.
        """
        check_env(env, "full_truth").get_wrapper_attr("full_truth")
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and add the regret to `info`."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        truth = self.get_wrapper_attr("full_truth")
        regret, relative = truth.regret_at([info["incumbent"]["configuration"]])
        regrets = {"relative_regret": float(relative[0])}
        if np.isfinite(regret[0]):  # a record holds finite numbers only
            regrets["regret"] = float(regret[0])
        return observation, reward, terminated, truncated, {**info, **regrets}
