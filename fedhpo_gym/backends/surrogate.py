"""Prediction by a model fitted on a table."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.base import Backend
from fedhpo_gym.core.identity import BUILT_TABLE
from fedhpo_gym.evaluation.records import ENTRIES, Entries, Evaluations
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored.surrogate import open_preferred, why_refused
from fedhpo_gym.stored.table import seed_rows
from fedhpo_gym.tasks import Task


class SurrogateModel(Backend):
    """Answers any point of the search space, at the task's rounds."""

    name = "surrogate"

    def __init__(self, task: Task, seed: int | None = None) -> None:
        surrogate = open_preferred(task.surrogate_identities)
        space = task.space if task.table == BUILT_TABLE else surrogate.space
        super().__init__(task, seed, space, _known(task, surrogate.fidelity_space))
        self._rows = seed_rows(self.seeds, surrogate.seeds, f"surrogate {surrogate.name}")
        self._surrogate = surrogate

    @property
    def fingerprint(self) -> str:
        return f"surrogate-sha256:{self._surrogate.digest}"

    @property
    def num_samples(self) -> NDArray[np.int64]:
        return self._surrogate.num_samples[self._rows]

    @property
    def former_fingerprints(self) -> tuple[str, ...]:
        """Fingerprints of older versions: the checksum of the arrays alone."""
        return (f"surrogate-sha256:{self._surrogate.sha256}",)

    @property
    def card(self) -> Mapping[str, Any]:
        return self._surrogate.card

    def why_refused(self, objective: str) -> str:
        """Return which held-out figures are not good enough (`stored.surrogate`)."""
        if lack := super().why_refused(objective):
            return lack
        entry = self.task.objectives.get(objective)
        if entry is None or not entry.reads_clients:  # costs and privacy follow from the query
            return ""
        reason = why_refused(self._surrogate.card, objective)
        return f"surrogate {self._surrogate.name}: {reason}" if reason else ""

    def check_fidelity(self, values: Mapping[str, object]) -> dict[str, Value]:
        return super().check_fidelity(self._surrogate.check_fidelity(values))

    def look_up(self, columns: Mapping[str, NDArray[Any]], reads: Entries = ENTRIES) -> Evaluations:
        return self._surrogate.look_up(columns, self.seeds, reads)


def _known(task: Task, fitted: SearchSpace) -> SearchSpace:
    """Return the fidelities of a task that a surrogate knows."""
    requested, fitted_rounds = task.asked_fidelity_space(), fitted["round"]
    rounds = tuple(
        r for r in map(int, requested["round"].grid) if fitted_rounds.low <= r <= fitted_rounds.high
    )
    if not rounds:
        return fitted
    rounds_dimension = replace(
        requested["round"], low=float(rounds[0]), high=float(rounds[-1]), values=rounds
    )
    return SearchSpace((rounds_dimension, fitted["client_sample_rate"]))
