"""The report: one self-contained HTML page, and its tables and figures as files.

`fedhpo-gym report` and `build_report` make it from the problems that `fedhpo_gym.analysis.group`
returns. The page begins with a comparison of agents for each measure that several agents share
(`_collect_studies`), followed by a section for each problem. Functions named `_render_*` return
HTML, and those named `_describe_*` return text for it.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape
from typing import Any, Final, TypeAlias

import numpy as np

from fedhpo_gym.analysis import page
from fedhpo_gym.analysis.comparison import (
    FINAL,
    REGRET,
    RETURN,
    VALIDATION,
    VOLUME,
    Comparison,
    answer,
    compare_agents,
    comparison_tables,
    count_noun,
    state_margin,
    state_verdict,
    summary_cell,
    tied_with_best,
)
from fedhpo_gym.analysis.figures import (
    Figure,
    File,
    attainment_figures,
    comparison_figures,
    incumbents_figure,
    objective_label,
    regret_figure,
    schedule_figures,
)
from fedhpo_gym.analysis.groups import flatten_arguments
from fedhpo_gym.analysis.overview import AgentFacts, collect_facts, legend, overview, summary_table
from fedhpo_gym.analysis.plot import INK, LineStyles, line_styles
from fedhpo_gym.analysis.problems import NO_GUARANTEE, ProblemRuns, Run, Summary, finals
from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import MissingDataError, MissingDependencyError, require_known
from fedhpo_gym.records.incumbents import COLUMNS, RULE, Study, Trajectory

TITLE = "Federated hyperparameter optimization: report"
RULES_IN_WORDS = {
    RULE: "The incumbent is the trial that the run recommends: the best so far in the first "
    "objective that keeps all constraints, at whatever fidelity.",
    "highest_fidelity": "The incumbent on this page is the trial of lowest validation loss among "
    "those of the highest fidelity tried so far, where fidelity is rounds times client sample rate "
    "(Wang et al., 2022, section 4.1); so its loss may rise at a new fidelity.",
    "full_fidelity": "On this page only trials of full fidelity count, which is the highest of any "
    "run on the problem.",
}
NOMINAL = {"epsilon": "nominal epsilon"}
"""Hyperparameters with the name of an objective: a nominal epsilon is not the epsilon spent."""
CONSTRAINED = (
    ". Both are of the configurations that keep the constraints at full fidelity. One that kept "
    "them only at the lower fidelity that was asked has infinite regret"
)
TRUE_LOSSES = (
    " Its validation loss is the true one at full fidelity, so loss minus regret is the optimum; "
    "test numbers are those of its trial."
)
CHOSEN, FIXED = ", fidelity chosen", ", fidelity fixed"
FOLDED = frozenset({"pairs", "ranks"})
"""Tables that are collapsed until a reader opens them."""


MOST_STATED: Final = 3
"""Most problems whose best configurations are stated in sentences; the page has all of them."""


@dataclass(frozen=True)
class Report:
    """A page, and its tables and figures as files for a paper.

    Attributes:
        html: the page, which needs no other file.
        files: contents by file name: every table as CSV and LaTeX, every figure as SVG and PDF
            with its numbers as CSV, and all incumbents as a table that `fedhpo-gym report --table`
            reads. A PDF is a function that returns its bytes.
        words: sentences on which agent is best and how certain that is; none where agents cannot
            be compared.
    """

    html: str
    files: Mapping[str, File]
    words: tuple[str, ...] = ()


_Section: TypeAlias = tuple[str, Mapping[str, File]]
"""The HTML of a section, and the contents of its files by name."""


@validate_call
def build_report(
    problems: Sequence[ProblemRuns],
    version: str,
    now: datetime | None = None,
    unfinished: Sequence[Sequence[str]] = (),
    rule: str = RULE,
) -> Report:
    """Return the report of some problems, as `fedhpo_gym.analysis.group` makes them.

    Args:
        problems: their runs are compared where several agents have solved the same ones.
        version: version of the package that makes the report.
        now: time of the report; by default, now.
        unfinished: runs without a record: problem, agent, seed, status, and the reason.
        rule: the rule of incumbents that `group` used; the page states it.

    Raises:
        MissingDataError: there is no record.
        MissingDependencyError: matplotlib is not installed.
        UnknownNameError: there is no such rule.
    """
    require_known("rule of incumbents", rule, RULES_IN_WORDS)
    if not problems:
        raise MissingDataError("there is nothing to report; make records with `fedhpo-gym run`")
    lines = [run.trajectory for problem in problems for run in problem.all_runs()]
    styles = line_styles(line.agent for line in lines)
    studies, notes = _collect_studies(problems)
    comparisons = [compare_agents(*study) for study in studies]
    named = {
        label: problem
        for problem in problems
        for label in (problem.name, *_split_names(problem).values())
    }
    answers = []
    for index, comparison in enumerate(comparisons, start=1):
        own_problems = [named[problem] for problem in comparison.study.problems]
        answers.append(
            _render_answer(
                comparison, index, styles, collect_facts(comparison, own_problems, unfinished)
            )
        )
    anchors = [f"problem-{number}" for number in range(1, len(problems) + 1)]
    sections = [_render_section(*pair, styles) for pair in zip(problems, anchors, strict=True)]
    incumbents = (row for line in lines for row in line.rows())
    files: dict[str, File] = {"incumbents.csv": page.csv_text([COLUMNS, *incumbents])}
    for _, section_files in (*answers, *sections):
        files |= section_files
    html = page.PAGE.substitute(
        title=escape(TITLE),
        style=page.STYLE,
        meta=_describe_report(problems, version, now or datetime.now(UTC)),
        answers="\n".join(section for section, _ in answers),
        notes="".join(f"<p>{escape(note)}</p>" for note in notes),
        sections="\n".join(section for section, _ in sections),
        unfinished=_render_unfinished(unfinished),
        rule=RULES_IN_WORDS[rule],
        files="Every table is also a CSV and a LaTeX file, and every figure an SVG and a PDF file "
        "with its numbers as CSV, in the folder that is written beside this page.",
    )
    return Report(
        html, files, (*_verdict_sentences(comparisons), *notes, *_best_configurations(problems))
    )


@validate_call
def sentences(problems: Sequence[ProblemRuns]) -> tuple[str, ...]:
    """Return the `words` of the report of some problems, without drawing anything."""
    studies, notes = _collect_studies(problems)
    return (
        *_verdict_sentences([compare_agents(*study) for study in studies]),
        *notes,
        *_best_configurations(problems),
    )


def _verdict_sentences(comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    heads = [
        f"{comparison.measure}: " if len(comparisons) > 1 else "" for comparison in comparisons
    ]
    pairs = zip(heads, comparisons, strict=True)
    return tuple(
        text
        for head, comparison in pairs
        for text in (head + state_verdict(comparison), state_margin(comparison))
    )


def _best_configurations(problems: Sequence[ProblemRuns]) -> Iterator[str]:
    """Yield a sentence with the best configuration of each problem, where they are few."""
    for problem in problems if len(problems) <= MOST_STATED else ():
        run = problem.winner()
        if run and run.best and run.course is None and run.scored is None:
            best, line = {**run.best.configuration, **run.best.fidelity}, run.trajectory
            settings = (f"{name} {value}" for name, value in best.items())
            run_name = f"{line.agent}, seed {line.seed}"
            yield f"Best configuration on {problem.name} ({run_name}): {', '.join(settings)}."


def _collect_studies(problems: Sequence[ProblemRuns]) -> tuple[list[tuple[Study, str]], list[str]]:
    """Return studies with the measure of each, and notes on what is not compared."""
    notes, lines = [], dict[str, list[Trajectory]]()
    try:
        volumes = [line for problem in problems for line in problem.volumes()]
    except MissingDependencyError as error:
        volumes = []
        notes.append(f"Fronts are not judged: {error}")
    lines[VOLUME] = volumes
    choosing: set[str] = set()
    judged = {line.problem for line in volumes}
    for problem in problems:
        if problem.name in judged:
            continue
        rules = _split_names(problem)
        for agent, runs in problem.runs.items():
            name = rules.get(agent, problem.name)
            for run in runs:
                for measure, line in _measure_run(problem, run):
                    lines.setdefault(measure, []).append(replace(line, problem=name))
        choosing |= {agent for agent, name in rules.items() if name.endswith(CHOSEN)}
    if choosing:
        notes.append(
            f"{', '.join(sorted(choosing))} chose the fidelity of each trial, and others did not. "
            "With a budget in trials these are not ranked together; a budget in simulated time "
            "(`--budget-s`) judges them by one thing."
        )
    measures = [name for name in (VOLUME, REGRET, FINAL, RETURN, VALIDATION) if name in lines]
    return [(study, kind) for kind in measures for study in Study.whole(lines[kind])], notes


def _measure_run(problem: ProblemRuns, run: Run) -> Iterator[tuple[str, Trajectory]]:
    """Yield the measures of a run, each with its values over time."""
    if run.course is not None:
        yield FINAL, run.trajectory
        if run.returned is not None:
            yield RETURN, run.returned
    elif run.relative is not None and all(other.relative for other in problem.all_runs()):
        yield REGRET, run.relative
    else:
        yield VALIDATION, run.trajectory


def _split_names(problem: ProblemRuns) -> dict[str, str]:
    """Return by agent a name of the problem that separates agents with unlike fidelities."""
    varies = {agent: any(run.varies for run in runs) for agent, runs in problem.runs.items()}
    if "budget_trials" not in problem.kwargs or len({*varies.values()}) < 2:
        return {}
    return {a: f"{problem.name}{CHOSEN if is_chosen else FIXED}" for a, is_chosen in varies.items()}


def _render_answer(
    comparison: Comparison, number: int, styles: LineStyles, agent_facts: Mapping[str, AgentFacts]
) -> _Section:
    prefix = f"study-{number}"
    figures = comparison_figures(comparison, prefix, styles)
    tables = (summary_table(comparison, agent_facts), *comparison_tables(comparison))
    count = count_noun(len(comparison.study.problems), "problem")
    first, *others = answer(comparison)
    html = page.ANSWER.substitute(
        anchor=prefix,
        verdict=escape(first),
        rows=overview(comparison, agent_facts, styles),
        legend=escape(legend(comparison)),
        heading=f"{len(comparison.order)} agents on {count}, by {comparison.measure[0].lower()}"
        f"{comparison.measure[1:]}",
        words="\n".join(f"<p>{escape(text)}</p>" for text in others),
        figures="".join(map(_render_figure, figures)),
        body="".join(map(_render_table, tables)),
    )
    files = _figure_files(figures)
    for table in tables:
        files |= _table_files(f"{prefix}-{table.name}", table)
    return html, files


def _render_section(problem: ProblemRuns, anchor: str, styles: LineStyles) -> _Section:
    figures = [incumbents_figure(problem, f"{anchor}-incumbents", styles)]
    if len(problem.runs) > 1 and not problem.is_course:
        figures.append(regret_figure(problem, f"{anchor}-regret", styles))
    figures += attainment_figures(problem, f"{anchor}-attainment", styles)
    figures += schedule_figures(problem, f"{anchor}-schedule", styles)
    results = _results_table(problem)
    html = page.SECTION.substitute(
        anchor=anchor,
        heading=escape(problem.name),
        short=count_noun(sum(map(len, problem.runs.values())), "run"),
        settings=f"{_describe_settings(problem)}. {_describe_data(problem)}"
        f"{_describe_regret(problem)}.",
        figures="".join(map(_render_figure, figures)),
        note=escape(results.note),
        results=results.html(),
        best=_render_best(problem),
    )
    return html, _table_files(f"{anchor}-results", results) | _figure_files(figures)


def _render_unfinished(rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = ("problem", "agent", "seed", "what became of it", "what is known")
    table = page.ReportTable("unfinished", "", "", head, [[*map(page.Cell, row)] for row in rows])
    return page.UNFINISHED.substitute(table=table.html())


def _render_best(problem: ProblemRuns) -> str:
    run = problem.winner()
    if run is None or run.best is None or run.course is not None:
        return ""
    line, best = run.trajectory, run.best
    test = f"{line.test[-1]:.4f}" if line.test is not None and len(line.test) else "unknown"
    accuracy = "unknown" if best.test_accuracy is None else f"{best.test_accuracy:.4f}"
    return page.BEST.substitute(
        winner=f"Found by <b>{escape(line.agent)}</b> with seed {line.seed} in {best.word} "
        f"{best.number} of {best.steps}: validation loss {line.final:.4f}"
        f"{' at full fidelity' * _has_true_losses(problem)}, "
        f"test loss {test}, test accuracy {accuracy} in the trial.",
        configuration=_render_pairs(
            {NOMINAL.get(k, k): v for k, v in {**best.configuration, **best.fidelity}.items()}
            | {objective_label(k): _format_objective(k, v) for k, v in best.objectives.items()}
        ),
    )


def _format_objective(objective: str, value: float) -> str:
    if objective == "epsilon" and value >= NO_GUARANTEE:
        return "no guarantee"
    return f"{value:.4g}"


def _describe_data(problem: ProblemRuns) -> str:
    if not problem.fingerprints:
        return "From a table of another program"
    names = ", ".join(f"<code>{escape(name)}</code>" for name in problem.fingerprints)
    if len(problem.fingerprints) == 1:
        return f"Data fingerprint {names}"
    return f"Data fingerprints {names}: the same numbers under names of several versions"


def _describe_report(problems: Sequence[ProblemRuns], version: str, now: datetime) -> str:
    runs = [run for problem in problems for run in problem.all_runs()]
    written_by = ", ".join(sorted({run.header.package_version for run in runs if run.header}))
    records = f"; records written by fedhpo-gym {written_by}" if written_by else ""
    return escape(
        f"{count_noun(len(runs), 'run')} on {count_noun(len(problems), 'problem')}. "
        f"Report made {now:%Y-%m-%d %H:%M} {now.tzname() or ''} by fedhpo-gym {version}, "
        f"Python {platform.python_version()}{records}."
    )


def _describe_settings(problem: ProblemRuns) -> str:
    # The id says what the task is.
    pairs = [
        (name, value) for name, value in flatten_arguments(problem.kwargs).items() if name != "task"
    ]
    return ", ".join(f"{escape(name)} = {escape(value)}" for name, value in pairs) or "defaults"


def _results_table(problem: ProblemRuns) -> page.ReportTable:
    """Return the final results; bold is statistically tied with the best of its column."""
    picks = {"val_loss": 1, "test_loss": 1, "test_accuracy": -1}
    if any(run.returned for run in problem.all_runs()):
        picks["returned"] = -1
    if problem.known is not None:
        picks |= {"regret": 1, "relative_regret": 1}
    results = {agent: finals(runs) for agent, runs in problem.runs.items()}
    bold = {}
    for name, sign in picks.items():
        signed = {
            a: sign * np.array(values[name])
            for a, values in results.items()
            if None not in values[name]
        }
        bold[name] = tied_with_best(signed) if len(signed) > 1 else {}
    rows = []
    for agent, values in results.items():
        cells = [
            summary_cell(Summary.of(values[name]), 4, bold[name].get(agent, False))
            for name in picks
        ]
        count = len(problem.runs[agent])
        trials = summary_cell(Summary.of(values["trials"]), 1)
        rows.append([page.Cell(agent), page.Cell(str(count), count), *cells, trials])
    names = {"val_loss": "validation loss", "returned": "return"}
    columns = [names.get(name, name.replace("_", " ")) for name in picks]
    head = ("agent", "runs", *columns, f"{'steps' if problem.is_course else 'trials'} per run")
    note = (
        "Mean ± standard deviation over runs; bold is what no test tells from the best of its "
        f"column.{' Losses are those at the end of the course.' if problem.is_course else ''}"
        f" A row is about one incumbent a run, the last.{TRUE_LOSSES * _has_true_losses(problem)}"
    )
    return page.ReportTable("results", "Final results", note, head, rows)


def _has_true_losses(problem: ProblemRuns) -> bool:
    return problem.known is not None and problem.known.objective == "val_loss"


def _describe_regret(problem: ProblemRuns) -> str:
    references = problem.known
    if references is None:
        return ""
    optimum = (
        "configuration there" if references.exact else "there that a search of the surrogate found"
    )
    return (
        ". Regret is of the recommended configuration at full fidelity, in "
        f"{references.objective}: 0 is the best {optimum}, {references.best:.4f}; relative regret "
        f"of 1 is the median configuration, {references.typical:.4g}, or "
        f"worse{CONSTRAINED if problem.kwargs.get('constraints') else ''}"
    )


def _render_pairs(pairs: Mapping[str, Any]) -> str:
    texts = {k: f"{v:.6g}" if isinstance(v, float) else str(v) for k, v in pairs.items()}
    rows = [
        f'<tr><td><code>{escape(name)}</code></td><td class="number">{escape(value)}</td></tr>'
        for name, value in texts.items()
    ]
    return "<table>\n" + "\n".join(rows) + "\n</table>"


def _render_figure(figure: Figure) -> str:
    """Return a picture in the text colour of the page, with a label for screen readers."""
    table = figure.table
    opening = f'<svg role="img" aria-label="{escape(table.title)}" '
    svg = figure.picture.svg.replace("<svg ", opening, 1).replace(INK, "currentColor")
    title, caption = escape(table.title), escape(table.note)
    return page.FIGURE.substitute(anchor=table.name, svg=svg, title=title, caption=caption)


def _render_table(table: page.ReportTable) -> str:
    html = page.TABLE.substitute(
        title=escape(table.title), note=escape(table.note), table=table.html()
    )
    if table.name not in FOLDED:
        return html
    return f"<details><summary>{escape(table.title)}</summary>\n{html}</details>\n"


def _figure_files(figures: Iterable[Figure]) -> dict[str, File]:
    return {name: content for figure in figures for name, content in figure.files().items()}


def _table_files(name: str, table: page.ReportTable) -> dict[str, File]:
    return {f"{name}.csv": table.csv(), f"{name}.tex": table.latex()}
