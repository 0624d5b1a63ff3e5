"""What agents made of Optuna's samplers share, in ask-and-tell form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.agents.search import Array, TrialSearch
from fedhpo_gym.errors import needing

with needing("an agent of Optuna", "Optuna", "agents", "optuna"):
    import optuna

STUDY = "fedhpo-gym"
"""Hyperband's brackets follow from the name of the study: it must not be random."""

Space = dict[str, optuna.distributions.BaseDistribution]


class OptunaSearch(TrialSearch):
    """A sampler of Optuna, over the coordinates of the action box.

    Constraints are Optuna's own: its samplers hear the total violation of a trial, which is 0 where
    it is feasible, beside scores without penalties.

    The coordinates already carry logarithmic scales and grids, so all are floats to the sampler.
    """

    takes_constraints = True

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        box = self.action_space
        self._bounds: Space = {
            f"x{i}": optuna.distributions.FloatDistribution(float(low), float(high))
            for i, (low, high) in enumerate(zip(box.low, box.high, strict=True))
        }
        self._study = new_study(self._sampler(), self._directions())
        self._trials: dict[int, optuna.trial.Trial] = {}

    @abstractmethod
    def _sampler(self) -> optuna.samplers.BaseSampler:
        """Return the sampler, seeded."""

    def _directions(self) -> Sequence[Literal["maximize"]]:
        return ["maximize"] * len(self.problem.objectives)

    def _suggest(self, number: int) -> NDArray[Any]:
        with quiet():
            trial = self._trials[number] = self._study.ask(self._bounds)
        return np.array([trial.params[name] for name in self._bounds])

    def _learn(self, number: int, scores: Array) -> None:
        with quiet():
            trial = self._trials.pop(number)
            if number in self.violations:
                trial.set_constraint("violation", self.violations[number])
            self._study.tell(trial, scores.tolist())


def new_study(
    sampler: optuna.samplers.BaseSampler,
    directions: Sequence[Literal["maximize"]] = ("maximize",),
    pruner: optuna.pruners.BasePruner | None = None,
) -> optuna.study.Study:
    """Return a study in memory, with a name of its own, without a message."""
    with quiet():
        return optuna.create_study(
            sampler=sampler, directions=list(directions), study_name=STUDY, pruner=pruner
        )


@contextmanager
def quiet(level: int = optuna.logging.WARNING) -> Iterator[None]:
    """Hold back Optuna's messages below a level, and leave its log level as it was."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, level))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
