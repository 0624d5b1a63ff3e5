"""What can be reached in a task of FedHPO-B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import CheckedQuery
from fedhpo_gym.core.checks import shown
from fedhpo_gym.core.errors import InvalidArgumentError, OffGridError
from fedhpo_gym.envs.pool.setup import PoolSetup
from fedhpo_gym.envs.trial.truth import Truth
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import SearchSpace, Value


@dataclass(frozen=True, eq=False, repr=False)
class PoolTruth(Truth):
    """The values of all objectives, of every configuration of a task's pool.

    Of a surrogate they are of every configuration that any task of the space has.
    """

    _setup: PoolSetup  # type: ignore[assignment]
    _asked: NDArray[np.float32]  # type: ignore[assignment]

    @property
    def fidelity(self) -> dict[str, Value]:
        return dict(self._setup.fidelity)

    @property
    def search_space(self) -> SearchSpace:
        return self._setup.data.space

    @cached_property
    def violations(self) -> NDArray[np.float64]:
        return np.zeros(len(self.values))

    def values_at(self, configurations: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        encoded = [self.search_space.encode(one) for one in configurations]
        actions = np.reshape(np.array(encoded, np.float32), (-1, len(self.search_space)))
        if not self._setup.arguments.continuous:
            (away,) = np.nonzero(self._distances(actions).min(axis=1) > 1e-9)  # rounding moves less
            if away.size:
                raise OffGridError(
                    f"`configurations` must be in the pool of {self._setup.names[0]}, got "
                    f"{shown(configurations[away[0]])}; `truth.query(i)` says the i-th"
                )
        return self._values_of(actions)

    def regret_at(
        self, configurations: Sequence[Mapping[str, Value]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        losses = self.values_at(configurations)[:, 0]
        return self.regret(losses), self.relative_regret(losses)

    def regret_of(self, actions: NDArray[np.floating]) -> NDArray[np.float64]:
        return self.regret(self._values_of(np.asarray(actions, np.float32))[:, 0])

    def _query_of(self, row: int) -> CheckedQuery:
        setup = self._setup
        if setup.arguments.continuous:
            configuration = self.search_space.decode(self._asked[row])
        else:
            configuration = setup.data.configuration(setup.tasks[0], row)
        return configuration, Fidelity(**self.fidelity)  # type: ignore[arg-type]

    def under(self, constraints: Any) -> NoReturn:
        raise InvalidArgumentError("`constraints` must be left out: tasks of FedHPO-B have none")

    def _values_of(self, actions: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the (n, M) values of actions: the surrogate's, or of the nearest in the pool."""
        if self._setup.arguments.continuous:
            return _predicted(self._setup, actions)
        return np.asarray(self.values[self._distances(actions).argmin(axis=1)])

    def _distances(self, actions: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the squares of (n, P) distances of actions from the pool."""
        asked = self.search_space.features(actions)
        return np.asarray(((asked[:, None] - self._setup.features[0]) ** 2).sum(axis=2))


def truth_of(setup: PoolSetup) -> PoolTruth:
    """Return the truth of a task.

    Raises:
        InvalidArgumentError: `instances` are several tasks.
    """
    if len(setup.tasks) > 1:
        raise InvalidArgumentError(
            f"`instances` must be one task for its truth to be known, got {len(setup.tasks)}: "
            f"{', '.join(setup.names[:3])}, ..."
        )
    is_exact, actions = not setup.arguments.continuous, setup.actions[0]
    if is_exact:
        values = setup.values[0][:, setup.columns]
    else:
        actions = setup.data.actions.reshape(-1, setup.data.actions.shape[2])
        values = _predicted(setup, actions)
    return PoolTruth(setup.objectives, is_exact, values, len(values), setup, actions)


def _predicted(setup: PoolSetup, actions: NDArray[np.float32]) -> NDArray[np.float64]:
    tasks = np.full(len(actions), setup.tasks[0], np.intp)
    return setup.data.answer(tasks, actions)[0][:, setup.columns]
