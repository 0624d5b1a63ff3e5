"""Agents made of Optuna's samplers and pruners, in ask-and-tell form.

`OptunaSearch` wraps a sampler; `PrunedTPE` also wraps a pruner, and lets configurations climb the
ladder of `LadderSearch`. Each agent has a study in memory, seeded from the agent's seed.
Coordinates are those of the action box, and all of them are floats to the sampler.
"""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.multi_fidelity import LadderSearch
from fedhpo_gym.agents.search import Row, TrialSearch
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import require_optional
from fedhpo_gym.core.seeding import stream

with require_optional("an agent of Optuna", "Optuna", "agents", "optuna"):
    import optuna

STUDY = "fedhpo-gym"
"""Hyperband's brackets follow from the name of the study: it must not be random."""

Space = dict[str, optuna.distributions.BaseDistribution]


class OptunaSearch(TrialSearch):
    """A sampler of Optuna, over the coordinates of the action box.

    Constraints are Optuna's own: its samplers use the total violation of a trial, which is 0 where
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
        self._study = new_study(self._sampler(), len(problem.objectives))
        self._trials: dict[int, optuna.trial.Trial] = {}

    @abstractmethod
    def _sampler(self) -> optuna.samplers.BaseSampler:
        """Return the sampler, seeded."""

    def _begin_with(self, trial_index: int, action: Row) -> NDArray[Any]:
        self._study.enqueue_trial(dict(zip(self._bounds, action.tolist(), strict=True)))
        return self._suggest(trial_index)

    def _suggest(self, trial_index: int) -> NDArray[Any]:
        with quiet():
            trial = self._trials[trial_index] = self._study.ask(self._bounds)
        return np.array([trial.params[name] for name in self._bounds])

    def _learn(self, trial_index: int, scores: Floats) -> None:
        with quiet():
            trial = self._trials.pop(trial_index)
            if trial_index in self.violations:
                trial.set_constraint("violation", self.violations[trial_index])
            self._study.tell(trial, scores.tolist())


def new_study(
    sampler: optuna.samplers.BaseSampler,
    objectives: int = 1,
    pruner: optuna.pruners.BasePruner | None = None,
) -> optuna.study.Study:
    """Return a study in memory that maximises, with a name of its own, without a message."""
    with quiet():
        return optuna.create_study(
            sampler=sampler, directions=["maximize"] * objectives, study_name=STUDY, pruner=pruner
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


class OptunaTPE(OptunaSearch):
    """TPE (Bergstra et al., 2011): model the good and the bad trials apart, maximise their ratio.

    Differs from the paper: the implementation and all its defaults are those of the Optuna that is
    installed, since that is what its name promises. Those of version 5 are 10 random trials to
    begin with, 24 candidates per ask, coordinates that are modelled together, and trials in flight
    that count as bad ones. The coordinates are those of the action box, which already carries
    logarithmic scales and grids.

    Scores of trials, or else rewards, must be plain numbers; they are maximised.
    """

    acts_on = ("trial", "round")

    def _sampler(self) -> optuna.samplers.BaseSampler:
        return optuna.samplers.TPESampler(seed=int(stream(self.seed, "optuna_tpe").integers(2**32)))


class NSGA2(OptunaSearch):
    """NSGA-II (Deb et al., 2002): parents by rank of dominance, then by distance in the crowd.

    Optuna's: uniform crossover with probability 0.9, and a coordinate is drawn anew with
    probability 1/n. The population is 20 instead of 50: an episode has few trials.
    """

    rewards = "vector"

    def _sampler(self) -> optuna.samplers.BaseSampler:
        seed = int(stream(self.seed, "nsga2").integers(2**31))
        return optuna.samplers.NSGAIISampler(population_size=20, seed=seed)


class MOTPE(OptunaSearch):
    """TPE on many objectives (Ozaki et al., 2020): good trials are those of the best fronts.

    Optuna's with its defaults. Ties within a front are broken by hypervolume, as in the paper.
    """

    rewards = "vector"

    def _sampler(self) -> optuna.samplers.BaseSampler:
        return optuna.samplers.TPESampler(seed=int(stream(self.seed, "motpe").integers(2**31)))


class PrunedTPE(LadderSearch):
    """A configuration climbs the ladder, rung by rung, to the top or until the pruner stops it.

    A stopped configuration is never tried again, so that it costs no more. In FedHPO-Bench's code
    the pruner was built but never connected; here it is. Rungs are eta times one another instead of
    every round: each is a trial of the environment. With `freeze_thaw=True` it charges the rounds
    that are new; without, every rung starts from scratch.

    The sampler is Optuna's TPE with its defaults; several configurations may be in flight.
    """

    def _begin(self) -> None:
        self._bounds: Space = {
            f"x{i}": optuna.distributions.FloatDistribution(-1.0, 1.0) for i in range(self.width)
        }
        seed = int(stream(self.seed, "pruned_tpe").integers(2**32))
        self._study = new_study(optuna.samplers.TPESampler(seed=seed), pruner=self._pruner())
        self._waiting: list[tuple[optuna.trial.Trial, int]] = []
        self._jobs: dict[int, tuple[optuna.trial.Trial, int]] = {}

    @abstractmethod
    def _pruner(self) -> optuna.pruners.BasePruner:
        """Return the pruner, which stops trials."""

    def _suggest(self, trial_index: int) -> NDArray[Any]:
        with quiet():
            if not self._waiting and (start := self.next_given()) is not None:
                self._study.enqueue_trial(dict(zip(self._bounds, start.tolist(), strict=True)))
            job = self._waiting.pop(0) if self._waiting else (self._study.ask(self._bounds), 0)
        self._jobs[trial_index] = job
        trial, rung = job
        return self.on_rung(np.array([trial.params[name] for name in self._bounds]), rung)

    def _learn(self, trial_index: int, scores: Floats) -> None:
        trial, rung = self._jobs.pop(trial_index)
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
        """Return the step of a rung for Optuna: eta^rung, since rates are not integers."""
        return int(self._eta**rung)


class MedianTPE(PrunedTPE):
    """TPE with median stopping: a configuration worse than its rung's median goes no further.

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
            min_resource=1, max_resource=self._step(len(self.rungs) - 1), reduction_factor=self._eta
        )
