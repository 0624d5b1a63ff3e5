"""The trials of an episode and the best among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import Value


@dataclass(frozen=True, eq=False)
class Trial:
    """One function evaluation of an episode.

    Attributes:
        number: 1 for the first trial.
        configuration: what was tried.
        fidelity: at which fidelity.
        action: (n,) the action.
        values: value of each objective.
        error: unclipped error of the first objective; lower is better.
        elapsed_s: simulated seconds since reset, this trial included.
    """

    number: int
    configuration: Mapping[str, Value]
    fidelity: Fidelity
    action: NDArray[np.float32]
    values: Mapping[str, float]
    error: float
    elapsed_s: float


@dataclass
class History:
    """The trials since reset.

    Attributes:
        trials: in order.
        best: position of the incumbent; the first of equals.
    """

    trials: list[Trial] = field(default_factory=list)
    best: int = 0

    def add(self, trial: Trial) -> None:
        """Append a trial; it becomes the incumbent if its error is strictly lower."""
        self.trials.append(trial)
        if trial.error < self.trials[self.best].error:
            self.best = len(self.trials) - 1

    @property
    def incumbent(self) -> Trial:
        """The best trial so far."""
        return self.trials[self.best]

    def incumbents(self) -> list[Trial]:
        """The incumbent after each trial."""
        best: list[Trial] = []
        for trial in self.trials:
            best.append(trial if not best or trial.error < best[-1].error else best[-1])
        return best
