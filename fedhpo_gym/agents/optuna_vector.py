"""Many objectives with Optuna: an evolution of fronts, and TPE on them."""

from __future__ import annotations

from fedhpo_gym.agents.optuna_search import OptunaSearch
from fedhpo_gym.agents.optuna_tpe import tpe_sampler
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.checks import as_integer
from fedhpo_gym.errors import InvalidArgumentError, needing
from fedhpo_gym.seeding import stream

with needing("agents 'nsga2' and 'motpe'", "Optuna", "agents", "optuna"):
    import optuna


class NSGA2(OptunaSearch):
    """NSGA-II (Deb et al., 2002): parents by rank of dominance, then by distance in the crowd.

    Optuna's: uniform crossover with probability 0.9, and a coordinate is drawn anew with
    probability 1/n. The population is 20 instead of 50: an episode has few trials.

    Args:
        problem: of vector rewards.
        population: members of a generation.

    Raises:
        InvalidArgumentError: `population` is no integer of at least 2.
    """

    rewards = "vector"

    def __init__(self, problem: SearchProblem, *, population: int = 20) -> None:
        number = as_integer(population)
        if number is None or number < 2:
            raise InvalidArgumentError(
                f"`population` must be an integer of at least 2, got {population!r}"
            )
        self._population = number
        super().__init__(problem)

    def _sampler(self) -> optuna.samplers.BaseSampler:
        seed = int(stream(self.seed, "nsga2").integers(2**31))
        return optuna.samplers.NSGAIISampler(population_size=self._population, seed=seed)


class MOTPE(OptunaSearch):
    """TPE on many objectives (Ozaki et al., 2020): good trials are those of the best fronts.

    Optuna's with its defaults, see `OptunaTPE`. Ties within a front are broken by hypervolume, as
    in the paper.
    """

    rewards = "vector"

    def _sampler(self) -> optuna.samplers.BaseSampler:
        return tpe_sampler(int(stream(self.seed, "motpe").integers(2**31)))
