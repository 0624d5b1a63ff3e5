"""Which algorithm is best once its tuning is charged (Prabhu Teja S et al., ICML 2020).

An algorithm is its update rule and the priors of its hyperparameters. A *run library* holds
finished runs under configurations drawn from these priors. From it, what a random search of any
budget finds is computed without another run. The algorithms may be optimizers of one model, as in
the paper, or algorithms of federated learning. Losses throughout: lower is better.
"""

from fedhpo_gym.analysis.tuning_cost.expected import (
    expected_best,
    expected_curve,
    probability_of_best,
    selection,
    simulate,
    simulate_by_cost,
)
from fedhpo_gym.analysis.tuning_cost.library import RunLibrary, Runs, read_library
from fedhpo_gym.analysis.tuning_cost.priors import Prior, calibrate, near_best
from fedhpo_gym.analysis.tuning_cost.stopping import epochs_run
from fedhpo_gym.analysis.tuning_cost.tunability import (
    WEIGHTS,
    alpha_tunability,
    omega_tunability,
    relative_performance,
)

__all__ = [
    "WEIGHTS",
    "Prior",
    "RunLibrary",
    "Runs",
    "alpha_tunability",
    "calibrate",
    "epochs_run",
    "expected_best",
    "expected_curve",
    "near_best",
    "omega_tunability",
    "probability_of_best",
    "read_library",
    "relative_performance",
    "selection",
    "simulate",
    "simulate_by_cost",
]
