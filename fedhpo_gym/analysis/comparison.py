"""Agents compared over problems: all numbers, a verdict in sentences, and tables.

`fedhpo_gym.analysis.report` calls `compare_agents` for every study with several agents. Each run is
reduced to normalised regret over shares of the budget, where 0 is the best known value and 1 a
first trial. Tests use two kinds of blocks: means over seeds of problems, which speak about further
problems, and all runs, which do not. Names of axes: P problems, A agents, S seeds, T times.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedhpo_gym.analysis.page import Cell, ReportTable, number_cell
from fedhpo_gym.analysis.problems import Summary
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.evaluation import stats
from fedhpo_gym.records.incumbents import FRACTIONS, Study, final_range

BUDGETS = (0.01, 0.1, 0.25, 0.5, 1.0)
"""Shares of the budget at which ranks are tested."""
BUDGET_INDICES = [min(int(np.searchsorted(FRACTIONS, one)), len(FRACTIONS) - 1) for one in BUDGETS]
"""Indices of these shares in `FRACTIONS`."""
VALIDATION = "Validation loss of the final incumbent, as it was tried"
FINAL = "Validation loss at the end of the course"
RETURN = "Negative return of the course (lower is better)"
VOLUME = "Hypervolume regret at the end"
REGRET = "Relative regret of the recommended configuration at full fidelity"


@dataclass(frozen=True, eq=False)
class Pair:
    """One agent beside another, the one of better mean rank first.

    Attributes:
        problems: wins, ties and losses by means over seeds, a block per problem.
        p_means: Wilcoxon with Holm's correction, on means over seeds.
        p_runs: the same on all runs, a block per problem and seed; None without common seeds.
        p_nemenyi: Nemenyi's test on means over seeds.
        improvement: probability that a run of the first is better on a random problem.
        interval: its 95 % bootstrap interval over seeds; None where both have one run a problem.
    """

    agents: tuple[str, str]
    problems: stats.WinTieLoss
    p_means: float
    p_runs: float | None
    p_nemenyi: float
    improvement: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, eq=False)
class AgentSummary:
    """Summary statistics of an agent; normalised regret is 0 at the best known, 1 at a first trial.

    Attributes:
        rank: mean over problems, by means over seeds.
        rank_runs: mean over all runs; None without common seeds.
        iqm: interquartile mean of final normalised regret.
        iqm_interval: its 95 % bootstrap interval over seeds; None of one run a problem.
        anytime: mean normalised regret over the logarithm of the budget.
        worst: the problem of highest mean normalised regret, and this regret.
        overtuning: median relative overtuning over runs; None where test losses are unknown.
    """

    rank: float
    rank_runs: float | None
    iqm: float
    iqm_interval: tuple[float, float] | None
    anytime: float
    worst: tuple[str, float]
    overtuning: float | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """A study in numbers.

    Attributes:
        by_runs: whether only tests on all runs have power, so that ranks and order are over runs.
        order: agents, the best shown rank first; of equals, the lower IQM.
        fractions: (T,) shares of the budget.
        ranks: mean rank over problems of each agent, (T,) each, by means over seeds.
        regret: mean normalised regret over problems of each agent.
        finals: final normalised regret of each agent, (S,) for each problem.
        curves: normalised regret of each agent over the budget, (S, T) for each problem.
        means: on means over seeds.
        runs: on all runs; None without common seeds.
        means_at: at each of `BUDGETS`, on means over seeds.
        alike: per agent and problem, whether its runs are statistically tied with the best agent's.
        measure: name of the values, which can begin a sentence.
    """

    study: Study
    by_runs: bool
    order: tuple[str, ...]
    fractions: Floats
    ranks: Mapping[str, Floats]
    regret: Mapping[str, stats.Band]
    finals: Mapping[str, tuple[Floats, ...]]
    curves: Mapping[str, tuple[Floats, ...]]
    means: stats.CriticalDifference
    runs: stats.CriticalDifference | None
    means_at: tuple[stats.CriticalDifference, ...]
    numbers: Mapping[str, AgentSummary]
    pairs: tuple[Pair, ...]
    alike: Mapping[str, tuple[bool, ...]]
    measure: str

    def rank(self, agent: str) -> float:
        """Return the mean rank by which agents are ordered."""
        summary = self.numbers[agent]
        return summary.rank if summary.rank_runs is None or not self.by_runs else summary.rank_runs

    @property
    def has_seeds(self) -> bool:
        """Whether there is more than one run of any agent on any problem."""
        return any(map(_has_repeats, self.finals.values()))

    @property
    def scale(self) -> str:
        """What 0 and 1 of normalised regret are, in words."""
        return SCALES.get(
            self.measure, "0 is the best of any run on the problem and 1 the median first incumbent"
        )


SCALES = {
    REGRET: "0 is the best configuration at full fidelity and 1 the median one",
    RETURN: "0 is the best return of any run on the problem and 1 the worst",
    VOLUME: "0 is the volume of the true front, where it is known, else of that of all runs here, "
    "and 1 is none of it",
}
LUCK = " Each agent has one run a problem: the luck of a single seed is in every number."
STATED = (REGRET, VOLUME)
"""Measures that are normalised by the problem, whichever agents were run."""


@validate_call
def compare_agents(study: Study, measure: str = VALIDATION) -> Comparison:
    """Compute the comparison of a study; `measure` names its values.

    On means over seeds, a block is a problem, as in the paper; on all runs, a problem and a seed
    that every agent has. Wilcoxon's test ranks differences of several problems, so each is in units
    of the problem's normalised regret.
    """
    limits = [_regret_limits(study, problem, measure) for problem in study.problems]
    spans = np.array([worst - best or 1.0 for best, worst in limits])[:, None]
    seeds = [len(study.paired_seeds(problem)) for problem in study.problems]
    means = study.finals_of_means() / spans
    runs = study.finals_of_runs() / np.repeat(spans, seeds, axis=0)
    on_means = stats.critical_difference(means, study.agents)
    on_runs = stats.critical_difference(runs, study.agents) if len(runs) else None
    values = {(p, a): study.values(p, a) for p in study.problems for a in study.agents}
    curves = _normalise(study, lambda *cell: values[cell], limits)
    finals = _normalise(study, study.final, limits)
    numbers = _summarise_agents(study, curves, finals, stats.mean_ranks(means), runs)
    num_pairs = math.comb(len(study.agents), 2)
    by_runs = (
        _lacks_power(num_pairs, len(means))
        and bool(len(runs))
        and not _lacks_power(num_pairs, len(runs))
    )
    shown_ranks = {
        a: summary.rank_runs if by_runs else summary.rank for a, summary in numbers.items()
    }
    order = tuple(sorted(study.agents, key=lambda a: (shown_ranks[a] or 0.0, numbers[a].iqm, a)))
    by_time = np.array([[values[p, a].mean(axis=0) for a in study.agents] for p in study.problems])
    over_time = np.stack(
        [stats.mean_ranks(by_time[:, :, t]) for t in range(by_time.shape[2])], axis=1
    )
    alike = [tied_with_best({a: study.final(p, a) for a in study.agents}) for p in study.problems]
    return Comparison(
        study=study,
        by_runs=by_runs,
        order=order,
        fractions=FRACTIONS,
        ranks=dict(zip(study.agents, over_time, strict=True)),
        regret={agent: stats.bootstrap_band(curves[agent]) for agent in study.agents},
        finals=finals,
        curves=curves,
        means=on_means,
        runs=on_runs,
        means_at=tuple(
            stats.critical_difference(by_time[:, :, index], study.agents)
            for index in BUDGET_INDICES
        ),
        numbers=numbers,
        pairs=_compare_pairs(study, order, means, runs),
        alike={agent: tuple(row[agent] for row in alike) for agent in study.agents},
        measure=measure,
    )


_PerAgent = dict[str, tuple[Floats, ...]]


def _normalise(
    study: Study, values_of: Callable[[str, str], Floats], limits: Sequence[tuple[float, float]]
) -> _PerAgent:
    """Return normalised regret of each agent on each problem, of which `sides` are 0 and 1."""
    pairs = [*zip(study.problems, limits, strict=True)]
    return {
        a: tuple(stats.normalised_regret(values_of(p, a), *limit) for p, limit in pairs)
        for a in study.agents
    }


def _regret_limits(study: Study, problem: str, measure: str) -> tuple[float, float]:
    """Return the values of a problem at which normalised regret is 0 and 1."""
    if measure in STATED:
        return 0.0, 1.0
    lines = [line for agent in study.agents for line in study.of(problem, agent)]
    if measure == RETURN:
        finals = [line.final for line in lines]
        return min(finals), max(finals)
    best, first = final_range(lines)
    return best, max(best, first)


def tied_with_best(runs: Mapping[str, Floats], alpha: float = 0.05) -> dict[str, bool]:
    """Return which agents no rank-sum test (with Holm) separates from the one of lowest mean."""
    best = min(runs, key=lambda agent: float(runs[agent].mean()))
    others = [agent for agent in runs if agent != best]
    p_values = stats.holm([stats.rank_sum(runs[best], runs[agent]) for agent in others])
    return {best: True} | {
        agent: bool(p >= alpha) for agent, p in zip(others, p_values.tolist(), strict=True)
    }


def _summarise_agents(
    study: Study, curves: _PerAgent, finals: _PerAgent, mean_ranks: Floats, runs: Floats
) -> dict[str, AgentSummary]:
    by_runs = stats.mean_ranks(runs).tolist() if len(runs) else [None] * len(study.agents)
    summaries = {}
    for agent, rank, rank_runs in zip(study.agents, mean_ranks.tolist(), by_runs, strict=True):
        samples = finals[agent]
        per_problem = [float(final.mean()) for final in samples]
        worst = int(np.argmax(per_problem))
        areas = [stats.area(curve, np.log(FRACTIONS)).mean() for curve in curves[agent]]
        summaries[agent] = AgentSummary(
            rank=rank,
            rank_runs=rank_runs,
            iqm=_iqm(samples),
            iqm_interval=stats.bootstrap_interval(_iqm, samples) if _has_repeats(samples) else None,
            anytime=float(np.mean(areas)),
            worst=(study.problems[worst], per_problem[worst]),
            overtuning=_median_overtuning(study, agent),
        )
    return summaries


def _has_repeats(samples: Sequence[Floats]) -> bool:
    """Return whether there is more than one run of any problem."""
    return any(len(sample) > 1 for sample in samples)


def _iqm(samples: Sequence[Floats]) -> float:
    return stats.interquartile_mean(np.concatenate(samples))


def _median_overtuning(study: Study, agent: str) -> float | None:
    tests = [line.test for problem in study.problems for line in study.of(problem, agent)]
    if any(test is None or not len(test) for test in tests):
        return None
    return float(np.median([stats.relative_overtuning(test) for test in tests if test is not None]))


def _compare_pairs(
    study: Study, order: tuple[str, ...], means: Floats, runs: Floats
) -> tuple[Pair, ...]:
    column = {agent: index for index, agent in enumerate(study.agents)}
    by_means, by_range = stats.wilcoxon_holm(means), stats.nemenyi(means)
    by_runs = stats.wilcoxon_holm(runs) if len(runs) else None
    samples = {a: [study.final(p, a) for p in study.problems] for a in order}
    compared = []
    for index, first in enumerate(order):
        for second in order[index + 1 :]:
            a, b = column[first], column[second]
            pair = samples[first], samples[second]
            several = any(map(_has_repeats, pair))
            compared.append(
                Pair(
                    agents=(first, second),
                    problems=stats.sign_test(means[:, a], means[:, b]),
                    p_means=float(by_means[a, b]),
                    p_runs=None if by_runs is None else float(by_runs[a, b]),
                    p_nemenyi=float(by_range[a, b]),
                    improvement=stats.probability_of_improvement(*pair),
                    interval=stats.improvement_interval(*pair) if several else None,
                )
            )
    return tuple(compared)


@validate_call
def answer(comparison: Comparison) -> list[str]:
    """Return paragraphs, as plain text: who is best, by which test, and by how much."""
    return [state_verdict(comparison), state_margin(comparison)]


@validate_call
def state_verdict(comparison: Comparison) -> str:
    """Return a sentence to cite: who is best or not told apart, by which test on which blocks."""
    return f"{_decide(comparison)}{'' if comparison.has_seeds else LUCK}"


def _decide(comparison: Comparison) -> str:
    count = len(comparison.study.problems)
    difference = comparison.runs if comparison.by_runs else comparison.means
    if difference is None or (
        not comparison.by_runs and _lacks_power(len(comparison.pairs), count)
    ):
        reason = f"with {count_noun(count, 'problem')} and so few runs no test can reach 0.05"
        return f"Undecided between {_join_names(comparison.order)}: {reason}."
    first, *others = comparison.order
    level, friedman = difference.alpha, difference.friedman.p_value
    blocks = _describe_blocks(comparison, difference)
    # Of two agents, Friedman's test would be a weaker sign test.
    if others[1:] and friedman >= level:
        test = f"Friedman's test that all are alike on {blocks}"
        return (
            f"Undecided between {_join_names(comparison.order)}: {format_p(friedman)}, by {test}."
        )
    by_runs = difference is comparison.runs
    p_values = {pair.agents: pair.p_runs if by_runs else pair.p_means for pair in comparison.pairs}
    of_first = {
        agent: p for (best, agent), p in p_values.items() if best == first and p is not None
    }
    worse_agents = {agent: p for agent, p in of_first.items() if p < level}
    tied = {agent: p for agent, p in of_first.items() if p >= level}
    rows = [f"{agent} ({format_p(p)})" for agent, p in worse_agents.items()]
    worse = f"{_join_names(rows)} {'is' if len(rows) == 1 else 'are'} worse" if rows else ""
    holm = " with Holm's correction" if others[1:] else ""
    test = f"by Wilcoxon's signed-rank test{holm} on {blocks}"
    if not tied:
        return f"Best is {first}: {worse}, {test}."
    lowest = f"{format_p(min(tied.values()))}{' or more' * (len(tied) > 1)}"
    tie = f"Undecided between {_join_names([first, *tied])}: {lowest}, {test}"
    return f"{tie}{f'; {worse}' * bool(worse)}."


def _describe_blocks(comparison: Comparison, difference: stats.CriticalDifference) -> str:
    """Return the blocks of a test as text."""
    if difference is not comparison.runs:
        return f"means over seeds of {_count_problems(comparison)}"
    runs = sum(len(comparison.study.paired_seeds(problem)) for problem in comparison.study.problems)
    return f"{runs} runs of {_count_problems(comparison)}, which says nothing of other problems"


def _lacks_power(pairs: int, blocks: int, alpha: float = 0.05) -> bool:
    """Return whether Wilcoxon's test of so many blocks can never reach its level."""
    return pairs * 2.0 ** (1 - blocks) >= alpha


@validate_call
def state_margin(comparison: Comparison) -> str:
    """Return by how much the first agent is better than the second, as a sentence or two."""
    first, second = comparison.order[:2]
    pair = comparison.pairs[0]
    iqm = " against ".join(f"{comparison.numbers[agent].iqm:.2g}" for agent in (first, second))
    interval = f"{'95 % interval ' * bool(pair.interval)}{format_interval(pair.interval, '.2f')}"
    return (
        f"By how much: on means over seeds, {first} beats {second} on {pair.problems.wins} of "
        f"{_count_problems(comparison)} and ties on {pair.problems.ties}. A run of it is better "
        f"than one of {second} on a random problem with probability {pair.improvement:.2f} "
        f"({interval}). Interquartile means of normalised regret, of which {comparison.scale}: "
        f"{iqm}."
    )


def format_interval(interval: tuple[float, float] | None, form: str) -> str:
    """Return an interval over seeds in words, also where there is none."""
    return f"{interval[0]:{form}} to {interval[1]:{form}}" if interval else "one run each"


def _count_problems(comparison: Comparison) -> str:
    return count_noun(len(comparison.study.problems), "problem")


def count_noun(count: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless it is one."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


@validate_call
def format_p(value: float) -> str:
    """Return a p-value in words."""
    return "p < 0.0001" if value < 0.0001 else f"p = {value:.4f}"


def _join_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@validate_call
def comparison_tables(comparison: Comparison) -> tuple[ReportTable, ...]:
    """Return final results, ranks at several budgets, and all pairs."""
    return _finals_table(comparison), _ranks_table(comparison), _pairs_table(comparison)


def short_name(problem: str) -> str:
    """Return the name of a problem without what all of them share."""
    return problem.replace("FedHPO-", "", 1)


def summary_cell(summary: Summary | None, digits: int, best: bool = False) -> Cell:
    """Return a mean and a standard deviation as an entry."""
    if summary is None:
        return Cell("–")
    spread = "" if summary.std is None else f" ± {summary.std:.{digits}f}"
    return Cell(f"{summary.mean:.{digits}f}{spread}", summary.mean, best)


def _finals_table(comparison: Comparison) -> ReportTable:
    rows = []
    for index, problem in enumerate(comparison.study.problems):
        cells = [Cell(short_name(problem))]
        for agent in comparison.order:
            summary = Summary.of(comparison.study.final(problem, agent))
            cells.append(summary_cell(summary, 4, comparison.alike[agent][index]))
        rows.append(cells)
    return ReportTable(
        "finals",
        "Final results",
        f"{comparison.measure}: mean ± standard deviation over seeds, as tables 13 and 14 of Wang "
        "et al. (2022); bold is what no test tells from the best.",
        ("problem", *comparison.order),
        rows,
    )


def _ranks_table(comparison: Comparison) -> ReportTable:
    rows = [
        [
            Cell(agent),
            *(
                number_cell(rank, ".2f")
                for rank in comparison.ranks[agent][BUDGET_INDICES].tolist()
            ),
        ]
        for agent in comparison.order
    ]
    tests = [number_cell(test.friedman.p_value, ".4f") for test in comparison.means_at]
    rows.append([Cell("Friedman, p-value"), *tests])
    return ReportTable(
        "ranks",
        "Mean rank at several budgets",
        "Mean rank over problems, by means over seeds, at shares of the budget; agents without an "
        "incumbent share the last ranks.",
        ("agent", *(f"{100 * budget:g} %" for budget in BUDGETS)),
        rows,
    )


def _pairs_table(comparison: Comparison) -> ReportTable:
    rows = []
    for pair in comparison.pairs:
        p_values = (pair.problems.p_value, pair.p_means, pair.p_runs, pair.p_nemenyi)
        rows.append(
            [
                Cell(" and ".join(pair.agents)),
                Cell(str(pair.problems)),
                *(number_cell(p_value, ".4f") for p_value in p_values),
                number_cell(pair.improvement, ".3f"),
                Cell(format_interval(pair.interval, ".3f") if pair.interval else "–"),
            ]
        )
    tests = [f"{format_p(comparison.means.friedman.p_value)} on means over seeds"]
    if comparison.runs is not None:
        tests.append(f"{format_p(comparison.runs.friedman.p_value)} on all runs")
    return ReportTable(
        "pairs",
        "All pairs",
        "Of the first against the second: wins, ties and losses over problems by means over seeds, "
        "with a one-sided sign test, as tables 2 and 3 of Wang et al. (2022); Wilcoxon's test with "
        "Holm's correction on means over seeds and on all runs; Nemenyi's test on means; and the "
        "probability that a run of the first is better on a random problem. Friedman's test that "
        f"all agents are alike, by chi-squared, gives {' and '.join(tests)}. Tests on runs say "
        "nothing of other problems.",
        (
            "agents", "win/tie/loss", "sign test", "Wilcoxon, means", "Wilcoxon, all runs",
            "Nemenyi, means", "P(better)", "95 % interval",
        ),
        rows,
    )  # fmt: skip
