"""The figures of a report, each with the numbers behind it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, TypeAlias

import numpy as np

from fedhpo_gym.analysis import plot
from fedhpo_gym.analysis.comparison import Comparison, counted, shown_p
from fedhpo_gym.analysis.page import Table
from fedhpo_gym.analysis.problems import Problem
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import MissingDependencyError
from fedhpo_gym.evaluation.multi_objective import attainment_surfaces, non_dominated
from fedhpo_gym.evaluation.stats import CriticalDifference, data_profile, ecdf
from fedhpo_gym.records.runs import REFERENCE, ScoredTrials

THRESHOLDS = np.logspace(-4.0, 0.0, 101)
BANDS = "Bands: in 95 % of bootstraps over seeds the whole curve lies inside (simultaneous)."
BUDGET = "share of the budget"
TOLERANCE = 0.1
"""A problem counts as solved when a tenth of a first trial's regret is left."""
SHARES = (0.25, 0.5, 0.75)
"""Shares of runs whose attained points are written down; those of the second are drawn."""


LEADERS = 3
WORDS: Final[Mapping[str, str]] = {
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
"""Objectives as people call them, with their units."""

Curves: TypeAlias = Mapping[str, Floats]
File: TypeAlias = str | Callable[[], bytes]
"""What a file holds, or what makes it."""


@dataclass(frozen=True)
class Figure:
    """A picture of a page, and the numbers behind it, whose name, title and note it has."""

    drawn: plot.Picture
    numbers: Table

    def files(self) -> dict[str, File]:
        """Return its files: as SVG, as PDF, and the numbers behind it."""
        svg = f'<?xml version="1.0" encoding="utf-8"?>\n{self.drawn.svg}\n'
        name = self.numbers.name
        return {
            f"{name}.svg": svg, f"{name}.pdf": self.drawn.pdf, f"{name}.csv": self.numbers.csv(),
        }  # fmt: skip


def comparison_figures(found: Comparison, prefix: str, looks: plot.Looks) -> tuple[Figure, ...]:
    """Draw ranks over time, regret over time, profiles, and critical differences."""
    size = (plot.SIZE[0], plot.TALL)
    ranks = {agent: found.ranks[agent] for agent in found.order}
    profile = {
        agent: ecdf(np.concatenate(found.finals[agent]), THRESHOLDS) for agent in found.order
    }
    solved = {
        agent: np.mean([data_profile(c, TOLERANCE) for c in found.curves[agent]], axis=0)
        for agent in found.order
    }

    regret = _band_columns(found)

    def lines(
        values: Curves, at: Floats, words: tuple[str, str], bands: bool = False
    ) -> Callable[[Any], None]:
        def fill(axes: Any) -> None:
            for place, agent in enumerate(found.order):
                colour, style = looks[agent]
                if bands:
                    band = found.regret[agent]
                    shade = {"step": "post", "color": colour, "alpha": 0.15, "lw": 0}
                    axes.fill_between(at, band.all_lower, band.all_upper, **shade)
                # The lines of the three leaders are strong.
                line = {"where": "post", "color": colour, "ls": style}
                width = 2.4 if place < LEADERS else 1.2
                axes.step(at, values[agent], label=plot.label(agent), lw=width, **line)
            axes.set_xscale("log")
            plot.plain_log(axes.xaxis, plot.percent if words[0] == BUDGET else "{:g}".format)
            if bands:
                axes.set_ylim(bottom=0)
            plot.finish(axes, *words, below=True)

        return fill

    def figure(
        name: str, words: tuple[str, str], fill: Callable[[Any], None], at: Floats, values: Curves
    ) -> Figure:
        rows = zip(at.tolist(), *(value.tolist() for value in values.values()), strict=True)
        numbers = Table.of_values(f"{prefix}-{name}", *words, ("at", *values), rows)
        return Figure(plot.draw(numbers.name, fill, size), numbers)

    kinds = [("means", found.means, "on means over seeds", "problem")]
    if found.runs is not None:
        kinds.append(("runs", found.runs, "on all runs", "run"))

    return (
        figure(
            "rank-over-time",
            (
                "Mean rank over time",
                "Mean rank over problems, by means over seeds, after a share of the budget; lower "
                "is better. Until an agent has an incumbent, it shares the last ranks.",
            ),
            lines(ranks, found.fractions, (BUDGET, "mean rank")),
            found.fractions,
            ranks,
        ),
        figure(
            "regret-over-time",
            (
                "Normalised regret over time",
                f"Mean over problems of the mean over seeds; {found.scale}. "
                + (BANDS if found.has_seeds else "One run each: there are no bands."),
            ),
            lines(regret, found.fractions, (BUDGET, "normalised regret"), bands=True),
            found.fractions,
            regret,
        ),
        *(
            _difference(f"{prefix}-differences-{name}", kind, where, block)
            for name, kind, where, block in kinds
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
            lines(solved, found.fractions, (BUDGET, "share of runs")),
            found.fractions,
            solved,
        ),
    )


def regret_figure(problem: Problem, name: str, looks: plot.Looks) -> Figure:
    """Draw the mean regret of every agent on one problem, with two bootstrap bands."""
    curves, (best, most) = problem.regret(), problem.scale()
    what, axis = "validation loss above the best final value of any run here", "mean regret"
    title = "Regret"
    if problem.known is not None:
        what = "the regret of the recommended configuration at full fidelity"
    if any(run.scored for run in problem.all_runs()):
        what, axis = "the hypervolume that a run lacks", "hypervolume regret"
        title = "Hypervolume regret"
    beyond = {
        agent: [line.end_s for line in lines if line.final > most + best]
        for agent, lines in problem.regret_lines().items()
    }
    columns = {
        agent: (at, band.mean, band.lower, band.upper, band.all_lower, band.all_upper)
        for agent, (at, band) in curves.items()
    }
    ends = [times[-1] for times, _ in curves.values()]
    highest = max((float(band.all_upper.max()) for _, band in curves.values()), default=1.0)
    rim = min(most, 1.05 * highest) or 1.0  # no run is above another
    unit, seconds = plot.time_unit(float(max(ends, default=1.0)))

    def fill(axes: Any) -> None:
        for agent, every in columns.items():
            colour, style = looks[agent]
            shade = {"step": "post", "color": colour, "lw": 0}
            times, mean, lower, upper, all_lower, all_upper = plot.corners(*every)
            at = times / seconds
            axes.fill_between(at, all_lower, all_upper, alpha=0.12, **shade)
            axes.fill_between(at, lower, upper, alpha=0.2, **shade)
            line = {"where": "post", "color": colour, "ls": style, "lw": 2}
            axes.step(at, mean, label=plot.label(agent), **line)
            for end in beyond[agent]:
                axes.plot(end / seconds, rim, marker="^", color=colour, clip_on=False)
        # The axis turns from linear to logarithmic at the least final regret.
        finals = [float(band.mean[-1]) for _, band in curves.values() if band.mean[-1] > 0]
        threshold = max(min(finals, default=1e-3), 1e-6)
        axes.set_yscale("symlog", linthresh=threshold)
        axes.set_yticks([0.0, *plot.log_ticks(min(threshold, rim / 10), rim)])
        plot.plain_log(axes.yaxis)
        axes.set_ylim(0, rim)
        plot.finish(axes, f"simulated time ({unit})", axis, below=True)

    head = ("agent", "time_s", "mean", "lower", "upper", "all_lower", "all_upper")
    caption = (
        f"Mean over seeds of {what}. Inner bands hold 95 % of bootstraps at each "
        "time, outer ones hold whole curves. Runs above "
        f"{most:.3g} count as this, and a triangle at the rim marks one that ends there. "
        "The axis is linear near 0."
    )
    numbers = Table.of_values(name, title, caption, head, _rows(columns))
    return Figure(plot.draw(name, fill, (plot.SIZE[0], plot.TALL)), numbers)


def _rows(columns: Mapping[str, Sequence[Floats]]) -> list[tuple[Any, ...]]:
    """Return the rows of each agent's columns, its name before each."""
    return [
        (agent, *row)
        for agent, own in columns.items()
        for row in zip(*(column.tolist() for column in own), strict=True)
    ]


def attainment_figures(problem: Problem, name: str, looks: plot.Looks) -> list[Figure]:
    """Draw what half of each agent's runs attain in every two objectives."""
    scored = {
        agent: [one for one in of if len(one.errors)] for agent, of in problem.scored().items()
    }
    every = [one for of in scored.values() for one in of]
    if not every:
        return []
    errors = np.concatenate([one.errors for one in every])
    front = errors[non_dominated(errors)]
    low, high = front.min(axis=0), front.max(axis=0)
    # Where the front is one point, most trials are shown.
    high = np.where(high > low, high, np.quantile(errors, 0.9, axis=0))
    alive = [column for column in range(errors.shape[1]) if high[column] > low[column]]
    corner = low + REFERENCE * (high - low)
    try:
        return [
            _attainment(scored, pair, (low, corner), name, looks) for pair in combinations(alive, 2)
        ]
    except MissingDependencyError:
        return []


def _attainment(
    scored: Mapping[str, Sequence[ScoredTrials]],
    pair: tuple[int, int],
    ends: tuple[Floats, Floats],
    name: str,
    looks: plot.Looks,
) -> Figure:
    surfaces = {
        agent: attainment_surfaces([one.presented()[:, pair] for one in of], SHARES)
        for agent, of in scored.items()
        if of
    }
    names = next(one.names for of in scored.values() for one in of)
    errors = np.concatenate([one.errors for of in scored.values() for one in of])
    first, second = (
        in_words(names[column]) + " (negative)" * bool((errors[:, column] <= 0).all())
        for column in pair
    )
    low, corner = (end[[*pair]] for end in ends)

    def fill(axes: Any) -> None:
        for agent, by_share in surfaces.items():
            colour, style = looks[agent]
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
    own = "-".join([name, *(str(column + 1) for column in pair)])
    numbers = Table.of_values(own, title, caption, ("agent", "share of runs", first, second), rows)
    return Figure(plot.draw(own, fill, (plot.SIZE[0], plot.TALL)), numbers)


def in_words(objective: str) -> str:
    """Return the name of an objective and its unit, for people."""
    return WORDS.get(objective, objective.replace("_", " "))


def schedule_figures(problem: Problem, name: str, looks: plot.Looks) -> list[Figure]:
    """Draw the loss of a course and its hyperparameters over its rounds, of one run an agent."""
    firsts = {agent: of[0] for agent, of in problem.runs.items()}
    courses = {agent: run.course for agent, run in firsts.items() if run.course is not None}
    names = dict.fromkeys(name for course in courses.values() for name in course.schedule)
    losses = {a: (c.rounds, firsts[a].trajectory.at(c.time_s)) for a, c in courses.items()}
    drawn = {"val_loss": losses} if courses else {}
    for own in names:
        drawn[own] = {
            agent: (course.rounds, course.schedule[own])
            for agent, course in courses.items()
            if own in course.schedule
        }
    return [
        _schedule(f"{name}-{place}", what, lines, looks)
        for place, (what, lines) in enumerate(drawn.items())
    ]


def _schedule(
    name: str, what: str, lines: Mapping[str, tuple[Floats, Floats]], looks: plot.Looks
) -> Figure:
    def fill(axes: Any) -> None:
        for agent, (rounds, values) in lines.items():
            colour, style = looks[agent]
            # A value rules the rounds before the point that it led to.
            at, shown = np.append(0, rounds), np.append(values[:1], values)
            axes.step(at, shown, where="pre", color=colour, ls=style, label=plot.label(agent))
        every = np.concatenate([values for _, values in lines.values()])
        if every.min() > 0 and every.max() > 20 * every.min():
            axes.set_yscale("log")
            axes.set_yticks(plot.log_ticks(every.min(), every.max()))
            plot.plain_log(axes.yaxis)
        if what == "val_loss":
            plot.show_window(axes, every)
        plot.finish(axes, "round", in_words(what), below=True)

    title = f"{in_words(what).capitalize()} over rounds"
    caption = "Of the first seed of each agent."
    numbers = Table.of_values(name, title, caption, ("agent", "round", what), _rows(lines))
    return Figure(plot.draw(name, fill), numbers)


def incumbents_figure(problem: Problem, name: str, looks: plot.Looks) -> Figure:
    """Draw the incumbents of every agent on one problem: median, and a band between quartiles."""
    curves = problem.curves()
    columns = {a: (one.time_s, one.median, one.lower, one.upper) for a, one in curves.items()}
    caption = (
        "Median over seeds, and a band from the first to the third quartile. Lower is better; the "
        "first and worst incumbents may lie above the end of the axis."
    )
    head = ("agent", "time_s", "median", "lower", "upper")
    what = "" if problem.is_course else "of the incumbent "
    title = f"Validation loss {what}over simulated time"
    numbers = Table.of_values(name, title, caption, head, _rows(columns))
    return Figure(plot.draw_curves(curves, name, looks), numbers)


def _difference(name: str, kind: CriticalDifference, where: str, block: str) -> Figure:
    caption = (
        f"Mean ranks over {counted(kind.blocks, block)}; 1 is best. A bar joins agents that "
        "Friedman's test, and Wilcoxon's with Holm's correction at 0.05, cannot tell apart. "
        f"Friedman: {shown_p(kind.friedman.p_value)}."
    )
    lines = zip(kind.agents, kind.ranks.tolist(), kind.p_values.tolist(), strict=True)
    rows = [(agent, rank, *p_values) for agent, rank, p_values in lines]
    title = f"Critical differences, {where}"
    head = ("agent", "mean rank", *(f"p against {agent}" for agent in kind.agents))
    size = (plot.SIZE[0], 1.0 + 0.26 * ((len(kind.agents) + 1) // 2) + 0.13 * len(kind.groups))
    drawn = plot.draw(name, lambda axes: draw_difference(axes, kind), size)
    return Figure(drawn, Table.of_values(name, title, caption, head, rows))


def draw_difference(axes: Any, found: CriticalDifference) -> None:
    """Draw ranks on a line, names at its sides, and bars below it (Demsar, 2006, figure 1)."""
    agents = len(found.agents)
    left = (agents + 1) // 2
    top, bars = 0.0, 0.55
    for place, (first, last) in enumerate(found.groups):
        depth = 0.35 + bars * place
        ends = [found.ranks[first] - 0.04, found.ranks[last] + 0.04]
        axes.plot(ends, [depth, depth], color=plot.INK, lw=4, solid_capstyle="butt")
    under = 0.35 + bars * len(found.groups)
    margin = 0.08 * (agents - 1)
    for place, (agent, rank) in enumerate(zip(found.agents, found.ranks.tolist(), strict=True)):
        on_left = place < left
        row = place if on_left else agents - 1 - place
        depth = under + 0.6 + row
        end = 1 - margin if on_left else agents + margin
        axes.plot([rank, rank, end], [top, depth, depth], color=plot.INK, lw=1)
        words = (
            f"{plot.label(agent)}  {rank:.2f}  "
            if on_left
            else f"  {rank:.2f}  {plot.label(agent)}"
        )
        axes.text(end, depth, words, ha="right" if on_left else "left", va="center", fontsize=11)
    axes.set_xlim(1 - margin, agents + margin)
    axes.set_ylim(under + 0.6 + left - 0.5, -0.1)
    axes.xaxis.tick_top()
    axes.set_xticks(range(1, agents + 1))
    axes.yaxis.set_visible(False)
    axes.spines[["left", "right", "bottom"]].set_visible(False)


def _band_columns(found: Comparison) -> dict[str, Floats]:
    columns = {}
    for agent in found.order:
        band = found.regret[agent]
        columns[agent] = band.mean
        for name in ("lower", "upper", "all_lower", "all_upper"):
            columns[f"{agent} {name}"] = getattr(band, name)
    return columns
