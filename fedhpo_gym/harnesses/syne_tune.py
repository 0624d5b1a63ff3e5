"""A problem as a blackbox of Syne Tune (Salinas et al., 2022), for its simulated backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import require_optional
from fedhpo_gym.harnesses.problem import Problem
from fedhpo_gym.space import Dimension

with require_optional(
    "a blackbox of Syne Tune", "syne-tune", "syne-tune", "syne_tune", "huggingface_hub"
):
    from syne_tune import config_space
    from syne_tune.blackbox_repository.blackbox import Blackbox as Base

ROUND = "round"
TIME = "elapsed_time"
"""Simulated seconds since a trial began, `elapsed_time_attr` of their backend."""


class Blackbox(Base):  # type: ignore[misc]  # no types come with it
    """`UserBlackboxBackend(Blackbox(id), elapsed_time_attr="elapsed_time")`.

    Its fidelity is the round, at all rounds of its grid; other fidelities are fixed, at their
    highest by default. Values are in natural units; the scheduler has to know their direction.
    Syne Tune has no conditions, so configurations include inactive values, which have no effect.
    """

    def __init__(self, env_id: str, **arguments: Any) -> None:
        """Make the environment; arguments are those of `fedhpo_gym.harnesses.problem.Problem`."""
        self.problem = Problem(env_id, **arguments)
        self._rounds = np.array(self.problem.fidelities[ROUND].grid)
        names = [x.name for x in self.problem.objectives]
        dimensions = self.problem.space.dimensions
        super().__init__(
            configuration_space={x.name: _domain(x) for x in dimensions},
            fidelity_space={ROUND: config_space.ordinal(self._rounds.tolist(), kind="nn")},
            objectives_names=[*names, TIME],
        )

    @property
    def fidelity_values(self) -> NDArray[np.int64]:
        return self._rounds

    def _objective_function(
        self,
        configuration: dict[str, Any],
        fidelity: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> dict[str, float] | NDArray[np.float64]:
        if fidelity is None:
            rows = [self._values(configuration, x, seed) for x in self._rounds.tolist()]
            return np.array(rows)
        values = self._values(configuration, fidelity[ROUND], seed)
        return dict(zip(self.objectives_names, values, strict=True))

    def _values(self, configuration: dict[str, Any], rounds: Any, seed: int | None) -> list[float]:
        outcome = self.problem.evaluate(configuration, {ROUND: rounds}, seed=seed)
        return [*outcome.values.values(), outcome.time_s]


def _domain(dimension: Dimension) -> Any:
    low, high, log = dimension.low, dimension.high, dimension.log
    if dimension.kind == "category":
        return config_space.choice(list(dimension.grid))
    if dimension.values is not None:
        return config_space.ordinal(list(dimension.values), kind="equal")
    if dimension.kind == "int":
        return (config_space.lograndint if log else config_space.randint)(int(low), int(high))
    return (config_space.loguniform if log else config_space.uniform)(low, high)
