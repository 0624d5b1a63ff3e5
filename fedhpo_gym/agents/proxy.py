"""Proxy tuning: configurations that were good on another task, tried in their order there.

Kuo, Thaker, Khodak, Nguyen, Jiang, Talwalkar, Smith, "On noisy evaluation in federated
hyperparameter tuning", MLSys 2023, Section 5 (one-shot proxy random search).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation, SearchProblem, Step, scalar_score
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.space import Dimension, Value


class ProxyTuning(Agent):
    """Tries what was best on a proxy task, and learns nothing itself.

    In a trial environment a trial is one configuration, best first, again from the first after the
    last, at full fidelity. In a round environment the best one is used for the whole course. A
    value that this task does not have is replaced by the nearest one.

    Args:
        configurations: best first, as `best_configurations` returns them.
    """

    learned = "configurations"
    seeded = False

    def __init__(
        self, problem: SearchProblem, *, configurations: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        super().__init__(problem)
        if not configurations:
            raise InvalidArgumentError(
                "`configurations` must be what was good on another task, best first, got "
                f"{configurations}; make them by `agents.proxy.best_configurations`."
            )
        self._actions = [self._action(configuration) for configuration in configurations]
        self._turn = 0

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        action = self._actions[self._turn % len(self._actions)]
        if self.problem.process == "trial":
            self._turn += 1
        return action.copy()

    def _action(self, configuration: Mapping[str, Any]) -> NDArray[np.float32]:
        fidelities, coordinates = self.problem.fidelities.names, []
        for dimension in self.problem.search_space.dimensions:
            if dimension.name in fidelities:
                coordinates.append(1.0)
                continue
            if dimension.name not in configuration:
                raise InvalidArgumentError(
                    f"`configurations` must name {dimension.name!r}, got {sorted(configuration)}."
                )
            value = _nearest_value(dimension, configuration[dimension.name])
            coordinates.append(dimension.encode(value))
        return np.array(coordinates, dtype=np.float32)

    def _state(self) -> dict[str, Any]:
        return {"turn": self._turn}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._turn = int(state["turn"])


def best_configurations(steps: Iterable[Step], count: int = 10) -> list[dict[str, Any]]:
    """Return the configurations of the best trials of a run on another task, best first."""
    order = sorted(steps, key=lambda step: -scalar_score(step.reward, step.info))
    configurations: list[dict[str, Any]] = []
    for step in order:
        if (configuration := dict(step.info["configuration"])) not in configurations:
            configurations.append(configuration)
    return configurations[:count]


def _nearest_value(dimension: Dimension, value: Any) -> Value:
    if dimension.kind == "category":
        return dimension.validate(value)
    clipped = min(max(float(value), dimension.low), dimension.high)
    if dimension.values is not None:
        return min(dimension.values, key=lambda candidate: abs(float(candidate) - clipped))
    return dimension.validate(round(clipped) if dimension.kind == "int" else clipped)
