"""Answers by real training with the suite's engine."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from fedhpo_gym.core.checks import as_typed
from fedhpo_gym.wrappers.checks import check_env, use_backend


class RawBackend(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Exchanges the backend of a trial environment.

    Real training with the suite's engine.

    It comes too late where an id has no stored numbers: to open it, `gymnasium.make` itself needs
    `backend="raw"`, and then nothing is left to exchange.
    """

    def __init__(
        self, env: gym.Env[Any, Any], *, seed: int | None = None, device: str = "cpu"
    ) -> None:
        """Exchange the backend; call `reset` before the next step.

        Args:
            env: a trial environment.
            seed: answer for one seed; None averages over the task's seeds.
            device: torch device.

        Raises:
            InvalidArgumentError: `env` is no trial environment, or an argument is out of its range.
            MissingDataError: the backend has nothing to answer from; says what to do.
        """
        as_typed("seed", seed, int | None)
        as_typed("device", device, str)
        gym.utils.RecordConstructorArgs.__init__(self, seed=seed, device=device)
        gym.Wrapper.__init__(self, check_env(env))
        use_backend(env, "raw", seed=seed, device=device)
