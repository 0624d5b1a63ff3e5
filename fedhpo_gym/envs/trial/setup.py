"""The setup of trial environments: task, backend, objectives and spaces of all episodes.

`TrialArguments.open` creates a `TrialSetup`; environments, processes and truths share it. It maps
actions to queries of the backend: a configuration, and a fidelity whose fixed dimensions are filled
in. On a table or pool, the legal queries are *cells* with consecutive numbers, so that results can
be arrays over all cells. Everything that is derived is a cached property and is not pickled.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import Backend, CheckedQuery
from fedhpo_gym.core.checks import coerce, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.core.identity import BUILT_TABLE, FEDHPO_BENCH
from fedhpo_gym.envs.trial import instances, observation
from fedhpo_gym.evaluation.multi_objective import (
    Constraints,
    Limits,
    excesses,
    read_constraints,
    violations,
)
from fedhpo_gym.evaluation.noise import Noise, check_noise
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.objectives import ENERGY, Objective, named_objective
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored.pool import PoolCells
from fedhpo_gym.tasks import Task

DEFAULT_OBJECTIVES: Final = ("val_loss", "fairness_std", "epsilon")
LIVE_OBJECTIVES: Final = ("val_loss", "fairness_p10", "time_s")
"""Default objectives of `MO-` ids of version 1: all vary, and no useless model is best in one."""
RATE = "client_sample_rate"
Columns = Mapping[str, NDArray[Any]]
"""Values of every dimension of configurations and fidelities, (B,) each."""
FAIR: Final = ("fairness_p10", "fairness_std", "fairness_jain")
"""Objectives of fairness in defaults: the first that the backend supports is used."""


@dataclass(frozen=True, eq=False)
class TrialSetup:
    """A task, its backend, and the settings of episodes; `TrialArguments` describes the fields.

    Attributes:
        objective_names: names of the objectives; the first ranks trials.
        fixed: values of fidelity dimensions that are not part of the action, by name.
        instances: the backends of instances, `backend` first; an episode uses one of them. Empty
            if there is only one problem.
        custom: objectives of the user, besides those of the task.
        leave_out: leave out default objectives that the backend does not support, instead of
            raising. The first objective, and those with a limit, are always needed.
    """

    task: Task
    backend: Backend
    objective_names: tuple[str, ...]
    fixed: Mapping[str, Value]
    transform: str = "clip"
    grid: bool = False
    freeze_thaw: bool = False
    instances: tuple[Backend, ...] = ()
    custom: tuple[Objective, ...] = ()
    noise: Noise | None = None
    constraints: Constraints | None = None
    leave_out: bool = False

    @classmethod
    def of(
        cls,
        task: Task,
        backend: Backend,
        *,
        objectives: Sequence[str | Objective] = DEFAULT_OBJECTIVES,
        fidelity: Mapping[str, Value] | None = None,
        **others: Any,
    ) -> "TrialSetup":
        """Return the setup with some objectives, custom ones included."""
        entries = coerce("objectives", objectives, Sequence[str | Objective])
        resolved = tuple(map(named_objective, entries))
        custom = tuple(objective for objective in resolved if isinstance(objective, Objective))
        names = tuple(
            objective.name if isinstance(objective, Objective) else objective
            for objective in resolved
        )
        for objective in custom:
            if task.objectives.get(objective.name, objective) is not objective:
                raise InvalidArgumentError(
                    "a custom objective must have a new name, got "
                    f"{objective.name!r}, which {task.name} has"
                )
        if not names or len(set(names)) < len(names):
            raise InvalidArgumentError(
                "`objectives` must be a list of different names, at least one, got "
                f"{short_repr(objectives)}"
            )
        return cls(task, backend, names, dict(fidelity or {}), custom=custom, **others)

    def __post_init__(self) -> None:
        object.__setattr__(self, "objective_names", self._answered())
        # Validated values: costs and privacy then use the same values as evaluations.
        object.__setattr__(self, "fixed", self.backend.check_fidelity(self.fixed))
        for name, value in self.fixed.items():
            self._fidelities[name].validate(value, "fidelity")
        self.objectives  # noqa: B018 - an unknown name is an error now
        self.search_space  # noqa: B018 - and a fidelity that does not exist
        self.limits  # noqa: B018 - and a limit that cannot be satisfied
        if ENERGY in self.objective_names:
            self.task.system.require_energy(asynchronous=self.task.asynchronous)
        if (reason := self.backend.lacks.get("clients")) and (self.noise or self.instances):
            raise InvalidArgumentError(
                "`noise` and `instances` must be None where stored numbers have no clients: "
                f"{reason}"
            )
        if self.instances and self.custom and self._pool_cells is not None:
            raise InvalidArgumentError(
                "`objectives` must be names where `instances` are pools, got the custom objective "
                f"{self.custom[0].name!r}; set one `seed` instead of `instances`"
            )
        if self.noise is not None:
            check_noise(self.noise, self.objectives, self.backend.name)

    def __getstate__(self) -> dict[str, object]:
        """Leave out derived values: objectives hold functions, which cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _answered(self) -> tuple[str, ...]:
        """Return the names of the objectives without those that are left out."""
        needed = {self.objective_names[0], *(self.constraints or {})}
        answered = []
        for name in self.objective_names:
            if not (reason := self._why_refused(name)):
                answered.append(name)
            elif self.leave_out and name not in needed and (other := self._in_place_of(name)):
                answered.append(other)
            elif not self.leave_out or name in needed:
                others = [
                    objective
                    for objective in self.task.objectives
                    if not self._why_refused(objective)
                ]
                raw = "backend='raw', " if self.task.table == BUILT_TABLE else ""
                raise InvalidArgumentError(
                    f"`objectives` must be those that backend={self.backend.name!r} supports, got "
                    f"{name!r}. It is refused, {reason}. Use {raw}a table where there "
                    f"is one, or others: {', '.join(others)}"
                )
        return tuple(answered)

    def _in_place_of(self, name: str) -> str:
        """Return the objective of fairness that replaces a default; "" if there is none."""
        others = FAIR[1:] if name == FAIR[0] else ()
        return next((objective for objective in others if not self._why_refused(objective)), "")

    def _why_refused(self, name: str) -> str:
        backends = self.instances or (self.backend,)
        return next(filter(None, (backend.why_refused(name) for backend in backends)), "")

    @cached_property
    def parts(self) -> "tuple[TrialSetup, ...]":
        """The setups of the instances; only itself if there are none."""
        if not self.instances:
            return (self,)
        return tuple(
            replace(self, task=backend.task, backend=backend, instances=())
            for backend in self.instances
        )

    @cached_property
    def objectives(self) -> tuple[Objective, ...]:
        by_name = {**self.task.objectives, **{one.name: one for one in self.custom}}
        for name in self.objective_names:
            require_known("objective", name, by_name)
        selected = (by_name[name] for name in self.objective_names)
        return tuple(objective.with_transform(self.transform) for objective in selected)

    @cached_property
    def reads_clients(self) -> NDArray[np.bool_]:
        """(objectives,) whether each reads metrics of clients, which noise affects."""
        return np.array([objective.reads_clients for objective in self.objectives])

    @cached_property
    def limits(self) -> Limits:
        """Limit and weight of each constraint, by the position of its objective."""
        return read_constraints(self.objectives, self.constraints)

    def violations(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the total violation of each of (..., objectives) values; 0 where feasible."""
        return violations(self.objectives, self.limits, values)

    def violation_info(self, values: NDArray[np.float64]) -> dict[str, Any]:
        """Return the entries of `info` about constraints for (..., objectives) values.

        `violation` is the total, and `excess` the excess over each limit in the unit of the
        objective; there are no entries without constraints.
        """
        if not self.limits:
            return {}
        excess = excesses(self.objectives, self.limits, values)
        return {"violation": self.violations(values), "excess": excess}

    @cached_property
    def _space(self) -> SearchSpace:
        space = self.backend.space
        if not self._is_on_the_tasks_grid or self._pool_cells is not None:
            return space
        # The grid is the task's; for a tuned setting, it is the values with numbers.
        tuned = {dimension.name for dimension in self.task.tuned}
        grid = (space[d.name] if d.name in tuned else d for d in self.task.space.dimensions)
        return SearchSpace(tuple(one.with_grid() for one in grid)).discretized()

    @property
    def _is_on_the_tasks_grid(self) -> bool:
        """Whether only the task's grid is legal; tables of FedHPO-Bench have another grid."""
        return self.grid and self.task.table != FEDHPO_BENCH

    @cached_property
    def _fidelities(self) -> SearchSpace:
        answered = self.backend.fidelity_space
        if not self._is_on_the_tasks_grid:
            return answered
        return self.task.stored_fidelity_space().within(answered)

    @cached_property
    def search_space(self) -> SearchSpace:
        """Dimensions of an action: configuration, then free fidelity dimensions."""
        return SearchSpace((*self._space.dimensions, *self._fidelities.fix(self.fixed).dimensions))

    @property
    def at_full_fidelity(self) -> "TrialSetup":
        """The same problem with all fidelities at their highest, and without noise."""
        full = {dimension.name: dimension.high for dimension in self._fidelities.dimensions}
        return replace(self, fixed=full, noise=None, freeze_thaw=False, instances=())

    @cached_property
    def _pool_cells(self) -> PoolCells | None:
        """The cells of a pool; None if a grid, or all of the space, can be evaluated."""
        return self.backend.cells(self.fixed)

    @property
    def is_grid(self) -> bool:
        """Whether all actions are cells: points of a grid or of a pool."""
        grid = all(dimension.values is not None for dimension in self.search_space.dimensions)
        return self._pool_cells is not None or grid

    @property
    def pool(self) -> NDArray[np.float32] | None:
        """(K, n) actions of a pool's configurations at the highest fidelities, or None."""
        if self._pool_cells is None or self.instances:
            return None
        configurations, space = self._pool_cells.configurations, self.search_space
        size = len(next(iter(configurations.values())))
        highest = {
            d.name: np.full(size, d.high) for d in space.dimensions if d.name not in configurations
        }
        return space.encode_columns({**configurations, **highest})

    @property
    def num_cells(self) -> int:
        """Number of cells."""
        return self.search_space.grid_size if self._pool_cells is None else len(self._pool_cells)

    def cells_of(self, actions: NDArray[np.floating]) -> NDArray[np.intp]:
        """Return the (B,) cells of (B, n) actions."""
        if self._pool_cells is None:
            return self.search_space.flat_grid_indices(actions)
        columns = self.search_space.decode_columns(actions)
        return self._pool_cells.index(self._with_fixed(columns, len(actions)))

    def courses_of(self, cells: NDArray[np.integer]) -> NDArray[np.integer]:
        """Return the (B,) course numbers of cells: cells that differ only in rounds share one."""
        if self._pool_cells is not None:
            return np.asarray(self._pool_cells.courses[cells])
        space = self.search_space
        if "round" not in space:
            return cells
        axis = space.names.index("round")
        step = math.prod(space.grid_shape[axis + 1 :])
        return np.asarray(cells // (space.grid_shape[axis] * step) * step + cells % step)

    @cached_property
    def action_space(self) -> gym.spaces.Box:
        """Box [-1, 1]^n, one coordinate per dimension of `search_space`."""
        return gym.spaces.Box(-1.0, 1.0, (len(self.search_space),), np.float32)

    @cached_property
    def observation_space(self) -> gym.spaces.Dict:
        """Observations of one environment (`TrialEnv`)."""
        names = instances.NAMES if self.instances else ()
        size = len(self.search_space)
        counted = observation.is_counted(self.task)
        return observation.trial_observation_space(
            self.task, size, self.objectives[0], len(names), counted
        )

    @cached_property
    def reward_space(self) -> gym.spaces.Box:
        low, high = np.array([o.score_bounds for o in self.objectives], dtype=np.float32).T
        return gym.spaces.Box(low, high, dtype=np.float32)

    @property
    def error_scale(self) -> float:
        """Error of a guess in the first objective: of chance loss, or half of the error range."""
        objective = self.objectives[0]
        best, worst = objective.error_bounds
        guess = objective.error(self.task.chance_loss)
        return guess - best if objective.open_ended else (worst - best) / 2

    def decode(self, action: NDArray[np.floating]) -> CheckedQuery:
        """Return the configuration and the fidelity of an (n,) action."""
        return self.query(self.search_space.decode(action))

    def query(self, values: Mapping[str, Value]) -> CheckedQuery:
        """Return the configuration and the fidelity of values of `search_space`."""
        configuration: dict[str, Value] = {}
        for dimension in self._space.dimensions:
            if dimension.is_active(configuration):
                configuration[dimension.name] = values[dimension.name]
        all_values = {**self.fixed, **values}
        fidelity = Fidelity(int(all_values["round"]), float(all_values[RATE]))
        return self.backend.nearest_query((configuration, fidelity))

    def columns(self, actions: NDArray[np.floating]) -> Columns:
        """Return the (B,) values of all dimensions, fixed ones included, of (B, n) actions."""
        return self.filled(self.search_space.decode_columns(actions), len(actions))

    def columns_at(self, cells: NDArray[np.integer]) -> Columns:
        """Return the values of all dimensions at (B,) cells."""
        if self._pool_cells is not None:
            return {name: column[cells] for name, column in self._pool_cells.columns.items()}
        space = self.search_space
        at = np.unravel_index(cells, space.grid_shape)
        pairs = zip(space.dimensions, at, strict=True)
        return self.filled({d.name: np.array(d.grid)[index] for d, index in pairs}, len(cells))

    def query_at(self, cell: int) -> CheckedQuery:
        """Return the configuration and the fidelity of a cell."""
        columns = self.columns_at(np.array([cell]))
        return self.query({name: column.tolist()[0] for name, column in columns.items()})

    def filled(self, columns: Columns, count: int) -> Columns:
        """Return (B,) columns with the fixed values, moved to the nearest that the backend has."""
        return self.backend.nearest(self._with_fixed(columns, count))

    def _with_fixed(self, columns: Columns, count: int) -> Columns:
        return {**columns, **{name: np.full(count, value) for name, value in self.fixed.items()}}

    def describe(self) -> dict[str, object]:
        """Return the `info` of `reset`: the source of the numbers of an episode."""
        return {
            "task": self.task.name,
            "backend": self.backend.name,
            "fingerprint": self.backend.fingerprint,
            "seeds": list(self.backend.seeds),
            "objective_names": list(self.objective_names),
            **self.backend.describe(),
        }
