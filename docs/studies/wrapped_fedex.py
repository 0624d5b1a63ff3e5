"""X + FedEx: any optimizer chooses where to look, FedEx adapts there while the course runs.

Khodak et al. (2021), Algorithm 1; FedHPO-Bench (Wang et al., 2023), Figure 1 and Section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.agents.base import Agent, SearchProblem, Step, read_problem, run_episode
from fedhpo_gym.agents.clients import (
    DEFAULT_ARMS,
    ArmGrid,
    PositiveInt,
    Share,
    Traces,
    check_unit_rows,
    listed_arms,
)
from fedhpo_gym.agents.fedex import FedEx, FedExSettings
from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.space.dimension import Dimension

NOTHING_LEARNED: Final = -10.0
"""Score of a course after which no client could report a finite loss (in -nats)."""


@validate_call
def perturbed_arms(
    centre: ArrayLike,
    number: PositiveInt,
    epsilon: Share,
    rng: np.random.Generator,
    space: SearchSpace | None = None,
) -> ArmGrid:
    """Return a configuration (n,) and `number - 1` others near it, as FedEx is given them.

    Khodak et al. (2021), Appendix: intervals move by up to `epsilon` of their range either way,
    on the scale of the search space; grids by up to `ceil(epsilon * (points - 1))` points. All
    moves are uniform and end at the edge of the space.
    """
    point = np.asarray(centre, dtype=np.float64)
    if point.ndim != 1 or (space is not None and len(space) != len(point)):
        rule = "one coordinate per dimension" if space is None else f"shape ({len(space)},)"
        raise InvalidArgumentError(f"`centre` must have {rule}, got shape {point.shape}.")
    moves = rng.uniform(-1.0, 1.0, (number - 1, len(point)))
    moved = np.clip(point + 2.0 * epsilon * moves, -1.0, 1.0)
    for i, values in enumerate(d.values for d in (space.dimensions if space else ())):
        if values is not None:
            moved[:, i] = _grid_moves(point[i], moves[:, i], len(values), epsilon)
    return listed_arms(np.concatenate([point[None], moved]))


def _grid_moves(
    centre: float, moves: NDArray[np.float64], points: int, epsilon: float
) -> NDArray[np.float64]:
    """Return cell centres; a move in [-1, 1) is spread evenly over -reach .. reach points."""
    reach = math.ceil(epsilon * (points - 1))
    start = min(int((centre + 1.0) / 2.0 * points), points - 1)
    steps = np.floor((moves + 1.0) / 2.0 * (2 * reach + 1)).astype(np.int64) - reach
    cells = np.clip(start + steps, 0, points - 1)
    return np.asarray((2.0 * cells + 1.0) / points - 1.0)


@dataclass(frozen=True)
class Neighbourhood:
    """What FedEx is given around a configuration: `arms` that lie `epsilon` apart; 1 is X alone."""

    arms: int = DEFAULT_ARMS
    epsilon: float = 0.1
    settings: FedExSettings = field(default_factory=lambda: FedExSettings(schedule="aggressive"))


@dataclass(frozen=True, eq=False)
class WrappedTrial:
    """One course: what X asked for, and what came of it.

    `centre` and `best` are (n,) actions, asked for and likeliest in the end; X is told `score`,
    minus the clients' mean loss after the last round (nats); `length` None is a whole episode.
    """

    centre: NDArray[np.float32]
    arms: ArmGrid
    best: NDArray[np.float32]
    traces: Traces
    steps: tuple[Step, ...]
    score: float
    length: int | None = None


def row_space(action_space: gym.Space[Any], more: int = 0) -> gym.spaces.Box:
    """Return the action space of one client, in which X acts: (n + more,) in [-1, 1]."""
    if not isinstance(action_space, gym.spaces.Box) or len(action_space.shape) != 2:
        raise InvalidArgumentError(
            f"`action_space` must be a Box of shape (clients, n), got {action_space}; make the "
            "environment with per_client=True."
        )
    return gym.spaces.Box(-1.0, 1.0, (check_unit_rows(action_space) + more,), np.float32)


def row_problem(env: gym.Env[Any, Any], seed: int, steps: Dimension | None = None) -> SearchProblem:
    """Return what X has to solve around FedEx: to it, every course is a trial."""
    inner = read_problem(env, seed)
    fidelities = SearchSpace(() if steps is None else (steps,))
    return SearchProblem(
        action_space=row_space(inner.action_space, more=len(fidelities)),
        search_space=SearchSpace((*inner.search_space.dimensions, *fidelities.dimensions)),
        fidelities=fidelities,
        seed=seed,
    )


def wrapped_search(
    env: gym.Env[Any, Any],
    outer: Agent,
    seed: int,
    neighbourhood: Neighbourhood | None = None,
    space: SearchSpace | None = None,
    steps: Dimension | None = None,
) -> Iterator[WrappedTrial]:
    """Let an optimizer choose neighbourhoods, one course for each, without end.

    Every course starts from the same reset and runs to its end, or for as many steps as X says, so
    that neighbourhoods of one arm and of many get equal training.
    """
    around = neighbourhood or Neighbourhood()
    acts_in = row_space(env.action_space, more=0 if steps is None else 1)
    if outer.action_space != acts_in:
        raise InvalidArgumentError(f"`outer` must act in {acts_in}, got {outer.action_space}.")
    trial = 0
    while True:
        action = outer.ask({})
        length = None if steps is None else int(steps.decode(float(action[-1])))
        centre = action if steps is None else action[:-1]
        rng = stream(seed, "wrapped_fedex_arms", trial)
        arms = perturbed_arms(centre, around.arms, around.epsilon, rng, space)
        inner_seed = int(stream(seed, "wrapped_fedex", trial).integers(2**32))
        inner = FedEx(read_problem(env, inner_seed), arms=arms, settings=around.settings)
        taken = tuple(islice(run_episode(env, inner, seed), length))
        traces = inner.policy.traces
        score = -traces.after[-1] if traces.after else NOTHING_LEARNED
        outer.tell(Step(action, score))
        yield WrappedTrial(centre, arms, inner.best_actions()[0], traces, taken, score, length)
        trial += 1
