"""Answers by a model fitted on the task's table; answers any point."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from fedhpo_gym.core.checks import as_typed
from fedhpo_gym.wrappers.checks import check_env, use_backend


class SurrogateBackend(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Exchanges the backend of a trial environment.

    A model fitted on the task's table; answers any point.

    It comes too late where an id has no stored numbers: to open it, `gymnasium.make` itself needs
    `backend="raw"`, or another one that answers.
    """

    def __init__(self, env: gym.Env[Any, Any], *, seed: int | None = None) -> None:
        """Exchange the backend; call `reset` before the next step.

        Args:
            env: a trial environment.
            seed: answer for one seed; None averages over the task's seeds.

        Raises:
            InvalidArgumentError: `env` is no trial environment, or an argument is out of its range.
            MissingDataError: the backend has nothing to answer from; says what to do.
        """
        as_typed("seed", seed, int | None)
        gym.utils.RecordConstructorArgs.__init__(self, seed=seed)
        gym.Wrapper.__init__(self, check_env(env))
        use_backend(env, "surrogate", seed=seed)
