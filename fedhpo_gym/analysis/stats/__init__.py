"""What comparisons of agents rest on: pure functions of arrays, with numpy alone.

Lower values are better throughout. Names of axes: P problems, A agents, S seeds, T times, B blocks
(problems, or runs that share problem and seed).
"""

from fedhpo_gym.analysis.stats.hypotheses import (
    CriticalDifference,
    Friedman,
    WinTieLoss,
    critical_difference,
    friedman,
    holm,
    nemenyi,
    rank_sum,
    sign_test,
    wilcoxon,
    wilcoxon_holm,
)
from fedhpo_gym.analysis.stats.summaries import (
    Band,
    area,
    bootstrap_band,
    bootstrap_interval,
    data_profile,
    ecdf,
    improvement_interval,
    interquartile_mean,
    mean_ranks,
    normalised_regret,
    overtuning,
    probability_of_improvement,
    ranks,
    relative_overtuning,
)

__all__ = [
    "Band",
    "CriticalDifference",
    "Friedman",
    "WinTieLoss",
    "area",
    "bootstrap_band",
    "bootstrap_interval",
    "critical_difference",
    "data_profile",
    "ecdf",
    "friedman",
    "holm",
    "improvement_interval",
    "interquartile_mean",
    "mean_ranks",
    "nemenyi",
    "normalised_regret",
    "overtuning",
    "probability_of_improvement",
    "rank_sum",
    "ranks",
    "relative_overtuning",
    "sign_test",
    "wilcoxon",
    "wilcoxon_holm",
]
