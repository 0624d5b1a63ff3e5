"""Ending an episode when its budget is spent, and in any case after `MAX_TRIALS` trials.

Registered trial environments are wrapped in `BudgetTermination`; vector environments apply `Budget`
to arrays. Budgets are simulated seconds, rounds and trials, and the first one to be spent ends the
episode. The trial that crosses a budget counts in full.
"""

import functools
import math
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike

from fedhpo_gym.core.checks import as_number, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.wrappers.checks import check_env

MAX_TRIALS: Final = 100_000
"""Trials after which an episode ends whatever its budget, unless `max_trials` is set."""
NEEDED: Final = frozenset({"cost", "elapsed_s", "trial"})
"""Entries that `info` of a step must have."""


class Budget:
    """The budgets of an episode; the first one to be spent ends it."""

    def __init__(
        self,
        budget_s: float | None = None,
        budget_rounds: int | None = None,
        budget_trials: int | None = None,
        max_trials: int | None = None,
    ) -> None:
        budgets = {"budget_s": budget_s, "budget_rounds": budget_rounds}
        budgets["budget_trials"] = budget_trials
        self.limits = {
            name: _validate_limit(name, value)
            for name, value in budgets.items()
            if value is not None
        }
        if not self.limits:
            raise InvalidArgumentError(f"one of {sorted(budgets)} must be given, got none")
        self.max_trials = self.limits.get("budget_trials", MAX_TRIALS)
        if max_trials is not None:
            self.max_trials = _validate_limit("max_trials", max_trials)

    def left(self, elapsed_s: ArrayLike, rounds: ArrayLike, trials: ArrayLike) -> Any:
        """Return the remaining share of the budget closest to its end; not positive when spent."""
        used = {"budget_s": elapsed_s, "budget_rounds": rounds, "budget_trials": trials}
        shares = [1.0 - used[name] / value for name, value in self.limits.items()]  # type: ignore[operator]
        smallest = shares[0] if len(shares) == 1 else functools.reduce(np.minimum, shares)
        if isinstance(trials, int):
            return smallest if trials < self.max_trials else min(smallest, 0.0)
        return np.where(np.asarray(trials) < self.max_trials, smallest, np.minimum(smallest, 0.0))


def with_remaining(space: gym.spaces.Dict) -> gym.spaces.Dict:
    """Return an observation space with an entry for the remaining share of the budget."""
    fraction = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    return gym.spaces.Dict({**space.spaces, "remaining_budget": fraction})


class BudgetTermination(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Terminates with the step whose cost crosses a budget; that step counts in full.

    Adds `remaining_budget` (1,) to the observation: the fraction left, in [0, 1], of the budget
    that is closest to its end.

    Time and rounds alone may never be spent: with freeze-thaw a repetition costs nothing, and a
    system may cost almost nothing. So every episode also ends after `max_trials` trials, which no
    sensible run reaches. `remaining_budget` does not count towards that bound, and is 0 there.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        budget_s: float | None = None,
        budget_rounds: int | None = None,
        budget_trials: int | None = None,
        max_trials: int | None = None,
    ) -> None:
        """Limit an environment; whichever budget is spent first ends the episode.

        Args:
            env: a trial environment.
            budget_s: simulated seconds.
            budget_rounds: communication rounds.
            budget_trials: number of trials.
            max_trials: bound on the trials of an episode, beside its budgets; by default
                `budget_trials` bounds them, and `MAX_TRIALS` where it is not given.

        Raises:
            InvalidArgumentError: no budget is given, one is not positive, a number of rounds or
                trials is not whole, or `env` is no environment with dictionary observations.
        """
        self.budget = Budget(budget_s, budget_rounds, budget_trials, max_trials)
        names = ("budget_s", "budget_rounds", "budget_trials")
        recorded: dict[str, Any] = {name: self.budget.limits.get(name) for name in names}
        if max_trials is not None:  # else it is not recorded: specs from before it replay
            recorded["max_trials"] = self.budget.max_trials
        gym.utils.RecordConstructorArgs.__init__(self, **recorded)
        gym.Wrapper.__init__(self, check_env(env))
        inner = env.observation_space
        if not isinstance(inner, gym.spaces.Dict):
            raise InvalidArgumentError(
                f"`env` must have dictionary observations, got {type(inner).__name__}; wrap the "
                "environment before flattening its observations"
            )
        self.observation_space = with_remaining(inner)
        self._rounds = 0
        self._over = False

    @property
    def budget_s(self) -> float | None:
        """Simulated seconds of an episode; None where something else ends it."""
        return self.budget.limits.get("budget_s")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset; the full budget remains."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._rounds, self._over = 0, False
        return self._with_remaining(observation, 1.0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step; terminates when a budget is spent.

        Raises:
            ResetNeeded: the episode has ended.
            InvalidArgumentError: the environment does not say what a step costs.
        """
        if self._over:
            raise gym.error.ResetNeeded("the budget is spent and the episode over; call `reset`")
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not info.keys() >= NEEDED:
            raise InvalidArgumentError(
                f"`env` must say {sorted(NEEDED - info.keys())} in `info`, as trial environments "
                f"do, got {self.env}"
            )
        self._rounds += info["cost"]["rounds"]
        remaining = float(self.budget.left(info["elapsed_s"], self._rounds, info["trial"]))
        observation = self._with_remaining(observation, max(0.0, remaining))
        self._over = terminated or truncated or remaining <= 0.0
        return observation, reward, terminated or remaining <= 0.0, truncated, info

    def _with_remaining(self, observation: Any, remaining: float) -> Any:
        if "remaining_budget" in observation:  # of another such wrapper
            remaining = min(remaining, float(observation["remaining_budget"][0]))
        return {**observation, "remaining_budget": np.array([remaining], dtype=np.float32)}


def _validate_limit(name: str, value: float) -> float:
    """Return a budget: a number of seconds, or a whole number of rounds or trials."""
    is_count = name != "budget_s"
    number = as_number(value)
    if number is None or not 0 < number < math.inf or (is_count and number != int(number)):
        rule = "a positive whole number" if is_count else "positive and finite"
        raise InvalidArgumentError(f"`{name}` must be {rule}, got {short_repr(value)}")
    return number
