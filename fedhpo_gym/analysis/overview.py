"""The first screen of a comparison: a row an agent, with what it reached, and what that cost."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from fedhpo_gym.analysis.comparison import FINAL, RETURN, Comparison, between, counted, short
from fedhpo_gym.analysis.page import Cell, Table, number_cell
from fedhpo_gym.analysis.plot import Looks
from fedhpo_gym.analysis.problems import Problem, Run
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
"""How agents are grouped: as many trials are not as much where some are short."""


@dataclass(frozen=True)
class AgentFacts:
    """What is said of an agent beside how good it is.

    Attributes:
        costs: mean of each of `COSTS` over its runs; None where a record is missing.
        fidelity: how fidelities of its trials come about, a key of `FIDELITIES`.
    """

    costs: tuple[float, ...] | None
    warnings: tuple[str, ...]
    fidelity: str


def facts(
    found: Comparison, problems: Sequence[Problem], unfinished: Iterable[Sequence[str]]
) -> dict[str, AgentFacts]:
    """Return what each agent's runs cost, and what is wrong with them."""
    without, below = _unlike_fidelities(found)
    ids = {problem.id for problem in problems}
    is_noisy = any(problem.kwargs.get("noise") for problem in problems)
    lost = [row[1] for row in unfinished if row[0].split(" ")[0] in ids]
    # What kept a limit in a trial of few rounds may break it at full fidelity, where it is judged.
    judged_at = " at full fidelity" if all(problem.known for problem in problems) else ""
    known = {}
    for agent in found.order:
        runs = [run for problem in problems for run in problem.runs.get(agent, ())]
        diverged, trials = sum(run.diverged for run in runs), sum(map(_trials, runs))
        lines = [run.trajectory for run in runs]
        broken = sum(bool(len(line.value)) and np.isinf(line.final) for line in lines)
        counts = (
            (broken, f"{{}} whose recommended configuration breaks a limit{judged_at}"),
            (diverged, f"{diverged} of {counted(trials, 'trial')} diverged"),
            (lost.count(agent.split(" (")[0]), "{} unfinished"),
            (without.get(agent, 0), "{} without full fidelity"),
            (below.get(agent, 0), "{} of lower fidelity"),
        )
        words = [text.format(counted(number, "run")) for number, text in counts if number]
        fidelity = "chosen" if any(run.varies for run in runs) else "fixed"
        if not any(run.header and run.course is None for run in runs):
            fidelity = "–"
        warnings = (*words, *["noisy evaluations"] * is_noisy)
        known[agent] = AgentFacts(_costs(runs), warnings, fidelity)
    return known


def _unlike_fidelities(found: Comparison) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many runs of each agent have no trial of full fidelity, and end below others."""
    study, without, below = found.study, dict[str, int](), dict[str, int]()
    for problem in study.problems:
        lines = [line for agent in study.agents for line in study.of(problem, agent)]
        levels = [float(one.level[-1]) for one in lines if one.level is not None and len(one.level)]
        for line in lines:
            if not len(line.value):
                without[line.agent] = without.get(line.agent, 0) + 1
            elif line.level is not None and line.level[-1] < max(levels):
                below[line.agent] = below.get(line.agent, 0) + 1
    return without, below


def overview(found: Comparison, known: Mapping[str, AgentFacts], looks: Looks) -> str:
    """Return the rows as HTML: rank, regret, probability of beating random, problems, costs."""
    head = (
        "agent", "mean rank", "regret", "beats random", "problems", "over the budget",
        "a run cost", "warnings",
    )  # fmt: skip
    kinds = dict.fromkeys(known[agent].fidelity for agent in found.order)
    rows = ""
    for kind in kinds:
        if len(kinds) > 1:
            words = f"These agents {FIDELITIES[kind]}"
            rows += f'<tr><th class="kind" colspan="{len(head)}">{words}</th></tr>\n'
        own = [agent for agent in found.order if known[agent].fidelity == kind]
        rows += "".join(_row(found, agent, known[agent], looks, head) for agent in own)
    cells = "".join(f'<th scope="col">{word}</th>' for word in head)
    return f'<table class="agents">\n<tr>{cells}</tr>\n{rows}</table>'


def legend(found: Comparison) -> str:
    """Return what the rows show, as plain text."""
    by = "runs" if found.by_runs else "problems, by means over seeds"
    return (
        f"{found.measure}. Mean rank: over {by}; 1 is best. Of normalised regret, {found.scale}; "
        "lower is better. Bar: 95 % bootstrap interval of its interquartile mean, with a tick a "
        "run. Beats random: the probability that a run is better than one of random search on a "
        "random problem, with its interval. Problems: mean normalised regret in percent; hatched "
        "where no test tells the agent from the best there. Curve: mean normalised regret "
        f"from a thousandth of {_span(found)} to all of it, on a logarithmic axis. Costs are means "
        "over runs."
    )


def _span(found: Comparison) -> str:
    """Return in words what counts as the whole budget."""
    return "the budget" if found.study.has_budgets else "the longest run here"


def summary_table(found: Comparison, known: Mapping[str, AgentFacts]) -> Table:
    """Return the rows as numbers, with what no small picture shows."""
    rows = []
    for agent in found.order:
        own, costs = found.numbers[agent], known[agent].costs
        low, high = own.iqm_interval or (None, None)
        better, bounds = _beats_random(found, agent) or (None, None)
        values = (
            (own.rank, ".2f"), (own.rank_runs, ".2f"), (own.iqm, ".3g"), (low, ".2g"),
            (high, ".2g"), (better, ".2f"), (bounds and bounds[0], ".2f"),
            (bounds and bounds[1], ".2f"), (own.anytime, ".3g"), (own.worst[1], ".3g"),
        )  # fmt: skip
        overtuned = number_cell(own.overtuning, ".2f")
        if own.overtuning == np.inf:
            overtuned = Cell("no gain")
        spent = [number_cell(cost, ".4g") for cost in costs or [None] * len(COSTS)]
        numbers = [number_cell(value, form) for value, form in values]
        rows.append(
            [
                Cell(agent), Cell(known[agent].fidelity), *numbers, Cell(short(own.worst[0])),
                overtuned, *spent, Cell("; ".join(known[agent].warnings) or "–"),
            ]
        )  # fmt: skip
    return Table(
        "summary",
        "Agents in numbers",
        "Mean ranks are over problems (means over seeds) and over all runs. Of normalised regret, "
        f"{found.scale}: its interquartile mean (IQM) at the end, its mean over the logarithm of "
        f"{_span(found)} (anytime), and its mean on the worst problem. Overtuning is the median "
        "share of the gain on test data that was lost again, where half of the runs gained any. "
        "An agent has chosen the fidelity of each trial, or it was fixed.",
        (
            "agent", "fidelity", "rank", "rank, all runs", "IQM of regret", "IQM from", "IQM to",
            "beats random", "from", "to", "anytime", "worst case", "worst on", "overtuning",
            *COSTS, "warnings",
        ),
        rows,
    )  # fmt: skip


def _row(found: Comparison, agent: str, own: AgentFacts, looks: Looks, head: Sequence[str]) -> str:
    colour = looks[agent][0]
    cells = (
        f"{found.rank(agent):.2f}",
        _regret(found, agent),
        _chance(found, agent),
        _strip(found, agent),
        _curve(found, agent),
        _spent(own.costs, "steps" if found.measure in (FINAL, RETURN) else "trials"),
        "<br>".join(map(escape, own.warnings)) or "–",
    )
    body = "".join(
        f'<td data-head="{word}"><div>{cell}</div></td>'
        for word, cell in zip(head[1:], cells, strict=True)
    )
    name = f'<th scope="row"><i class="key"></i>{escape(agent)}</th>'
    return f'<tr style="--own: {colour}">{name}{body}</tr>\n'


def _regret(found: Comparison, agent: str) -> str:
    iqm, interval = found.numbers[agent].iqm, found.numbers[agent].iqm_interval
    # The worst of all intervals fills the picture; single runs beyond it are ticks at its rim.
    top = 1.15 * max(1e-12, *(max(n.iqm_interval or (n.iqm,)) for n in found.numbers.values()))
    runs = np.concatenate(found.finals[agent])
    sure = between(interval, ".2g")
    words = f"regret {iqm:.2g} ({sure}), {counted(len(runs), 'run')}"
    marks = "".join(_tick(x, "run") for x in _across(np.unique(runs), top))
    at = _across(np.array([*(interval or (iqm, iqm)), iqm]), top)
    return f"{_picture(words, marks + _bar(*at))}<b>{iqm:.2g}</b> ({sure})"


def _chance(found: Comparison, agent: str) -> str:
    against = _beats_random(found, agent)
    if against is None:
        return "–"
    value, interval = against
    sure = between(interval, ".2f")
    words = f"probability of beating random {value:.2f} ({sure})"
    middle = f'<path class="half" d="M{WIDE / 2} 0V{HIGH}"/>'
    bar = _bar(*_across(np.array([*(interval or (value, value)), value]), 1.0))
    return f"{_picture(words, middle + bar)}<b>{value:.2f}</b> ({sure})"


def _beats_random(found: Comparison, agent: str) -> tuple[float, tuple[float, float] | None] | None:
    for pair in found.pairs:
        if pair.agents == (agent, RANDOM):
            return pair.improvement, pair.interval
        if pair.agents == (RANDOM, agent):
            ends = pair.interval
            return 1 - pair.improvement, ends and (1 - ends[1], 1 - ends[0])
    return None


def _strip(found: Comparison, agent: str) -> str:
    cells = []
    for problem, runs, alike in zip(
        found.study.problems, found.finals[agent], found.alike[agent], strict=True
    ):
        mean = float(runs.mean())
        words = f"{short(problem)}: {mean:.3g}{', not told from the best' if alike else ''}"
        kind = ' class="alike"' if alike else ""
        shade = f"--much: {round(100 * mean)}%"
        name = escape(short(problem))
        cells.append(
            f'<i{kind} style="{shade}" title="{escape(words)}">{name} <b>{100 * mean:.0f}</b></i>'
        )
    return f'<span class="strip">{"".join(cells)}</span>'


def _curve(found: Comparison, agent: str) -> str:
    mean = found.regret[agent].mean
    top = max(1e-12, *(float(found.regret[a].mean.max()) for a in found.order))
    x = np.linspace(1, WIDE - 1, len(mean))
    y = HIGH - 2 - (HIGH - 4) * mean / top
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    words = f"mean regret over the budget: from {mean[0]:.2g} to {mean[-1]:.2g}"
    return _picture(words, f'<polyline points="{points}"/>')


def _spent(costs: tuple[float, ...] | None, steps: str) -> str:
    if costs is None:
        return "not recorded"
    hours, megabytes, rounds, trials = costs
    return (
        f"{_short(hours)} simulated h<br>{_short(megabytes)} MB<br>"
        f"{_short(rounds)} rounds<br>{_short(trials)} {steps}"
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _costs(runs: Sequence[Run]) -> tuple[float, ...] | None:
    if not runs or not all(run.spent for run in runs):
        return None
    rows = [
        (
            run.trajectory.end_s / 3600,
            (run.spent.get("upload_bytes", 0.0) + run.spent.get("download_bytes", 0.0)) / 1e6,
            run.spent.get("rounds", 0.0),
            float(_trials(run)),
        )
        for run in runs
    ]
    return tuple(np.mean(rows, axis=0).tolist())


def _trials(run: Run) -> int:
    return run.best.steps if run.best else 0


def _across(values: Floats, top: float) -> list[float]:
    kept: list[float] = (1 + (WIDE - 2) * np.clip(values / top, 0.0, 1.0)).tolist()
    return kept


def _tick(x: float, kind: str) -> str:
    return f'<path class="{kind}" d="M{x:.1f} 2V{HIGH - 2}"/>'


def _bar(low: float, high: float, at: float) -> str:
    wide = max(high - low, 1.0)
    return (
        f'<rect x="{low:.1f}" y="{HIGH / 2 - 4}" width="{wide:.1f}" height="8"/>'
        f"{_tick(at, 'point')}"
    )


def _picture(words: str, inside: str) -> str:
    return (
        f'<svg class="small" role="img" aria-label="{escape(words)}" '
        f'viewBox="0 0 {WIDE} {HIGH}">{inside}</svg>'
    )
