"""The tables of a comparison."""

from __future__ import annotations

import numpy as np

from fedhpo_gym.analysis.comparison.compare import BUDGETS, Comparison
from fedhpo_gym.analysis.tables import Cell, Table
from fedhpo_gym.typed import checked_types


@checked_types
def comparison_tables(found: Comparison) -> tuple[Table, ...]:
    """Return final results, ranks at several budgets, and all pairs."""
    return _finals(found), _ranks(found), _pairs(found)


def short(problem: str) -> str:
    """Return the name of a problem without what all of them share."""
    return problem.replace("FedHPO-", "", 1)


def _finals(found: Comparison) -> Table:
    study, rows = found.study, []
    for problem in study.problems:
        cells, place = [], study.problems.index(problem)
        for agent in found.order:
            value = study.final(problem, agent)
            mean = float(value.mean())
            several = len(value) > 1 and np.isfinite(value).all()
            spread = f" ± {value.std(ddof=1):.4f}" if several else ""
            cells.append(Cell(f"{mean:.4f}{spread}", mean, found.alike[agent][place]))
        rows.append([Cell(short(problem)), *cells])
    return Table(
        "finals",
        "Final results",
        f"{found.measure}: mean ± standard deviation over seeds, as tables 13 and 14 of Wang et "
        "al. (2022); bold is what no test tells from the best.",
        ("problem", *found.order),
        rows,
    )


def _ranks(found: Comparison) -> Table:
    places = [
        min(int(np.searchsorted(found.fractions, b)), len(found.fractions) - 1) for b in BUDGETS
    ]
    rows = [
        [Cell(agent), *(_number(float(found.ranks[agent][place]), 2) for place in places)]
        for agent in found.order
    ]
    rows.append(
        [Cell("Friedman, p-value"), *(_number(one.friedman.p_value, 4) for one in found.means_at)]
    )
    return Table(
        "ranks",
        "Mean rank at several budgets",
        "Mean rank over problems, by means over seeds, at shares of the budget; agents without an "
        "incumbent share the last ranks.",
        ("agent", *(f"{100 * budget:g} %" for budget in BUDGETS)),
        rows,
    )


def _pairs(found: Comparison) -> Table:
    rows = []
    for pair in found.pairs:
        low, high = pair.interval
        rows.append(
            [
                Cell(" and ".join(pair.agents)),
                Cell(str(pair.problems)),
                _number(pair.problems.p_value, 4),
                _number(pair.p_means, 4),
                _optional(pair.p_runs, 4),
                _number(pair.p_nemenyi, 4),
                _number(pair.improvement, 3),
                Cell(f"{low:.3f} to {high:.3f}"),
            ]
        )
    return Table(
        "pairs",
        "All pairs",
        "Of the first against the second: wins, ties and losses over problems by means over seeds, "
        "with a one-sided sign test, as tables 2 and 3 of Wang et al. (2022); Wilcoxon's test with "
        "Holm's correction on means over seeds and on all runs; Nemenyi's test on means; and the "
        "probability that a run of the first is better on a random problem.",
        (
            "agents", "win/tie/loss", "sign test", "Wilcoxon, means", "Wilcoxon, all runs",
            "Nemenyi, means", "P(better)", "95 % interval",
        ),
        rows,
    )  # fmt: skip


def _number(value: float, digits: int) -> Cell:
    return Cell(f"{value:.{digits}f}", value)


def _optional(value: float | None, digits: int) -> Cell:
    return Cell("–") if value is None else _number(value, digits)
