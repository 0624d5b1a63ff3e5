"""What Wang et al. (2022) print of optimizers, beside what `optimizers_study.py` found."""

from __future__ import annotations

from collections.abc import Mapping

from fedhpo_gym.analysis.comparison import Comparison
from fedhpo_gym.evaluation.stats import sign_test
from studies import table

PAPER_PAIRS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("bo-gp", "random"): ("13/0/7", "0.0637"),
    ("bo-rf", "random"): ("12/0/8", "0.2161"),
    ("bo-kde", "random"): ("7/0/13", "0.1649"),
    ("de", "random"): ("11/0/9", "0.7561"),
    ("bohb", "hyperband"): ("7/0/13", "0.4523"),
    ("dehb", "hyperband"): ("9/0/11", "0.9854"),
    ("tpe-md", "hyperband"): ("9/0/11", "0.2942"),
    ("tpe-hb", "hyperband"): ("9/0/11", "0.2454"),
    ("hyperband", "random"): ("13/0/7", "0.1139"),
    ("dehb", "de"): ("13/0/7", "0.2942"),
    ("bohb", "bo-kde"): ("16/0/4", "0.0106"),
}
"""Tables 2 and 3 of Wang et al. (2022): wins, ties and losses of 20 problems, and p-values."""
PAPER_FINALS: Mapping[str, Mapping[str, float]] = {
    "CreditG": dict(random=0.6821, **{"bo-gp": 0.6308, "bo-rf": 0.6382, "bo-kde": 0.6385}, de=0.667,
                    hyperband=0.6492, bohb=0.6461, dehb=0.6145),
    "Vehicle": dict(random=1.6297, **{"bo-gp": 1.7288, "bo-rf": 1.6116, "bo-kde": 1.7142},
                    de=1.6062, hyperband=1.5765, bohb=1.5634, dehb=1.4755),
    "KC1": dict(random=1.8892, **{"bo-gp": 1.7561, "bo-rf": 1.7186, "bo-kde": 2.4271}, de=1.7519,
                hyperband=3.948, bohb=1.6384, dehb=3.1183),
    "BloodTransfusion": dict(random=0.548, **{"bo-gp": 0.5483, "bo-rf": 0.5482, "bo-kde": 0.5487},
                             de=0.5481, hyperband=0.5504, bohb=0.5505, dehb=0.5516),
    "Australian": dict(random=0.5294, **{"bo-gp": 0.5291, "bo-rf": 0.5295, "bo-kde": 0.5289},
                       de=0.5291, hyperband=0.5292, bohb=0.529, dehb=0.5293),
    "Car": dict(random=0.4733, **{"bo-gp": 0.464, "bo-rf": 0.4722, "bo-kde": 0.4843}, de=0.4971,
                hyperband=0.4678, bohb=0.4747, dehb=0.4707),
    "Segment": dict(random=0.4581, **{"bo-gp": 0.4481, "bo-rf": 0.4505, "bo-kde": 0.4731},
                    de=0.4587, hyperband=0.4478, bohb=0.4446, dehb=0.4304),
}  # fmt: skip
"""Means of its table 13, logistic regression rows."""


def signs(found: Mapping[str, Comparison]) -> str:
    """Return the pairs of tables 2 and 3 of the paper, and what they are here."""
    rows = []
    known = {*next(iter(found.values())).study.agents}
    for pair, (counts, p_value) in PAPER_PAIRS.items():
        if not known.issuperset(pair):
            continue
        row = [" against ".join(pair), f"{counts} ({p_value})"]
        for one in found.values():
            agents = list(one.study.agents)
            means = one.study.finals_of_means()
            tested = sign_test(*(means[:, agents.index(agent)] for agent in pair))
            row.append(f"{tested} ({tested.p_value:.4f})")
        rows.append(row)
    return table(["win/tie/loss (p)", "paper", *found], rows)


def finals(found: Comparison) -> str:
    """Return final losses on the paper's tables beside those that it prints."""
    agents = [one for one in next(iter(PAPER_FINALS.values())) if one in found.study.agents]
    rows = []
    for problem in found.study.problems:
        name = problem.removeprefix("FedHPO-LR-").removesuffix("-v0")
        if name not in PAPER_FINALS:
            continue
        printed = PAPER_FINALS[name]
        ours = [found.study.final(problem, agent) for agent in agents]
        rows.append([f"{name}, paper", *(f"{printed[agent]:.4f}" for agent in agents)])
        rows.append([f"{name}, here", *(f"{v.mean():.4f} ± {v.std(ddof=1):.4f}" for v in ours)])
    return table(["validation loss", *agents], rows)
