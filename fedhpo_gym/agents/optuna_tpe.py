"""The tree-structured Parzen estimator of Optuna."""

from __future__ import annotations

from fedhpo_gym.agents.optuna_search import OptunaSearch
from fedhpo_gym.errors import needing
from fedhpo_gym.seeding import stream

with needing("agent 'optuna-tpe'", "Optuna", "agents", "optuna"):
    import optuna


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
        return tpe_sampler(int(stream(self.seed, "optuna_tpe").integers(2**32)))


def tpe_sampler(seed: int) -> optuna.samplers.TPESampler:
    """Return TPE as Optuna has it by default."""
    return optuna.samplers.TPESampler(seed=seed)
