"""A problem as a benchmark of HPOBench (Eggensperger et al., 2021), with the same interface.

HPOBench itself is not needed, and is on no package index; its container clients are not provided.
"""

from collections.abc import Mapping
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhpo_gym.core.checks import as_integer, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.harnesses.problem import Problem
from fedhpo_gym.space.configspace import to_configspace

if TYPE_CHECKING:
    import ConfigSpace

Random = int | np.random.RandomState | None


class Benchmark:
    """`Benchmark(id).objective_function(configuration, fidelity)`, as HPOBench's benchmarks are.

    Several fidelities: the rounds and the client sample rate, at their highest by default.
    """

    def __init__(self, env_id: str, rng: Random = None, **arguments: Any) -> None:
        """Make the environment.

        Args:
            env_id: an id of trials.
            rng: seeds the two spaces, and the noise of noisy evaluations; 0 by default.
            arguments: of `Problem`.
        """
        self.problem = Problem(env_id, **arguments)
        self.rng = np.random.RandomState(0) if rng is None else _generator(rng)
        seeds = self.rng.randint(0, 10_000, 2).tolist()
        self.configuration_space = self.get_configuration_space(seeds[0])
        self.fidelity_space = self.get_fidelity_space(seeds[1])

    def objective_function(
        self,
        configuration: Mapping[str, Any],
        fidelity: Mapping[str, Any] | None = None,
        rng: Random = None,
        *,
        seed: int | None = None,
    ) -> dict[str, Any]:
        """Return `function_value`, lower is better, `cost` in simulated seconds, and `info`.

        On `MO-` ids the first is a dictionary. `rng` chooses the noise, `seed` a repetition.
        """
        noise_seed = None if rng is None else int(_generator(rng).randint(2**31 - 1))
        outcome = self.problem.evaluate(
            dict(configuration), fidelity, seed=seed, noise_seed=noise_seed
        )
        losses = dict(outcome.losses)
        value = losses if len(losses) > 1 else next(iter(losses.values()))
        return {"function_value": value, "cost": outcome.time_s, "info": dict(outcome.info)}

    def objective_function_test(
        self, configuration: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the same on test data, of objectives that are measured on validation data."""
        return self._on_test_data.objective_function(configuration, *args, **kwargs)

    def __call__(self, configuration: Mapping[str, Any], **kwargs: Any) -> Any:
        return self.objective_function(configuration, **kwargs)["function_value"]

    @cached_property
    def _on_test_data(self) -> "Benchmark":
        names = [objective.name for objective in self.problem.objectives]
        if others := [name for name in names if not name.startswith("val_")]:
            raise InvalidArgumentError(
                "`objectives` must be of validation data for a value on test data, got "
                f"{others[0]!r}; use objectives=['val_loss']"
            )
        twin = copy(self)
        twin.problem = self.problem.with_objectives([n.replace("val_", "test_") for n in names])
        return twin

    def get_configuration_space(self, seed: int | None = None) -> "ConfigSpace.ConfigurationSpace":
        """Return the search space."""
        return to_configspace(self.problem.space, seed or 0)

    def get_fidelity_space(self, seed: int | None = None) -> "ConfigSpace.ConfigurationSpace":
        """Return the fidelities, whose default is the highest."""
        return to_configspace(self.problem.fidelities, seed or 0, self.problem.full)

    def get_meta_information(self) -> dict[str, Any]:
        """Return name and description of the problem."""
        return {"name": self.problem.id, **self.problem.describe()}


def _generator(rng: int | np.random.RandomState) -> np.random.RandomState:
    if isinstance(rng, np.random.RandomState):
        return rng
    if (seed := as_integer(rng)) is None or not 0 <= seed < 1 << 32:
        raise InvalidArgumentError(
            "`rng` must be a whole number from 0 to 2^32 - 1 or a RandomState of numpy, got "
            f"{short_repr(rng)}"
        )
    return np.random.RandomState(seed)
