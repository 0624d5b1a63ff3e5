"""FedHyper: a learning rate that follows its hyper-gradient while a course runs.

Wang, Wang, Li, "FedHyper: a universal and robust learning rate scheduler for federated learning
with hypergradient descent", ICLR 2024, Section 3. Steps of the global model that point the same way
call for a larger learning rate, and steps that take each other back for a smaller one.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation, SearchProblem, Step
from fedhpo_gym.agents.clients import Positive
from fedhpo_gym.core.checks import Range, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.space.per_client import base_name

GLOBAL, LOCAL = "server_learning_rate", "learning_rate"
BOUNDS: Mapping[str, float] = {GLOBAL: 3.0, LOCAL: 10.0}
"""A learning rate stays between its start over this and its start times this: the paper's γ."""


class FedHyper(Agent):
    """Adds to the factor of a learning rate how the last two moves of the model agree.

    The factor begins at 1. After the move d_t of a step, it grows by d_t · d_(t-1), and is clipped
    to [1/γ, γ]. On the server's learning rate this is FedHyper-G, where a move counts without the
    learning rate that it was made with; on the clients' it is FedHyper-SL. All other
    hyperparameters stay as they are.

    Differs from the paper: a move is that of a step, which may be several rounds; the server's
    momentum is in it. FedHyper-CL is not here: it changes rates between two local steps of a
    client, which no environment shows.

    Args:
        problem: of a round environment made with `report_moves=True`.
        dimension: the learning rate that is moved; by default `server_learning_rate` where actions
            set it, else `learning_rate`.
        configuration: what the course starts with, by name; the middle of the space where it says
            nothing.
        gamma: see above; by default 3 for the server's learning rate, and 10 for the clients'.
        step: factor of the product of moves. The paper's is 1, for networks with many parameters;
            products of small models are small, and need a larger one.
    """

    acts_on = ("round",)
    seeded = False
    report_moves = True

    @validate_call
    def __init__(
        self,
        problem: SearchProblem,
        *,
        dimension: str | None = None,
        configuration: Mapping[str, Any] | None = None,
        gamma: Annotated[float, Range(1, np.inf, "()")] | None = None,
        step: Positive = 1.0,
    ) -> None:
        super().__init__(problem)
        self._space = problem.search_space
        self._name = self._resolve_dimension(dimension)
        middle = self._space.decode(np.zeros(len(self._space)))
        self._start = self._space.validate({**middle, **(configuration or {})})
        self._gamma = BOUNDS.get(self._name, BOUNDS[LOCAL]) if gamma is None else gamma
        self._step = step
        self.factor = 1.0
        self._scales = [1.0]

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        dimension = self._space[self._name]
        target = float(self._start[self._name]) * self.factor
        rate = float(np.clip(target, dimension.low, dimension.high))
        return self._space.encode({**self._start, self._name: rate}).astype(np.float32)

    def tell(self, step: Step) -> None:
        if "move_product" not in step.info:
            raise InvalidArgumentError(
                "`info` must say 'move_product' to FedHyper; make the environment with "
                "report_moves=True"
            )
        rate = float(self._space.decode(step.action)[self._name]) if self._name == GLOBAL else 1.0
        self._scales = [self._scales[-1], rate]
        gain = self._step * float(step.info["move_product"]) / float(np.prod(self._scales))
        if np.isfinite(gain):
            self.factor = float(np.clip(self.factor + gain, 1.0 / self._gamma, self._gamma))

    def _resolve_dimension(self, dimension: str | None) -> str:
        names = self._space.names
        if dimension is not None:
            require_known("dimension", dimension, names)
            if base_name(dimension) not in BOUNDS:
                raise InvalidArgumentError(
                    f"`dimension` must be a learning rate, got {dimension!r}; leave it out, and "
                    "FedHyper moves the one that actions set"
                )
            return dimension
        for name in (GLOBAL, LOCAL):
            if name in names:
                return name
        raise InvalidArgumentError(
            f"`dynamic` must hold {GLOBAL!r} or {LOCAL!r} for FedHyper, got {list(names)}"
        )

    def _state(self) -> dict[str, Any]:
        return {"factor": self.factor, "scales": list(self._scales)}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.factor = float(state["factor"])
        self._scales = [float(scale) for scale in state["scales"]]
