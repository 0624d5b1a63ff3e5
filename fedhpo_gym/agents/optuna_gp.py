"""Bayesian optimization with a Gaussian process, by Optuna."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.optuna_agents import Space, new_study, quiet
from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.core.errors import require_optional
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.space import Dimension

with require_optional("agent 'bo-gp'", "Optuna", "agents", "optuna"):
    import optuna
with require_optional("agent 'bo-gp'", "PyTorch", "bo", "torch"):
    import torch  # noqa: F401 - Optuna imports it late, and says less


class GaussianProcessSearch(TrialSearch):
    """Expected improvement of a Gaussian process with a Matérn kernel (Jones et al., 1998).

    As in FedHPO-Bench's Appendix C: Matérn (5/2, a length scale per coordinate) and EI, here its
    logarithm. A Hamming kernel has nothing to do: every hyperparameter is ordered. Grids are
    integers to the model. Ten random trials come first, and observations have noise; both are
    Optuna's defaults. Every suggestion fits the model from the told trials alone. Trials in flight
    are left out.
    """

    replays = False

    def __init__(self, problem: SearchProblem, *, initial: int = 10) -> None:
        super().__init__(problem)
        self._initial = initial
        self._dimensions = problem.search_space.dimensions
        self._space: Space = {f"x{i}": _distribution(d) for i, d in enumerate(self._dimensions)}

    def _suggest(self, trial_index: int) -> NDArray[Any]:
        rng = stream(self.seed, "gaussian_process", trial_index)
        if len(self.results) < self._initial:
            return self.from_unit(rng.random(self.action_space.shape[0]))
        sampler = optuna.samplers.GPSampler(
            seed=int(rng.integers(2**31)), n_startup_trials=self._initial
        )
        actions, scores = self.reported()
        study = new_study(sampler)
        # It would warn that a package that speeds it up is missing.
        with quiet(optuna.logging.ERROR):
            for unit, score in zip(self.to_unit(actions), scores[:, 0].tolist(), strict=True):
                values = (_cell(d, u) for d, u in zip(self._dimensions, unit, strict=True))
                study.add_trial(
                    optuna.trial.create_trial(
                        params=dict(zip(self._space, values, strict=True)),
                        distributions=self._space,
                        value=score,
                    )
                )
            params = study.ask(self._space).params
        coordinates = [(d.values, params[f"x{i}"]) for i, d in enumerate(self._dimensions)]
        units = [x if values is None else (x + 0.5) / len(values) for values, x in coordinates]
        return self.from_unit(np.array(units))


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    if dimension.values is None:
        return optuna.distributions.FloatDistribution(0.0, 1.0)
    if dimension.kind == "category":
        return optuna.distributions.CategoricalDistribution(range(len(dimension.values)))
    return optuna.distributions.IntDistribution(0, len(dimension.values) - 1)


def _cell(dimension: Dimension, unit: float) -> float | int:
    if dimension.values is None:
        return float(min(max(unit, 0.0), 1.0))
    return min(int(unit * len(dimension.values)), len(dimension.values) - 1)
