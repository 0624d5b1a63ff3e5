"""All numbers of a comparison, computed once from the incumbents of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedhpo_gym.analysis.stats import (
    Band,
    CriticalDifference,
    WinTieLoss,
    area,
    bootstrap_band,
    bootstrap_interval,
    critical_difference,
    holm,
    improvement_interval,
    interquartile_mean,
    mean_ranks,
    nemenyi,
    normalised_regret,
    probability_of_improvement,
    rank_sum,
    relative_overtuning,
    sign_test,
    wilcoxon_holm,
)
from fedhpo_gym.analysis.stats.ranks import Numbers
from fedhpo_gym.analysis.trajectories import Study
from fedhpo_gym.analysis.trajectories.grid import FRACTIONS
from fedhpo_gym.typed import checked_types

BUDGETS = (0.01, 0.1, 0.25, 0.5, 1.0)
"""Shares of the budget at which ranks are tested."""
VALIDATION = "Validation loss of the final incumbent"
FINAL = "Validation loss at the end of the course"
RETURN = "Negative return of the course"
VOLUME = "Hypervolume regret at the end"
REGRET = "Relative regret of the recommended configuration at full fidelity"


@dataclass(frozen=True, eq=False)
class Pair:
    """One agent beside another, the one of better mean rank first.

    Attributes:
        agents: their names.
        problems: wins, ties and losses by means over seeds, a block per problem.
        p_means: Wilcoxon with Holm's correction, on means over seeds.
        p_runs: the same on all runs, a block per problem and seed; None without common seeds.
        p_nemenyi: Nemenyi's test on means over seeds.
        improvement: probability that a run of the first is better on a random problem.
        interval: its 95 % bootstrap interval.
    """

    agents: tuple[str, str]
    problems: WinTieLoss
    p_means: float
    p_runs: float | None
    p_nemenyi: float
    improvement: float
    interval: tuple[float, float]


@dataclass(frozen=True, eq=False)
class AgentNumbers:
    """What sums one agent up; normalised regret is 0 at the best known, 1 at a first trial.

    Attributes:
        rank: mean rank over problems, by means over seeds.
        rank_runs: mean rank over all runs; None without common seeds.
        iqm: interquartile mean of final normalised regret.
        iqm_interval: its 95 % bootstrap interval.
        anytime: mean normalised regret over the logarithm of the budget.
        worst: the problem of highest mean normalised regret, and this regret.
        overtuning: median relative overtuning over runs; None where test losses are unknown.
    """

    rank: float
    rank_runs: float | None
    iqm: float
    iqm_interval: tuple[float, float]
    anytime: float
    worst: tuple[str, float]
    overtuning: float | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """A study in numbers.

    Attributes:
        study: the runs.
        order: agents, the best final mean rank first; of equals, the lower IQM.
        fractions: (T,) shares of the budget.
        ranks: mean rank over problems of each agent, (T,) each, by means over seeds.
        regret: mean normalised regret over problems of each agent, with bootstrap bands.
        finals: final normalised regret of each agent, (S,) for each problem.
        curves: normalised regret of each agent over the budget, (S, T) for each problem.
        means: critical differences on means over seeds.
        runs: critical differences on all runs; None without common seeds.
        means_at: critical differences at each of `BUDGETS`, on means over seeds.
        numbers: what sums each agent up.
        pairs: all pairs.
        alike: of each agent and problem, whether no test tells its runs from those of the best
            agent there, see `alike_on`.
        measure: what the values are, as a sentence begins.
    """

    study: Study
    order: tuple[str, ...]
    fractions: Numbers
    ranks: Mapping[str, Numbers]
    regret: Mapping[str, Band]
    finals: Mapping[str, tuple[Numbers, ...]]
    curves: Mapping[str, tuple[Numbers, ...]]
    means: CriticalDifference
    runs: CriticalDifference | None
    means_at: tuple[CriticalDifference, ...]
    numbers: Mapping[str, AgentNumbers]
    pairs: tuple[Pair, ...]
    alike: Mapping[str, tuple[bool, ...]]
    measure: str

    @property
    def scale(self) -> str:
        """What 0 and 1 of normalised regret are, in words."""
        return SCALES.get(
            self.measure, "0 is the best of any run on the problem and 1 the median first incumbent"
        )


SCALES = {
    REGRET: "0 is the best configuration at full fidelity and 1 the median one",
    RETURN: "0 is the best return of any run on the problem and 1 the worst",
    VOLUME: "0 is the volume of the front that all runs know together and 1 none of it",
}
STATED = (REGRET, VOLUME)
"""What is normalised already, by the problem and not by who else was run."""


@checked_types
def compare(study: Study, measure: str = VALIDATION) -> Comparison:
    """Compute everything that is said of a study; `measure` says what its values are.

    Final values are those of the last incumbents. On means over seeds, a block is a problem, as in
    the paper; on all runs, a problem and a seed that every agent has. Runs of one problem are no
    independent problems, so p-values on all runs speak for these problems only.
    """
    means, runs = study.finals_of_means(), study.finals_of_runs()
    on_means = critical_difference(means, study.agents)
    on_runs = critical_difference(runs, study.agents) if len(runs) else None
    values = [
        [study.values(problem, agent) for agent in study.agents] for problem in study.problems
    ]
    curves, finals = _normalised(study, values, measure)
    numbers = _numbers(study, curves, finals, mean_ranks(means), runs)
    order = tuple(sorted(study.agents, key=lambda a: (numbers[a].rank, numbers[a].iqm, a)))
    by_time = np.array([[curve.mean(axis=0) for curve in row] for row in values])
    over_time = np.stack([mean_ranks(by_time[:, :, t]) for t in range(by_time.shape[2])], axis=1)
    at = [int(np.searchsorted(FRACTIONS, budget)) for budget in BUDGETS]
    return Comparison(
        study=study,
        order=order,
        fractions=FRACTIONS,
        ranks=dict(zip(study.agents, over_time, strict=True)),
        regret={agent: bootstrap_band(curves[agent]) for agent in study.agents},
        finals=finals,
        curves=curves,
        means=on_means,
        runs=on_runs,
        means_at=tuple(
            critical_difference(by_time[:, :, min(t, len(FRACTIONS) - 1)], study.agents) for t in at
        ),
        numbers=numbers,
        pairs=_pairs(study, order, means, runs),
        alike=_alike(study),
        measure=measure,
    )


_Curves = dict[str, tuple[Numbers, ...]]


def _normalised(study: Study, values: list[list[Numbers]], measure: str) -> tuple[_Curves, _Curves]:
    """Return normalised regret over the budget and at the end, of each agent on each problem.

    0 is the lowest final value of any run on the problem; 1 is the median first incumbent, of
    returns the worst. What is relative already stays as it is.
    """
    curves: dict[str, list[Numbers]] = {agent: [] for agent in study.agents}
    finals: dict[str, list[Numbers]] = {agent: [] for agent in study.agents}
    for problem, row in zip(study.problems, values, strict=True):
        best, worst = (0.0, 1.0) if measure in STATED else _ends(study, problem, measure)
        for agent, own in zip(study.agents, row, strict=True):
            curves[agent].append(normalised_regret(own, best, worst))
            finals[agent].append(normalised_regret(study.final(problem, agent), best, worst))
    return {a: tuple(c) for a, c in curves.items()}, {a: tuple(f) for a, f in finals.items()}


def _ends(study: Study, problem: str, measure: str) -> tuple[float, float]:
    """Return what is 0 and what is 1 on a problem whose scale nobody has stated."""
    lines = [line for agent in study.agents for line in study.of(problem, agent)]
    finals = [line.final for line in lines]
    if measure == RETURN:
        return min(finals), max(finals)
    first = float(np.median([line.value[0] for line in lines if len(line.value)]))
    return min(finals), max(min(finals), first)


def alike_on(runs: Mapping[str, Numbers], alpha: float = 0.05) -> dict[str, bool]:
    """Return which agents cannot be told from the one of lowest mean, on one problem.

    Its runs are compared with those of each other agent by the rank-sum test, with Holm's
    correction.

    Args:
        runs: (S,) final values of each agent; lower is better.
        alpha: level of the tests.
    """
    best = min(runs, key=lambda agent: float(runs[agent].mean()))
    others = [agent for agent in runs if agent != best]
    p_values = holm([rank_sum(runs[best], runs[agent]) for agent in others])
    return {best: True} | {
        agent: bool(p >= alpha) for agent, p in zip(others, p_values.tolist(), strict=True)
    }


def _alike(study: Study) -> dict[str, tuple[bool, ...]]:
    rows = [alike_on({a: study.final(p, a) for a in study.agents}) for p in study.problems]
    return {agent: tuple(row[agent] for row in rows) for agent in study.agents}


def _numbers(
    study: Study, curves: _Curves, finals: _Curves, ranked: Numbers, runs: Numbers
) -> dict[str, AgentNumbers]:
    by_runs = mean_ranks(runs).tolist() if len(runs) else [None] * len(study.agents)
    found = {}
    for agent, rank, rank_runs in zip(study.agents, ranked.tolist(), by_runs, strict=True):
        per_problem = [float(final.mean()) for final in finals[agent]]
        worst = int(np.argmax(per_problem))
        heights = [area(curve, np.log(FRACTIONS)).mean() for curve in curves[agent]]
        found[agent] = AgentNumbers(
            rank=rank,
            rank_runs=rank_runs,
            iqm=_iqm(finals[agent]),
            iqm_interval=bootstrap_interval(_iqm, finals[agent]),
            anytime=float(np.mean(heights)),
            worst=(study.problems[worst], per_problem[worst]),
            overtuning=_overtuning(study, agent),
        )
    return found


def _iqm(samples: Sequence[Numbers]) -> float:
    return interquartile_mean(np.concatenate(samples))


def _overtuning(study: Study, agent: str) -> float | None:
    tests = [line.test for problem in study.problems for line in study.of(problem, agent)]
    if any(test is None or not len(test) for test in tests):
        return None
    return float(np.median([relative_overtuning(test) for test in tests if test is not None]))


def _pairs(study: Study, order: tuple[str, ...], means: Numbers, runs: Numbers) -> tuple[Pair, ...]:
    column = {agent: place for place, agent in enumerate(study.agents)}
    by_means, by_range = wilcoxon_holm(means), nemenyi(means)
    by_runs = wilcoxon_holm(runs) if len(runs) else None
    samples = {a: [study.final(p, a) for p in study.problems] for a in order}
    found = []
    for place, first in enumerate(order):
        for second in order[place + 1 :]:
            a, b = column[first], column[second]
            found.append(
                Pair(
                    agents=(first, second),
                    problems=sign_test(means[:, a], means[:, b]),
                    p_means=float(by_means[a, b]),
                    p_runs=None if by_runs is None else float(by_runs[a, b]),
                    p_nemenyi=float(by_range[a, b]),
                    improvement=probability_of_improvement(samples[first], samples[second]),
                    interval=improvement_interval(samples[first], samples[second]),
                )
            )
    return tuple(found)
