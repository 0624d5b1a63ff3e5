"""The figures of a report, each with a table of its numbers.

`fedhpo_gym.analysis.report` calls them for comparisons and for single problems. A figure is drawn
by `fedhpo_gym.analysis.plot` from arrays over time, (T,) per agent; the same arrays are the rows of
its table, so that every curve of a page can be drawn again from a CSV file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, TypeAlias

import numpy as np

from fedhpo_gym.analysis import plot
from fedhpo_gym.analysis.comparison import Comparison, count_noun, format_p
from fedhpo_gym.analysis.page import ReportTable
from fedhpo_gym.analysis.problems import ProblemRuns
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import MissingDependencyError
from fedhpo_gym.evaluation.multi_objective import attainment_surfaces, non_dominated
from fedhpo_gym.evaluation.stats import CriticalDifference, data_profile, ecdf
from fedhpo_gym.records.runs import REFERENCE, ScoredTrials

THRESHOLDS = np.logspace(-4.0, 0.0, 101)
BANDS = "Bands: in 95 % of bootstraps over seeds the whole curve lies inside (simultaneous)."
BUDGET = "share of the budget"
TOLERANCE = 0.1
"""Normalised regret below which a run has solved its problem: a tenth of a first trial's."""
SHARES = (0.25, 0.5, 0.75)
"""Shares of runs whose attained points are in the table; those of the second are drawn."""


NUM_LEADERS = 3
OBJECTIVE_LABELS: Final[Mapping[str, str]] = {
    "val_loss": "validation loss",
    "val_error": "validation error",
    "time_s": "simulated time (s)",
    "upload_bytes": "upload (bytes)",
    "download_bytes": "download (bytes)",
    "energy_j": "energy (J)",
    "flops": "floating-point operations",
    "epsilon": "epsilon spent by the trial alone",
    "fairness_std": "spread of accuracy over clients",
    "fairness_p10": "accuracy, worst tenth of clients",
}
"""Names and units of objectives on axes."""

Curves: TypeAlias = Mapping[str, Floats]
File: TypeAlias = str | Callable[[], bytes]
"""The text of a file, or a function that returns its bytes."""


@dataclass(frozen=True)
class Figure:
    """A picture of a page, and the table of its numbers, which has its name, title and note."""

    picture: plot.Picture
    table: ReportTable

    def files(self) -> dict[str, File]:
        """Return its files: as SVG, as PDF, and the numbers behind it."""
        svg = f'<?xml version="1.0" encoding="utf-8"?>\n{self.picture.svg}\n'
        name = self.table.name
        return {
            f"{name}.svg": svg, f"{name}.pdf": self.picture.pdf, f"{name}.csv": self.table.csv(),
        }  # fmt: skip


def comparison_figures(
    comparison: Comparison, prefix: str, styles: plot.LineStyles
) -> tuple[Figure, ...]:
    """Draw ranks over time, regret over time, profiles, and critical differences."""
    size = (plot.SIZE[0], plot.TALL)
    ranks = {agent: comparison.ranks[agent] for agent in comparison.order}
    profile = {
        agent: ecdf(np.concatenate(comparison.finals[agent]), THRESHOLDS)
        for agent in comparison.order
    }
    solved_shares = {
        agent: np.mean([data_profile(c, TOLERANCE) for c in comparison.curves[agent]], axis=0)
        for agent in comparison.order
    }

    regret = _band_columns(comparison)

    def lines(
        values: Curves, x: Floats, labels: tuple[str, str], bands: bool = False
    ) -> Callable[[Any], None]:
        def fill(axes: Any) -> None:
            for position, agent in enumerate(comparison.order):
                colour, style = styles[agent]
                if bands:
                    band = comparison.regret[agent]
                    shade = {"step": "post", "color": colour, "alpha": 0.15, "lw": 0}
                    axes.fill_between(x, band.all_lower, band.all_upper, **shade)
                # The lines of the three leaders are strong.
                line = {"where": "post", "color": colour, "ls": style}
                width = 2.4 if position < NUM_LEADERS else 1.2
                axes.step(x, values[agent], label=plot.label(agent), lw=width, **line)
            axes.set_xscale("log")
            plot.plain_log(
                axes.xaxis, plot.format_percent if labels[0] == BUDGET else "{:g}".format
            )
            if bands:
                axes.set_ylim(bottom=0)
            plot.finish(axes, *labels, below=True)

        return fill

    def figure(
        name: str, labels: tuple[str, str], fill: Callable[[Any], None], x: Floats, values: Curves
    ) -> Figure:
        rows = zip(x.tolist(), *(value.tolist() for value in values.values()), strict=True)
        numbers = ReportTable.of_values(f"{prefix}-{name}", *labels, ("at", *values), rows)
        return Figure(plot.draw(numbers.name, fill, size), numbers)

    differences = [("means", comparison.means, "on means over seeds", "problem")]
    if comparison.runs is not None:
        differences.append(("runs", comparison.runs, "on all runs", "run"))

    return (
        figure(
            "rank-over-time",
            (
                "Mean rank over time",
                "Mean rank over problems, by means over seeds, after a share of the budget; lower "
                "is better. Until an agent has an incumbent, it shares the last ranks.",
            ),
            lines(ranks, comparison.fractions, (BUDGET, "mean rank")),
            comparison.fractions,
            ranks,
        ),
        figure(
            "regret-over-time",
            (
                "Normalised regret over time",
                f"Mean over problems of the mean over seeds; {comparison.scale}. "
                + (BANDS if comparison.has_seeds else "One run each: there are no bands."),
            ),
            lines(regret, comparison.fractions, (BUDGET, "normalised regret"), bands=True),
            comparison.fractions,
            regret,
        ),
        *(
            _difference_figure(f"{prefix}-differences-{name}", difference, title, block)
            for name, difference, title, block in differences
        ),
        figure(
            "profile",
            (
                "Empirical distribution of final normalised regret",
                "Share of runs of all problems whose final regret is at most so much; higher is "
                "better. It is the performance profile of Agarwal et al. (2021).",
            ),
            lines(profile, THRESHOLDS, ("normalised regret", "share of runs")),
            THRESHOLDS,
            profile,
        ),
        figure(
            "data-profile",
            (
                "Data profile",
                f"Share of runs that have come within {TOLERANCE:g} of normalised regret, after a "
                "share of the budget; higher is better (Moré and Wild, 2009).",
            ),
            lines(solved_shares, comparison.fractions, (BUDGET, "share of runs")),
            comparison.fractions,
            solved_shares,
        ),
    )


def regret_figure(problem: ProblemRuns, name: str, styles: plot.LineStyles) -> Figure:
    """Draw the mean regret of every agent on one problem, with two bootstrap bands."""
    curves, (best, largest) = problem.regret(), problem.scale()
    quantity, axis = "validation loss above the best final value of any run here", "mean regret"
    title = "Regret"
    if problem.known is not None:
        quantity = "the regret of the recommended configuration at full fidelity"
    if any(run.scored for run in problem.all_runs()):
        quantity, axis = "the hypervolume that a run lacks", "hypervolume regret"
        title = "Hypervolume regret"
    clipped_ends = {
        agent: [line.end_s for line in lines if line.final > largest + best]
        for agent, lines in problem.regret_lines().items()
    }
    columns = {
        agent: (x, band.mean, band.lower, band.upper, band.all_lower, band.all_upper)
        for agent, (x, band) in curves.items()
    }
    ends = [times[-1] for times, _ in curves.values()]
    highest = max((float(band.all_upper.max()) for _, band in curves.values()), default=1.0)
    top = min(largest, 1.05 * highest) or 1.0  # no run is above another
    unit, seconds = plot.time_unit(float(max(ends, default=1.0)))

    def fill(axes: Any) -> None:
        for agent, arrays in columns.items():
            colour, style = styles[agent]
            shade = {"step": "post", "color": colour, "lw": 0}
            times, mean, lower, upper, all_lower, all_upper = plot.step_corners(*arrays)
            x = times / seconds
            axes.fill_between(x, all_lower, all_upper, alpha=0.12, **shade)
            axes.fill_between(x, lower, upper, alpha=0.2, **shade)
            line = {"where": "post", "color": colour, "ls": style, "lw": 2}
            axes.step(x, mean, label=plot.label(agent), **line)
            for end in clipped_ends[agent]:
                axes.plot(end / seconds, top, marker="^", color=colour, clip_on=False)
        # The axis turns from linear to logarithmic at the least final regret.
        finals = [float(band.mean[-1]) for _, band in curves.values() if band.mean[-1] > 0]
        threshold = max(min(finals, default=1e-3), 1e-6)
        axes.set_yscale("symlog", linthresh=threshold)
        axes.set_yticks([0.0, *plot.log_ticks(min(threshold, top / 10), top)])
        plot.plain_log(axes.yaxis)
        axes.set_ylim(0, top)
        plot.finish(axes, f"simulated time ({unit})", axis, below=True)

    head = ("agent", "time_s", "mean", "lower", "upper", "all_lower", "all_upper")
    caption = (
        f"Mean over seeds of {quantity}. Inner bands hold 95 % of bootstraps at each "
        "time, outer ones hold whole curves. Runs above "
        f"{largest:.3g} count as this, and a triangle at the rim marks one that ends there. "
        "The axis is linear near 0."
    )
    numbers = ReportTable.of_values(name, title, caption, head, _flatten_columns(columns))
    return Figure(plot.draw(name, fill, (plot.SIZE[0], plot.TALL)), numbers)


def _flatten_columns(columns: Mapping[str, Sequence[Floats]]) -> list[tuple[Any, ...]]:
    """Return the rows of each agent's columns, its name before each."""
    return [
        (agent, *row)
        for agent, arrays in columns.items()
        for row in zip(*(column.tolist() for column in arrays), strict=True)
    ]


def attainment_figures(problem: ProblemRuns, name: str, styles: plot.LineStyles) -> list[Figure]:
    """Draw what half of each agent's runs attain in every two objectives."""
    scored = {
        agent: [trials for trials in runs if len(trials.errors)]
        for agent, runs in problem.scored().items()
    }
    all_trials = [trials for runs in scored.values() for trials in runs]
    if not all_trials:
        return []
    errors = np.concatenate([trials.errors for trials in all_trials])
    front = errors[non_dominated(errors)]
    low, high = front.min(axis=0), front.max(axis=0)
    # Where the front is one point, most trials are shown.
    high = np.where(high > low, high, np.quantile(errors, 0.9, axis=0))
    varying = [column for column in range(errors.shape[1]) if high[column] > low[column]]
    corner = low + REFERENCE * (high - low)
    try:
        return [
            _attainment_figure(scored, pair, (low, corner), name, styles)
            for pair in combinations(varying, 2)
        ]
    except MissingDependencyError:
        return []


def _attainment_figure(
    scored: Mapping[str, Sequence[ScoredTrials]],
    pair: tuple[int, int],
    limits: tuple[Floats, Floats],
    name: str,
    styles: plot.LineStyles,
) -> Figure:
    surfaces = {
        agent: attainment_surfaces([trials.presented()[:, pair] for trials in runs], SHARES)
        for agent, runs in scored.items()
        if runs
    }
    names = next(trials.names for runs in scored.values() for trials in runs)
    errors = np.concatenate([trials.errors for runs in scored.values() for trials in runs])
    first, second = (
        objective_label(names[column]) + " (negative)" * bool((errors[:, column] <= 0).all())
        for column in pair
    )
    low, corner = (limit[[*pair]] for limit in limits)

    def fill(axes: Any) -> None:
        for agent, by_share in surfaces.items():
            colour, style = styles[agent]
            points = by_share[0.5][np.argsort(by_share[0.5][:, 0])]
            # The line goes on to the reference point, beyond which nothing counts.
            points = np.array([[points[0, 0], corner[1]], *points, [corner[0], points[-1, 1]]])
            line = {"where": "post", "color": colour, "ls": style, "lw": 2}
            axes.step(*points.T, marker="o", ms=4, label=plot.label(agent), **line)
        margin = 0.05 * (corner - low)
        axes.set_xlim(low[0] - margin[0], corner[0])
        axes.set_ylim(low[1] - margin[1], corner[1])
        plot.finish(axes, first, second, below=True)

    rows = [
        (agent, share, *point)
        for agent, by_share in surfaces.items()
        for share, points in by_share.items()
        for point in points.tolist()
    ]
    title = f"Empirical attainment: {first} and {second}"
    caption = (
        "What at least half of an agent's runs attain in these two objectives, whatever the others "
        "are: every point above and to the right of its line, up to the reference point. Under "
        "noise, it is what the trials that an agent believes to be its front truly are. Lower is "
        "better on both axes; what is to be high is shown negative."
    )
    figure_name = "-".join([name, *(str(column + 1) for column in pair)])
    numbers = ReportTable.of_values(
        figure_name, title, caption, ("agent", "share of runs", first, second), rows
    )
    return Figure(plot.draw(figure_name, fill, (plot.SIZE[0], plot.TALL)), numbers)


def objective_label(objective: str) -> str:
    """Return the name of an objective and its unit, for people."""
    return OBJECTIVE_LABELS.get(objective, objective.replace("_", " "))


def schedule_figures(problem: ProblemRuns, name: str, styles: plot.LineStyles) -> list[Figure]:
    """Draw the loss of a course and its hyperparameters over its rounds, of one run an agent."""
    firsts = {agent: runs[0] for agent, runs in problem.runs.items()}
    courses = {agent: run.course for agent, run in firsts.items() if run.course is not None}
    names = dict.fromkeys(name for course in courses.values() for name in course.schedule)
    losses = {a: (c.rounds, firsts[a].trajectory.at(c.time_s)) for a, c in courses.items()}
    lines_by_name = {"val_loss": losses} if courses else {}
    for hyperparameter in names:
        lines_by_name[hyperparameter] = {
            agent: (course.rounds, course.schedule[hyperparameter])
            for agent, course in courses.items()
            if hyperparameter in course.schedule
        }
    return [
        _schedule_figure(f"{name}-{index}", quantity, lines, styles)
        for index, (quantity, lines) in enumerate(lines_by_name.items())
    ]


def _schedule_figure(
    name: str, quantity: str, lines: Mapping[str, tuple[Floats, Floats]], styles: plot.LineStyles
) -> Figure:
    def fill(axes: Any) -> None:
        for agent, (rounds, values) in lines.items():
            colour, style = styles[agent]
            # A value rules the rounds before the point that it led to.
            x, y = np.append(0, rounds), np.append(values[:1], values)
            axes.step(x, y, where="pre", color=colour, ls=style, label=plot.label(agent))
        all_values = np.concatenate([values for _, values in lines.values()])
        if all_values.min() > 0 and all_values.max() > 20 * all_values.min():
            axes.set_yscale("log")
            axes.set_yticks(plot.log_ticks(all_values.min(), all_values.max()))
            plot.plain_log(axes.yaxis)
        if quantity == "val_loss":
            plot.show_window(axes, all_values)
        plot.finish(axes, "round", objective_label(quantity), below=True)

    title = f"{objective_label(quantity).capitalize()} over rounds"
    caption = "Of the first seed of each agent."
    numbers = ReportTable.of_values(
        name, title, caption, ("agent", "round", quantity), _flatten_columns(lines)
    )
    return Figure(plot.draw(name, fill), numbers)


def incumbents_figure(problem: ProblemRuns, name: str, styles: plot.LineStyles) -> Figure:
    """Draw the incumbents of every agent on one problem: median, and a band between quartiles."""
    curves = problem.curves()
    columns = {
        a: (curve.time_s, curve.median, curve.lower, curve.upper) for a, curve in curves.items()
    }
    caption = (
        "Median over seeds, and a band from the first to the third quartile. Lower is better; the "
        "first and worst incumbents may lie above the end of the axis."
    )
    head = ("agent", "time_s", "median", "lower", "upper")
    subject = "" if problem.is_course else "of the incumbent "
    title = f"Validation loss {subject}over simulated time"
    numbers = ReportTable.of_values(name, title, caption, head, _flatten_columns(columns))
    return Figure(plot.draw_curves(curves, name, styles), numbers)


def _difference_figure(name: str, difference: CriticalDifference, scope: str, block: str) -> Figure:
    caption = (
        f"Mean ranks over {count_noun(difference.blocks, block)}; 1 is best. A bar joins agents "
        "that Friedman's test, and Wilcoxon's with Holm's correction at 0.05, cannot tell apart. "
        f"Friedman: {format_p(difference.friedman.p_value)}."
    )
    lines = zip(
        difference.agents, difference.ranks.tolist(), difference.p_values.tolist(), strict=True
    )
    rows = [(agent, rank, *p_values) for agent, rank, p_values in lines]
    title = f"Critical differences, {scope}"
    head = ("agent", "mean rank", *(f"p against {agent}" for agent in difference.agents))
    size = (
        plot.SIZE[0],
        1.0 + 0.26 * ((len(difference.agents) + 1) // 2) + 0.13 * len(difference.groups),
    )
    picture = plot.draw(name, lambda axes: draw_difference(axes, difference), size)
    return Figure(picture, ReportTable.of_values(name, title, caption, head, rows))


def draw_difference(axes: Any, difference: CriticalDifference) -> None:
    """Draw ranks on a line, names at its sides, and bars below it (Demsar, 2006, figure 1)."""
    agents = len(difference.agents)
    num_left = (agents + 1) // 2
    top, bars = 0.0, 0.55
    for position, (first, last) in enumerate(difference.groups):
        depth = 0.35 + bars * position
        ends = [difference.ranks[first] - 0.04, difference.ranks[last] + 0.04]
        axes.plot(ends, [depth, depth], color=plot.INK, lw=4, solid_capstyle="butt")
    under = 0.35 + bars * len(difference.groups)
    margin = 0.08 * (agents - 1)
    for position, (agent, rank) in enumerate(
        zip(difference.agents, difference.ranks.tolist(), strict=True)
    ):
        on_left = position < num_left
        row = position if on_left else agents - 1 - position
        depth = under + 0.6 + row
        end = 1 - margin if on_left else agents + margin
        axes.plot([rank, rank, end], [top, depth, depth], color=plot.INK, lw=1)
        text = (
            f"{plot.label(agent)}  {rank:.2f}  "
            if on_left
            else f"  {rank:.2f}  {plot.label(agent)}"
        )
        axes.text(end, depth, text, ha="right" if on_left else "left", va="center", fontsize=11)
    axes.set_xlim(1 - margin, agents + margin)
    axes.set_ylim(under + 0.6 + num_left - 0.5, -0.1)
    axes.xaxis.tick_top()
    axes.set_xticks(range(1, agents + 1))
    axes.yaxis.set_visible(False)
    axes.spines[["left", "right", "bottom"]].set_visible(False)


def _band_columns(comparison: Comparison) -> dict[str, Floats]:
    columns = {}
    for agent in comparison.order:
        band = comparison.regret[agent]
        columns[agent] = band.mean
        for name in ("lower", "upper", "all_lower", "all_upper"):
            columns[f"{agent} {name}"] = getattr(band, name)
    return columns
