"""What can be reached in a task of FedHPO-B, or in a generated one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import CheckedQuery
from fedhpo_gym.core.checks import shown
from fedhpo_gym.core.errors import InvalidArgumentError, OffGridError
from fedhpo_gym.envs.meta.setup import MetaSetup
from fedhpo_gym.envs.trial.truth import Truth
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import SearchSpace, Value


@dataclass(frozen=True, eq=False, repr=False)
class MetaTruth(Truth):
    """The values of all objectives, of every configuration of a task's pool.

    Of a surrogate they are of every configuration that any task of the space has, and of a
    generated task of those where its optimum was searched, and of draws that are no better.
    """

    _setup: MetaSetup  # type: ignore[assignment]
    _asked: NDArray[np.float32]  # type: ignore[assignment]

    @property
    def search_space(self) -> SearchSpace:
        return self._setup.data.space

    def values_at(self, configurations: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        encoded = [self.search_space.encode(one) for one in configurations]
        actions = np.reshape(np.array(encoded, np.float32), (-1, len(self.search_space)))
        if self.exact:
            (away,) = np.nonzero(self._distances(actions).min(axis=1) > 1e-9)  # rounding moves less
            if away.size:
                raise OffGridError(
                    f"`configurations` must be in the pool of {self._setup.instances[0]}, got "
                    f"{shown(configurations[away[0]])}; `truth.query(i)` says the i-th"
                )
        return self._values_of(actions)

    def regret_of(self, actions: NDArray[np.floating]) -> NDArray[np.float64]:
        return self._regret(self._values_of(np.asarray(actions, np.float32)))

    def _query_of(self, row: int) -> CheckedQuery:
        configuration = self._setup.configuration(self._asked, row)
        return configuration, Fidelity(**self.fidelity)  # type: ignore[arg-type]

    def under(self, constraints: Any) -> NoReturn:
        raise InvalidArgumentError("`constraints` must be left out: these tasks have none")

    def _values_of(self, actions: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the (n, M) values of actions: the surrogate's, or of the nearest in the pool."""
        if not self.exact:
            return self._setup.predicted(actions)
        return np.asarray(self.values[self._distances(actions).argmin(axis=1)])

    def _distances(self, actions: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the squares of (n, P) distances of actions from the pool."""
        asked, known = map(self.search_space.features, (actions, self._asked))
        return np.asarray(((asked[:, None] - known) ** 2).sum(axis=2))


def truth_of(setup: MetaSetup) -> MetaTruth:
    """Return the truth of a task.

    Raises:
        InvalidArgumentError: `instances` are several tasks.
    """
    if len(setup.instances) > 1:
        raise InvalidArgumentError(
            f"`instances` must be one task for its truth to be known, got {len(setup.instances)}: "
            f"{', '.join(map(str, setup.instances[:3]))}, ..."
        )
    actions, values = setup.lattice()
    return MetaTruth(setup.objectives, setup.exact, values, len(values), setup, actions)
