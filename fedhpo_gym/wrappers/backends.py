"""Exchanging the backend of a trial environment: one wrapper with a name for each backend."""

from typing import Any, ClassVar

import gymnasium as gym

from fedhpo_gym.core.checks import coerce, parameter_types
from fedhpo_gym.wrappers.checks import check_env


class BackendWrapper(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Exchanges the backend of a trial environment.

    It cannot help where an id has no stored numbers: `gymnasium.make` itself then needs a `backend`
    such as "raw", and there is nothing to exchange.

    Raises:
        InvalidArgumentError: `env` is no trial environment, or an argument is out of its range.
        MissingDataError: the backend has no data.
    """

    backend: ClassVar[str]

    def __init__(self, env: gym.Env[Any, Any], *, seed: int | None = None) -> None:
        """Evaluate under one seed, or for None take the mean over the task's; call `reset` next."""
        self._exchange(env, seed=seed)

    def _exchange(self, env: gym.Env[Any, Any], **options: Any) -> None:
        hints = parameter_types(type(self))
        options = {name: coerce(name, value, hints[name]) for name, value in options.items()}
        gym.utils.RecordConstructorArgs.__init__(self, **options)
        gym.Wrapper.__init__(self, check_env(env, "use_backend"))
        env.get_wrapper_attr("use_backend")(self.backend, **options)


class TabularBackend(BackendWrapper):
    """Looks up trials in the task's table, or the nearest configuration of a pool."""

    backend = "tabular"


class SurrogateBackend(BackendWrapper):
    """Predicts trials by a model fitted on the task's table, at any configuration."""

    backend = "surrogate"


class RawBackend(BackendWrapper):
    """Really trains with the engine of this package."""

    backend = "raw"

    def __init__(
        self, env: gym.Env[Any, Any], *, seed: int | None = None, device: str = "cpu"
    ) -> None:
        """Exchange the backend as `BackendWrapper` does; `device` is torch's, such as "cuda"."""
        self._exchange(env, seed=seed, device=device)


class FederatedScopeBackend(BackendWrapper):
    """Really trains with FederatedScope, in an interpreter of its own."""

    backend = "federatedscope"

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
            seed: seed of the repetition; None averages over the task's seeds.
            source: FederatedScope's source tree; by default that of the folder that the environment
                variable `FEDHPO_GYM_FEDERATEDSCOPE` names.
            interpreter: Python that has its dependencies; by default that of the same folder.
            time_limit_s: real seconds that a course may take for the rounds of a trial.

        Raises:
            InvalidArgumentError: `env` is no trial environment, an argument is out of its range, or
                FederatedScope cannot train this task.
            MissingDependencyError: FederatedScope was not found.
            PeerError: FederatedScope does not start.
        """
        options = {"source": source, "interpreter": interpreter, "time_limit_s": time_limit_s}
        self._exchange(env, seed=seed, **options)
