"""Answers by real training with FederatedScope."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from fedhpo_gym.core.checks import as_typed
from fedhpo_gym.wrappers.checks import check_env, use_backend


class FederatedScopeBackend(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Exchanges the backend of a trial environment.

    Real training with FederatedScope, in an interpreter of its own.

    It comes too late where an id has no stored numbers: to open it, `gymnasium.make` itself needs
    `backend="federatedscope"`, and then nothing is left to exchange.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        seed: int | None = None,
        source: str | None = None,
        interpreter: str | None = None,
        time_limit_s: float = 3600.0,
    ) -> None:
        """Exchange the backend; call `reset` before the next step.

        Args:
            env: a trial environment.
            seed: answer for one seed; None averages over the task's seeds.
            source: FederatedScope's source tree; by default that of the folder that the environment
                variable `FEDHPO_GYM_FEDERATEDSCOPE` names.
            interpreter: Python that has its dependencies; by default that of the same folder.
            time_limit_s: real seconds that a course may take for the rounds of a trial.

        Raises:
            InvalidArgumentError: `env` is no trial environment, an argument is out of its range, or
                FederatedScope cannot train this task.
            MissingDependencyError: nothing says where FederatedScope is.
            PeerError: FederatedScope does not start.
        """
        options = {
            "seed": as_typed("seed", seed, int | None),
            "source": as_typed("source", source, str | None),
            "interpreter": as_typed("interpreter", interpreter, str | None),
            "time_limit_s": as_typed("time_limit_s", time_limit_s, float),
        }
        gym.utils.RecordConstructorArgs.__init__(self, **options)
        gym.Wrapper.__init__(self, check_env(env))
        use_backend(env, "federatedscope", **options)
