"""One reward from many objectives: the paper's soft constraints."""

from __future__ import annotations

from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import shown
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.constraints import Constraints, read_constraints
from fedhpo_gym.wrappers.checks import check_env

LARGEST: Final = float(np.finfo(np.float32).max)
"""The largest penalty that a trial may have: a reward must be finite as float32, too."""


class ScalarizePenalty(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Reward = score of the first objective minus a penalty for each violated soft constraint.

    FedHPO-Bench (Section 3.2) turns the vector into a scalar by "treating privacy and
    fairness-related values as soft constraints to penalize". A constraint is a limit in the
    objective's own unit; what exceeds it costs `weight` per unit:
    r = score_0 - sum_j weight_j max(0, error_j - limit_j). A limit nobody states is never violated.
    Where an objective has a transform, the limit stays in its own unit and the excess is of errors.

    The weight decides this score alone. A trial environment takes the limits as they are: its
    incumbent is the best trial that keeps them, whatever their weights.

    Attributes:
        vector_reward: False: what is under this wrapper returns a vector, this returns a number.
    """

    vector_reward = False

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        constraints: Constraints | None = None,
    ) -> None:
        """Make the reward one built-in float.

        Args:
            env: an environment whose reward is the vector of scores of
                `env.unwrapped.objectives`.
            constraints: by objective, a limit, or `{"limit": limit, "weight": weight}`; the
                weight is 1 if not given.

        Raises:
            UnknownNameError: a constraint names no objective of the environment.
            InvalidArgumentError: `constraints` is no mapping, a limit is not finite, a weight is
                negative or so large that a penalty may not be finite, or `env` is of another kind.
        """
        objectives = check_env(env, "objectives").get_wrapper_attr("objectives")
        self._limits: NDArray[np.float64] = np.full(len(objectives), np.inf)
        self._weights: NDArray[np.float64] = np.zeros(len(objectives))
        for index, (limit, weight) in read_constraints(objectives, constraints).items():
            self._limits[index] = objectives[index].limit_error(limit)
            self._weights[index] = weight
        self._weighted = np.flatnonzero(self._weights).tolist()
        with np.errstate(over="ignore"):
            worst = self.penalty(np.array([one.score_bounds[0] for one in objectives]))
        if not worst <= LARGEST:
            raise InvalidArgumentError(
                "`constraints` must have limits and weights whose penalty is finite as float32 for "
                f"the worst trial, got {shown(constraints)}"
            )
        gym.utils.RecordConstructorArgs.__init__(self, constraints=constraints)
        gym.Wrapper.__init__(self, env)
        if constraints and hasattr(env.unwrapped, "constrain"):
            env.unwrapped.constrain(constraints)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step with a scalar reward.

        It is `info["score"]`, too; `info["penalty"]` says how much was subtracted.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        scores = np.asarray(reward, dtype=np.float64)
        penalty = float(self.penalty(scores))
        score = float(scores[0]) - penalty
        info = {**info, "score": score, "penalty": penalty}
        return observation, score, terminated, truncated, info

    def penalty(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the (...) penalties of (..., m) scores."""
        total = np.zeros(scores.shape[:-1])
        # One after the other: a matrix product may round differently for another number of rows.
        for column in self._weighted:
            excess = np.maximum(-scores[..., column] - self._limits[column], 0.0)
            total = total + self._weights[column] * excess
        return total
