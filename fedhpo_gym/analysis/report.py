"""Run records -> one self-contained HTML page, and its tables and figures as files."""

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
    alike_on,
    answer,
    compare,
    comparison_tables,
    counted,
    how_much,
    summary_cell,
    verdict,
)
from fedhpo_gym.analysis.figures import (
    Figure,
    File,
    attainment_figures,
    comparison_figures,
    in_words,
    incumbents_figure,
    regret_figure,
    schedule_figures,
)
from fedhpo_gym.analysis.groups import flat
from fedhpo_gym.analysis.overview import AgentFacts, facts, legend, overview, summary_table
from fedhpo_gym.analysis.plot import INK, Looks, looks_of
from fedhpo_gym.analysis.problems import NO_GUARANTEE, Problem, Run, Summary, finals
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
"""Hyperparameters whose names are those of objectives: what a mechanism is set to is not spent."""
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
"""Tables that are folded up until they are asked for."""


MOST_TOLD: Final = 3
"""Problems whose best configurations are told in words; of more, the page has them."""


@dataclass(frozen=True)
class Report:
    """A page and what can be taken from it into a paper.

    Attributes:
        html: the page, which needs no other file.
        files: contents by file name: every table as CSV and LaTeX, every figure as SVG and PDF
            with its numbers as CSV, and all incumbents as a table that `fedhpo-gym report --table`
            reads. A PDF is made when it is called.
        words: who wins and how sure that is, in sentences; none where agents cannot be compared.
    """

    html: str
    files: Mapping[str, File]
    words: tuple[str, ...] = ()


_Part: TypeAlias = tuple[str, Mapping[str, File]]
"""A section, and the files it brings."""


@validate_call
def build_report(
    problems: Sequence[Problem],
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
        unfinished: runs without a record: problem, agent, seed, status, and what is known of it.
        rule: what `group` was told; the page says it.

    Raises:
        MissingDataError: there is no record.
        MissingDependencyError: matplotlib is not installed.
        UnknownNameError: there is no such rule.
    """
    require_known("rule of incumbents", rule, RULES_IN_WORDS)
    if not problems:
        raise MissingDataError("there is nothing to report; make records with `fedhpo-gym run`")
    lines = [run.trajectory for problem in problems for run in problem.all_runs()]
    looks = looks_of(line.agent for line in lines)
    studies, notes = _studies(problems)
    compared = [compare(*study) for study in studies]
    named = {label: one for one in problems for label in (one.name, *_rules(one).values())}
    answers = []
    for place, one in enumerate(compared, start=1):
        own = [named[problem] for problem in one.study.problems]
        answers.append(_answer(one, place, looks, facts(one, own, unfinished)))
    anchors = [f"problem-{number}" for number in range(1, len(problems) + 1)]
    sections = [_section(*pair, looks) for pair in zip(problems, anchors, strict=True)]
    incumbents = (row for line in lines for row in line.rows())
    files: dict[str, File] = {"incumbents.csv": page.csv_text([COLUMNS, *incumbents])}
    for _, brought in (*answers, *sections):
        files |= brought
    html = page.PAGE.substitute(
        title=escape(TITLE),
        style=page.STYLE,
        meta=_meta(problems, version, now or datetime.now(UTC)),
        answers="\n".join(part for part, _ in answers),
        notes="".join(f"<p>{escape(note)}</p>" for note in notes),
        sections="\n".join(part for part, _ in sections),
        unfinished=_unfinished(unfinished),
        rule=RULES_IN_WORDS[rule],
        files="Every table is also a CSV and a LaTeX file, and every figure an SVG and a PDF file "
        "with its numbers as CSV, in the folder that is written beside this page.",
    )
    return Report(html, files, (*_words(compared), *notes, *_found(problems)))


@validate_call
def sentences(problems: Sequence[Problem]) -> tuple[str, ...]:
    """Return the `words` of the report of some problems; nothing is drawn for them."""
    studies, notes = _studies(problems)
    return (*_words([compare(*study) for study in studies]), *notes, *_found(problems))


def _words(compared: Sequence[Comparison]) -> tuple[str, ...]:
    heads = [f"{one.measure}: " if len(compared) > 1 else "" for one in compared]
    parts = zip(heads, compared, strict=True)
    return tuple(text for head, one in parts for text in (head + verdict(one), how_much(one)))


def _found(problems: Sequence[Problem]) -> Iterator[str]:
    """Yield the best configuration of each of a few problems, in a sentence."""
    for problem in problems if len(problems) <= MOST_TOLD else ():
        run = problem.winner()
        if run and run.best and run.course is None and run.scored is None:
            best, line = {**run.best.configuration, **run.best.fidelity}, run.trajectory
            told = (f"{name} {value}" for name, value in best.items())
            by = f"{line.agent}, seed {line.seed}"
            yield f"Best configuration on {problem.name} ({by}): {', '.join(told)}."


def _studies(problems: Sequence[Problem]) -> tuple[list[tuple[Study, str]], list[str]]:
    """Return what is compared, by what measure, and what a reader must know of what is not."""
    notes, lines = [], dict[str, list[Trajectory]]()
    try:
        volumes = [line for problem in problems for line in problem.volumes()]
    except MissingDependencyError as error:
        volumes = []
        notes.append(f"Fronts are not judged: {error}")
    lines[VOLUME] = volumes
    chosen: set[str] = set()
    judged = {line.problem for line in volumes}
    for problem in problems:
        if problem.name in judged:
            continue
        rules = _rules(problem)
        for agent, runs in problem.runs.items():
            name = rules.get(agent, problem.name)
            for run in runs:
                for measure, line in _measured(problem, run):
                    lines.setdefault(measure, []).append(replace(line, problem=name))
        chosen |= {agent for agent, name in rules.items() if name.endswith(CHOSEN)}
    if chosen:
        notes.append(
            f"{', '.join(sorted(chosen))} chose the fidelity of each trial, and others did not. "
            "With a budget in trials these are not ranked together; a budget in simulated time "
            "(`--budget-s`) judges them by one thing."
        )
    kinds = [name for name in (VOLUME, REGRET, FINAL, RETURN, VALIDATION) if name in lines]
    return [(study, kind) for kind in kinds for study in Study.whole(lines[kind])], notes


def _measured(problem: Problem, run: Run) -> Iterator[tuple[str, Trajectory]]:
    """Yield the measures by which a run is judged, and its values over time in each."""
    if run.course is not None:
        yield FINAL, run.trajectory
        if run.returned is not None:
            yield RETURN, run.returned
    elif run.relative is not None and all(one.relative for one in problem.all_runs()):
        yield REGRET, run.relative
    else:
        yield VALIDATION, run.trajectory


def _rules(problem: Problem) -> dict[str, str]:
    """Return names that part the problem's agents where they must not be in one ranking."""
    varies = {agent: any(run.varies for run in of) for agent, of in problem.runs.items()}
    if "budget_trials" not in problem.kwargs or len({*varies.values()}) < 2:
        return {}
    return {a: f"{problem.name}{CHOSEN if chosen else FIXED}" for a, chosen in varies.items()}


def _answer(found: Comparison, number: int, looks: Looks, known: Mapping[str, AgentFacts]) -> _Part:
    prefix = f"study-{number}"
    figures = comparison_figures(found, prefix, looks)
    tables = (summary_table(found, known), *comparison_tables(found))
    count = counted(len(found.study.problems), "problem")
    words, *rest = answer(found)
    html = page.ANSWER.substitute(
        anchor=prefix,
        verdict=escape(words),
        rows=overview(found, known, looks),
        legend=escape(legend(found)),
        heading=f"{len(found.order)} agents on {count}, by {found.measure[0].lower()}"
        f"{found.measure[1:]}",
        words="\n".join(f"<p>{escape(text)}</p>" for text in rest),
        figures="".join(map(_figure, figures)),
        body="".join(map(_table, tables)),
    )
    files = _files(figures)
    for table in tables:
        files |= _table_files(f"{prefix}-{table.name}", table)
    return html, files


def _section(problem: Problem, anchor: str, looks: Looks) -> _Part:
    figures = [incumbents_figure(problem, f"{anchor}-incumbents", looks)]
    if len(problem.runs) > 1 and not problem.is_course:
        figures.append(regret_figure(problem, f"{anchor}-regret", looks))
    figures += attainment_figures(problem, f"{anchor}-attainment", looks)
    figures += schedule_figures(problem, f"{anchor}-schedule", looks)
    results = _results(problem)
    html = page.SECTION.substitute(
        anchor=anchor,
        heading=escape(problem.name),
        short=counted(sum(map(len, problem.runs.values())), "run"),
        settings=f"{_settings(problem)}. {_data(problem)}{_truth(problem)}.",
        figures="".join(map(_figure, figures)),
        note=escape(results.note),
        results=results.html(),
        best=_best(problem),
    )
    return html, _table_files(f"{anchor}-results", results) | _files(figures)


def _unfinished(rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = ("problem", "agent", "seed", "what became of it", "what is known")
    table = page.Table("unfinished", "", "", head, [[*map(page.Cell, row)] for row in rows])
    return page.UNFINISHED.substitute(table=table.html())


def _best(problem: Problem) -> str:
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
        configuration=_pairs_table(
            {NOMINAL.get(k, k): v for k, v in {**best.configuration, **best.fidelity}.items()}
            | {in_words(k): _shown(k, v) for k, v in best.objectives.items()}
        ),
    )


def _shown(objective: str, value: float) -> str:
    if objective == "epsilon" and value >= NO_GUARANTEE:
        return "no guarantee"
    return f"{value:.4g}"


def _data(problem: Problem) -> str:
    if not problem.fingerprints:
        return "From a table of another program"
    names = ", ".join(f"<code>{escape(name)}</code>" for name in problem.fingerprints)
    if len(problem.fingerprints) == 1:
        return f"Data fingerprint {names}"
    return f"Data fingerprints {names}: the same numbers under names of several versions"


def _meta(problems: Sequence[Problem], version: str, now: datetime) -> str:
    runs = [run for problem in problems for run in problem.all_runs()]
    written_by = ", ".join(sorted({run.header.package_version for run in runs if run.header}))
    records = f"; records written by fedhpo-gym {written_by}" if written_by else ""
    return escape(
        f"{counted(len(runs), 'run')} on {counted(len(problems), 'problem')}. "
        f"Report made {now:%Y-%m-%d %H:%M} {now.tzname() or ''} by fedhpo-gym {version}, "
        f"Python {platform.python_version()}{records}."
    )


def _settings(problem: Problem) -> str:
    # The id says what the task is.
    pairs = [(name, value) for name, value in flat(problem.kwargs).items() if name != "task"]
    return ", ".join(f"{escape(name)} = {escape(value)}" for name, value in pairs) or "defaults"


def _results(problem: Problem) -> page.Table:
    """Return the final results; bold is what no test tells from the best of a column."""
    picks = {"val_loss": 1, "test_loss": 1, "test_accuracy": -1}
    if any(run.returned for run in problem.all_runs()):
        picks["returned"] = -1
    if problem.known is not None:
        picks |= {"regret": 1, "relative_regret": 1}
    found = {agent: finals(runs) for agent, runs in problem.runs.items()}
    bold = {}
    for name, sign in picks.items():
        known = {a: sign * np.array(of[name]) for a, of in found.items() if None not in of[name]}
        bold[name] = alike_on(known) if len(known) > 1 else {}
    rows = []
    for agent, of in found.items():
        cells = [
            summary_cell(Summary.of(of[name]), 4, bold[name].get(agent, False)) for name in picks
        ]
        count = len(problem.runs[agent])
        trials = summary_cell(Summary.of(of["trials"]), 1)
        rows.append([page.Cell(agent), page.Cell(str(count), count), *cells, trials])
    names = {"val_loss": "validation loss", "returned": "return"}
    columns = [names.get(name, name.replace("_", " ")) for name in picks]
    head = ("agent", "runs", *columns, f"{'steps' if problem.is_course else 'trials'} per run")
    note = (
        "Mean ± standard deviation over runs; bold is what no test tells from the best of its "
        f"column.{' Losses are those at the end of the course.' if problem.is_course else ''}"
        f" A row is about one incumbent a run, the last.{TRUE_LOSSES * _has_true_losses(problem)}"
    )
    return page.Table("results", "Final results", note, head, rows)


def _has_true_losses(problem: Problem) -> bool:
    return problem.known is not None and problem.known.objective == "val_loss"


def _truth(problem: Problem) -> str:
    known = problem.known
    if known is None:
        return ""
    where = "configuration there" if known.exact else "there that a search of the surrogate found"
    return (
        f". Regret is of the recommended configuration at full fidelity, in {known.objective}: 0 "
        f"is the best {where}, {known.best:.4f}; relative regret of 1 is the median configuration, "
        f"{known.typical:.4g}, or worse{CONSTRAINED if problem.kwargs.get('constraints') else ''}"
    )


def _pairs_table(pairs: Mapping[str, Any]) -> str:
    words = {k: f"{v:.6g}" if isinstance(v, float) else str(v) for k, v in pairs.items()}
    rows = [
        f'<tr><td><code>{escape(name)}</code></td><td class="number">{escape(value)}</td></tr>'
        for name, value in words.items()
    ]
    return "<table>\n" + "\n".join(rows) + "\n</table>"


def _figure(figure: Figure) -> str:
    """Return a picture whose ink is that of the page, light or dark, and that can be read out."""
    numbers = figure.numbers
    words = f'<svg role="img" aria-label="{escape(numbers.title)}" '
    svg = figure.drawn.svg.replace("<svg ", words, 1).replace(INK, "currentColor")
    title, caption = escape(numbers.title), escape(numbers.note)
    return page.FIGURE.substitute(anchor=numbers.name, svg=svg, title=title, caption=caption)


def _table(table: page.Table) -> str:
    html = page.TABLE.substitute(
        title=escape(table.title), note=escape(table.note), table=table.html()
    )
    if table.name not in FOLDED:
        return html
    return f"<details><summary>{escape(table.title)}</summary>\n{html}</details>\n"


def _files(figures: Iterable[Figure]) -> dict[str, File]:
    return {name: content for figure in figures for name, content in figure.files().items()}


def _table_files(name: str, table: page.Table) -> dict[str, File]:
    return {f"{name}.csv": table.csv(), f"{name}.tex": table.latex()}
