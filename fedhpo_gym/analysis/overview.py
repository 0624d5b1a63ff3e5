"""The first screen of a comparison: one row per agent with ranks, regret, costs and warnings.

`fedhpo_gym.analysis.report` calls `overview` for the HTML rows and `summary_table` for the same as
numbers. Small pictures are written as SVG text here, without matplotlib, so that they take the
colours of the page. All of them share a scale within a column, so rows can be compared by eye.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from fedhpo_gym.analysis.comparison import (
    FINAL,
    RETURN,
    Comparison,
    count_noun,
    format_interval,
    short_name,
)
from fedhpo_gym.analysis.page import Cell, ReportTable, number_cell
from fedhpo_gym.analysis.plot import LineStyles
from fedhpo_gym.analysis.problems import ProblemRuns, Run
from fedhpo_gym.core.arrays import Floats

RANDOM = "random"
WIDE, HIGH = 150, 30
"""Points of a small picture."""
COSTS = ("simulated hours", "MB", "rounds", "trials")
FIDELITIES = {
    "chosen": "choose the fidelity of each trial",
    "fixed": "have all trials at one fidelity",
    "–": "are runs of courses, or of other programs",
}
"""Groups of agents: equal numbers of trials are unequal effort where some trials are short."""


@dataclass(frozen=True)
class AgentFacts:
    """Costs and warnings of an agent, beside its quality.

    Attributes:
        costs: mean of each of `COSTS` over its runs; None where a record is missing.
        fidelity: how the fidelities of its trials are set, a key of `FIDELITIES`.
    """

    costs: tuple[float, ...] | None
    warnings: tuple[str, ...]
    fidelity: str


def collect_facts(
    comparison: Comparison, problems: Sequence[ProblemRuns], unfinished: Iterable[Sequence[str]]
) -> dict[str, AgentFacts]:
    """Return costs and warnings of each agent's runs."""
    without, below = _unlike_fidelities(comparison)
    ids = {problem.id for problem in problems}
    is_noisy = any(problem.kwargs.get("noise") for problem in problems)
    unfinished_agents = [row[1] for row in unfinished if row[0].split(" ")[0] in ids]
    # A trial of few rounds may keep a limit that its configuration breaks at full fidelity.
    judged_at = " at full fidelity" if all(problem.known for problem in problems) else ""
    by_agent = {}
    for agent in comparison.order:
        runs = [run for problem in problems for run in problem.runs.get(agent, ())]
        diverged, trials = sum(run.diverged for run in runs), sum(map(_num_trials, runs))
        lines = [run.trajectory for run in runs]
        num_infeasible = sum(bool(len(line.value)) and np.isinf(line.final) for line in lines)
        counts = (
            (num_infeasible, f"{{}} whose recommended configuration breaks a limit{judged_at}"),
            (diverged, f"{diverged} of {count_noun(trials, 'trial')} diverged"),
            (unfinished_agents.count(agent.split(" (")[0]), "{} unfinished"),
            (without.get(agent, 0), "{} without full fidelity"),
            (below.get(agent, 0), "{} of lower fidelity"),
        )
        counted_faults = [
            text.format(count_noun(num_runs, "run")) for num_runs, text in counts if num_runs
        ]
        fidelity = "chosen" if any(run.varies for run in runs) else "fixed"
        if not any(run.header and run.course is None for run in runs):
            fidelity = "–"
        warnings = (*counted_faults, *["noisy evaluations"] * is_noisy)
        by_agent[agent] = AgentFacts(_mean_costs(runs), warnings, fidelity)
    return by_agent


def _unlike_fidelities(comparison: Comparison) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many runs of each agent have no trial of full fidelity, and end below others."""
    study, without, below = comparison.study, dict[str, int](), dict[str, int]()
    for problem in study.problems:
        lines = [line for agent in study.agents for line in study.of(problem, agent)]
        levels = [float(x.level[-1]) for x in lines if x.level is not None and len(x.level)]
        for line in lines:
            if not len(line.value):
                without[line.agent] = without.get(line.agent, 0) + 1
            elif line.level is not None and line.level[-1] < max(levels):
                below[line.agent] = below.get(line.agent, 0) + 1
    return without, below


def overview(
    comparison: Comparison, agent_facts: Mapping[str, AgentFacts], styles: LineStyles
) -> str:
    """Return the rows as HTML: rank, regret, probability of beating random, problems, costs."""
    head = (
        "agent", "mean rank", "regret", "beats random", "problems", "over the budget",
        "a run cost", "warnings",
    )  # fmt: skip
    kinds = dict.fromkeys(agent_facts[agent].fidelity for agent in comparison.order)
    rows = ""
    for kind in kinds:
        if len(kinds) > 1:
            text = f"These agents {FIDELITIES[kind]}"
            rows += f'<tr><th class="kind" colspan="{len(head)}">{text}</th></tr>\n'
        agents = [agent for agent in comparison.order if agent_facts[agent].fidelity == kind]
        rows += "".join(
            _render_row(comparison, agent, agent_facts[agent], styles, head) for agent in agents
        )
    cells = "".join(f'<th scope="col">{word}</th>' for word in head)
    return f'<table class="agents">\n<tr>{cells}</tr>\n{rows}</table>'


def legend(comparison: Comparison) -> str:
    """Return what the rows show, as plain text."""
    blocks = "runs" if comparison.by_runs else "problems, by means over seeds"
    return (
        f"{comparison.measure}. Mean rank: over {blocks}; 1 is best. Of normalised regret, "
        f"{comparison.scale}; lower is better. Bar: 95 % bootstrap interval of its interquartile "
        "mean, with a tick a run. Beats random: the probability that a run is better than one of "
        "random search on a random problem, with its interval. Problems: mean normalised regret "
        "in percent; hatched where no test tells the agent from the best there. Curve: mean "
        f"normalised regret from a thousandth of {_describe_span(comparison)} to all of it, on a "
        "logarithmic axis. Costs are means over runs."
    )


def _describe_span(comparison: Comparison) -> str:
    """Return what counts as the full budget, as text."""
    return "the budget" if comparison.study.has_budgets else "the longest run here"


def summary_table(comparison: Comparison, agent_facts: Mapping[str, AgentFacts]) -> ReportTable:
    """Return the rows as numbers, with those that no small picture shows."""
    rows = []
    for agent in comparison.order:
        summary, costs = comparison.numbers[agent], agent_facts[agent].costs
        low, high = summary.iqm_interval or (None, None)
        better, bounds = _beats_random(comparison, agent) or (None, None)
        values = (
            (summary.rank, ".2f"), (summary.rank_runs, ".2f"), (summary.iqm, ".3g"), (low, ".2g"),
            (high, ".2g"), (better, ".2f"), (bounds and bounds[0], ".2f"),
            (bounds and bounds[1], ".2f"), (summary.anytime, ".3g"), (summary.worst[1], ".3g"),
        )  # fmt: skip
        overtuning = number_cell(summary.overtuning, ".2f")
        if summary.overtuning == np.inf:
            overtuning = Cell("no gain")
        cost_cells = [number_cell(cost, ".4g") for cost in costs or [None] * len(COSTS)]
        cells = [number_cell(value, form) for value, form in values]
        rows.append(
            [
                Cell(agent), Cell(agent_facts[agent].fidelity), *cells,
                Cell(short_name(summary.worst[0])), overtuning, *cost_cells,
                Cell("; ".join(agent_facts[agent].warnings) or "–"),
            ]
        )  # fmt: skip
    return ReportTable(
        "summary",
        "Agents in numbers",
        "Mean ranks are over problems (means over seeds) and over all runs. Of normalised regret, "
        f"{comparison.scale}: its interquartile mean (IQM) at the end, its mean over the "
        f"logarithm of {_describe_span(comparison)} (anytime), and its mean on the worst problem. "
        "Overtuning is the median share of the gain on test data that was lost again, where half "
        "of the runs gained any. An agent has chosen the fidelity of each trial, or it was fixed.",
        (
            "agent", "fidelity", "rank", "rank, all runs", "IQM of regret", "IQM from", "IQM to",
            "beats random", "from", "to", "anytime", "worst case", "worst on", "overtuning",
            *COSTS, "warnings",
        ),
        rows,
    )  # fmt: skip


def _render_row(
    comparison: Comparison,
    agent: str,
    agent_facts: AgentFacts,
    styles: LineStyles,
    head: Sequence[str],
) -> str:
    colour = styles[agent][0]
    cells = (
        f"{comparison.rank(agent):.2f}",
        _render_regret(comparison, agent),
        _render_chance(comparison, agent),
        _render_strip(comparison, agent),
        _render_curve(comparison, agent),
        _render_costs(
            agent_facts.costs, "steps" if comparison.measure in (FINAL, RETURN) else "trials"
        ),
        "<br>".join(map(escape, agent_facts.warnings)) or "–",
    )
    body = "".join(
        f'<td data-head="{word}"><div>{cell}</div></td>'
        for word, cell in zip(head[1:], cells, strict=True)
    )
    name = f'<th scope="row"><i class="key"></i>{escape(agent)}</th>'
    return f'<tr style="--own: {colour}">{name}{body}</tr>\n'


def _render_regret(comparison: Comparison, agent: str) -> str:
    iqm, interval = comparison.numbers[agent].iqm, comparison.numbers[agent].iqm_interval
    # The worst of all intervals fills the picture; single runs beyond it are ticks at its rim.
    top = 1.15 * max(1e-12, *(max(n.iqm_interval or (n.iqm,)) for n in comparison.numbers.values()))
    runs = np.concatenate(comparison.finals[agent])
    bounds = format_interval(interval, ".2g")
    text = f"regret {iqm:.2g} ({bounds}), {count_noun(len(runs), 'run')}"
    marks = "".join(_draw_tick(x, "run") for x in _scale_to_width(np.unique(runs), top))
    bar = _scale_to_width(np.array([*(interval or (iqm, iqm)), iqm]), top)
    return f"{_draw_svg(text, marks + _draw_bar(*bar))}<b>{iqm:.2g}</b> ({bounds})"


def _render_chance(comparison: Comparison, agent: str) -> str:
    improvement = _beats_random(comparison, agent)
    if improvement is None:
        return "–"
    value, interval = improvement
    bounds = format_interval(interval, ".2f")
    text = f"probability of beating random {value:.2f} ({bounds})"
    middle = f'<path class="half" d="M{WIDE / 2} 0V{HIGH}"/>'
    bar = _draw_bar(*_scale_to_width(np.array([*(interval or (value, value)), value]), 1.0))
    return f"{_draw_svg(text, middle + bar)}<b>{value:.2f}</b> ({bounds})"


def _beats_random(
    comparison: Comparison, agent: str
) -> tuple[float, tuple[float, float] | None] | None:
    for pair in comparison.pairs:
        if pair.agents == (agent, RANDOM):
            return pair.improvement, pair.interval
        if pair.agents == (RANDOM, agent):
            ends = pair.interval
            return 1 - pair.improvement, ends and (1 - ends[1], 1 - ends[0])
    return None


def _render_strip(comparison: Comparison, agent: str) -> str:
    cells = []
    for problem, runs, alike in zip(
        comparison.study.problems, comparison.finals[agent], comparison.alike[agent], strict=True
    ):
        mean = float(runs.mean())
        text = f"{short_name(problem)}: {mean:.3g}{', not told from the best' if alike else ''}"
        kind = ' class="alike"' if alike else ""
        shade = f"--much: {round(100 * mean)}%"
        name = escape(short_name(problem))
        cells.append(
            f'<i{kind} style="{shade}" title="{escape(text)}">{name} <b>{100 * mean:.0f}</b></i>'
        )
    return f'<span class="strip">{"".join(cells)}</span>'


def _render_curve(comparison: Comparison, agent: str) -> str:
    mean = comparison.regret[agent].mean
    top = max(1e-12, *(float(comparison.regret[a].mean.max()) for a in comparison.order))
    x = np.linspace(1, WIDE - 1, len(mean))
    y = HIGH - 2 - (HIGH - 4) * mean / top
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    text = f"mean regret over the budget: from {mean[0]:.2g} to {mean[-1]:.2g}"
    return _draw_svg(text, f'<polyline points="{points}"/>')


def _render_costs(costs: tuple[float, ...] | None, steps: str) -> str:
    if costs is None:
        return "not recorded"
    hours, megabytes, rounds, trials = costs
    return (
        f"{_format_number(hours)} simulated h<br>{_format_number(megabytes)} MB<br>"
        f"{_format_number(rounds)} rounds<br>{_format_number(trials)} {steps}"
    )


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _mean_costs(runs: Sequence[Run]) -> tuple[float, ...] | None:
    if not runs or not all(run.total_costs for run in runs):
        return None
    rows = [
        (
            run.trajectory.end_s / 3600,
            (run.total_costs.get("upload_bytes", 0.0) + run.total_costs.get("download_bytes", 0.0))
            / 1e6,
            run.total_costs.get("rounds", 0.0),
            float(_num_trials(run)),
        )
        for run in runs
    ]
    return tuple(np.mean(rows, axis=0).tolist())


def _num_trials(run: Run) -> int:
    return run.best.steps if run.best else 0


def _scale_to_width(values: Floats, top: float) -> list[float]:
    x: list[float] = (1 + (WIDE - 2) * np.clip(values / top, 0.0, 1.0)).tolist()
    return x


def _draw_tick(x: float, kind: str) -> str:
    return f'<path class="{kind}" d="M{x:.1f} 2V{HIGH - 2}"/>'


def _draw_bar(low: float, high: float, point: float) -> str:
    width = max(high - low, 1.0)
    return (
        f'<rect x="{low:.1f}" y="{HIGH / 2 - 4}" width="{width:.1f}" height="8"/>'
        f"{_draw_tick(point, 'point')}"
    )


def _draw_svg(text: str, content: str) -> str:
    return (
        f'<svg class="small" role="img" aria-label="{escape(text)}" '
        f'viewBox="0 0 {WIDE} {HIGH}">{content}</svg>'
    )
