"""TPE whose trials may be stopped early: by the median rule, or by Hyperband."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.ladder import ROUND, LadderSearch
from fedhpo_gym.agents.optuna_search import Space, new_study, quiet
from fedhpo_gym.agents.optuna_tpe import tpe_sampler
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.agents.search import Array
from fedhpo_gym.errors import needing
from fedhpo_gym.seeding import stream
from fedhpo_gym.space.dimension import Value

with needing("agents 'tpe-md' and 'tpe-hb'", "Optuna", "agents", "optuna"):
    import optuna


class PrunedTPE(LadderSearch):
    """A configuration climbs the ladder, rung by rung, to the top or until the pruner stops it.

    What is stopped is never asked for again, so that it costs no more. In FedHPO-Bench's code the
    pruner was built but never connected; here it is. Rungs are eta times one another instead of
    every round: each is a trial of the environment. With `freeze_thaw=True` it charges the rounds
    that are new; without, every rung starts from scratch.

    The sampler is Optuna's TPE with its defaults, see `OptunaTPE`; several configurations may be
    in flight.
    """

    def __init__(
        self,
        problem: SearchProblem,
        *,
        low: Value | None = None,
        high: Value | None = None,
        eta: int = 3,
        fidelities: Sequence[str] = ROUND,
    ) -> None:
        """Build the ladder, see `LadderSearch`."""
        super().__init__(problem, low=low, high=high, eta=eta, fidelities=fidelities)
        width = self.action_space.shape[0] - len(self.fidelities)
        self._bounds: Space = {
            f"x{i}": optuna.distributions.FloatDistribution(-1.0, 1.0) for i in range(width)
        }
        sampler = tpe_sampler(int(stream(self.seed, "pruned_tpe").integers(2**32)))
        self._study = new_study(sampler, pruner=self._pruner())
        self._waiting: list[tuple[optuna.trial.Trial, int]] = []
        self._jobs: dict[int, tuple[optuna.trial.Trial, int]] = {}

    @abstractmethod
    def _pruner(self) -> optuna.pruners.BasePruner:
        """Return what decides which trials go on."""

    def _suggest(self, number: int) -> NDArray[Any]:
        with quiet():
            job = self._waiting.pop(0) if self._waiting else (self._study.ask(self._bounds), 0)
        self._jobs[number] = job
        trial, rung = job
        return self.on_rung(np.array([trial.params[name] for name in self._bounds]), rung)

    def _learn(self, number: int, scores: Array) -> None:
        trial, rung = self._jobs.pop(number)
        score = float(scores[0])
        trial.report(score, self._step(rung))
        with quiet():
            if rung + 1 == len(self.rungs):
                self._study.tell(trial, score)
            elif trial.should_prune():
                self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                self._waiting.append((trial, rung + 1))

    def _step(self, rung: int) -> int:
        """Return what Optuna counts a rung as: eta^rung, since rates are no whole numbers."""
        return int(self._eta**rung)


class MedianTPE(PrunedTPE):
    """TPE with median stopping: what is worse than the median of others on its rung, stops.

    Optuna's defaults, as in FedHPO-Bench's Appendix C: the others are configurations that came to
    the top, and until there are five of them, nothing is stopped.
    """

    def _pruner(self) -> optuna.pruners.BasePruner:
        return optuna.pruners.MedianPruner()


class HyperbandTPE(PrunedTPE):
    """TPE with Hyperband as the pruner; eta is 3 (FedHPO-Bench, Appendix C).

    Optuna deals its trials to brackets by a hash of their number, and each bracket has a TPE of its
    own.
    """

    def _pruner(self) -> optuna.pruners.BasePruner:
        return optuna.pruners.HyperbandPruner(
            min_resource=1,
            max_resource=self._step(len(self.rungs) - 1),
            reduction_factor=self._eta,
        )
