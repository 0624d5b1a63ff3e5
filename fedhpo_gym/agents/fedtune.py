"""FedTune as an agent: one configuration in which two hyperparameters move while a course runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation
from fedhpo_gym.agents.fedtune_controller import FedTuneController, Preferences, round_costs
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.space import Dimension, SearchSpace, Value


class FedTune(Agent):
    """Zhang et al. (2021) on the rounds of one course; see `FedTuneController`.

    Where participants are no dimension of the space, only the passes move. A step of a grid is to
    its next point. `info` must have `val_accuracy` and `num_train_samples`, the (clients,) training
    samples of the clients that took part and 0 for the others.

    Args:
        problem: of a round environment; its seed is unused, the rule is deterministic.
        start: configuration of the first round; by default the middle of the space.
        preferences: weights of the four costs.
        passes: name of the dimension of local passes.
        participants: name of the dimension of clients per round, or None.

    Raises:
        UnknownNameError: the space has no such dimension.
        InvalidArgumentError: `start` is not legal.
    """

    acts_on = ("round",)
    seeded = False

    def __init__(
        self,
        problem: SearchProblem,
        *,
        start: Mapping[str, object] | None = None,
        preferences: Preferences | None = None,
        passes: str = "step_size",
        participants: str | None = None,
    ) -> None:
        super().__init__(problem)
        self._space = space = problem.search_space
        self._passes = passes
        self._participants = participants
        moving = [passes] if participants is None else [passes, participants]
        self._steps = {name: _steps(space[name]) for name in moving}
        chosen = _middle(space, self._steps) if start is None else start
        self._configuration = space.validate(chosen, "start")
        now, limit = self._position(passes)
        people, most = (0, 0) if participants is None else self._position(participants)
        self.controller = FedTuneController(
            preferences or Preferences(),
            people,
            now,
            participant_limits=(0, most),
            pass_limits=(0, limit),
        )

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        self._configuration[self._passes] = self._steps[self._passes][self.controller.passes]
        if self._participants:
            points = self._steps[self._participants]
            self._configuration[self._participants] = points[self.controller.participants]
        return self._space.encode(self._configuration)

    def tell(
        self,
        action: NDArray[np.float32],
        reward: float,
        observation: Observation,
        terminated: bool,
        info: Mapping[str, Any],
    ) -> None:
        if missing := [key for key in ("val_accuracy", "num_train_samples") if key not in info]:
            raise InvalidArgumentError(
                f"`info` must have {missing}, got {sorted(info)}; use a round environment."
            )
        samples = np.asarray(info["num_train_samples"], dtype=np.float64)
        accuracy = float(info["val_accuracy"])
        if (samples > 0).any() and np.isfinite(accuracy):
            passes = float(self._configuration[self._passes])
            self.controller.update(accuracy, round_costs(samples[samples > 0], passes))

    def _state(self) -> dict[str, Any]:
        return self.controller.to_dict()

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.controller.restore(state)

    def _position(self, name: str) -> tuple[int, int]:
        """Return which step a dimension starts at, and the last there is."""
        points, value = self._steps[name], self._configuration[name]
        if value not in points:
            raise InvalidArgumentError(
                f"`start[{name!r}]` must be one of {list(points)}, got {value}."
            )
        return points.index(value), len(points) - 1


def _middle(space: SearchSpace, steps: Mapping[str, tuple[Value, ...]]) -> dict[str, Value]:
    """Return the middle of a space; what moves in steps starts on the middle one."""
    moving = {name: points[len(points) // 2] for name, points in steps.items()}
    return {**space.decode(np.zeros(len(space))), **moving}


def _steps(dimension: Dimension) -> tuple[Value, ...]:
    """Return the values that one step up or down leads through."""
    if dimension.kind == "int" and dimension.values is None:
        return tuple(range(int(dimension.low), int(dimension.high) + 1))
    return dimension.discretized().grid
