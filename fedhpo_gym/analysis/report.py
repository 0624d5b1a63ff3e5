"""Run records -> one self-contained HTML page, and its tables and figures as files."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from fedhpo_gym.analysis.comparison import (
    REGRET,
    VALIDATION,
    VOLUME,
    Comparison,
    answer,
    compare,
    comparison_tables,
    verdict,
)
from fedhpo_gym.analysis.comparison.answer import counted
from fedhpo_gym.analysis.figures import (
    Figure,
    File,
    attainment_figure,
    comparison_figures,
    early_differences,
    incumbents_figure,
    regret_figure,
)
from fedhpo_gym.analysis.grouping import RULE, group
from fedhpo_gym.analysis.page import (
    ANSWER,
    BEST,
    FIGURE,
    PAGE,
    SECTION,
    STYLE,
    TABLE,
    UNFINISHED,
)
from fedhpo_gym.analysis.plot import Looks, looks_of
from fedhpo_gym.analysis.problems import AgentResult, Known, Problem, Summary
from fedhpo_gym.analysis.records import RunRecord
from fedhpo_gym.analysis.tables import Cell, Table
from fedhpo_gym.analysis.trajectories import Study, Trajectory
from fedhpo_gym.analysis.trajectories.foreign import COLUMNS
from fedhpo_gym.errors import MissingDataError, MissingDependencyError
from fedhpo_gym.typed import checked_types

TITLE = "Federated hyperparameter optimization: report"
RULES_IN_WORDS = {
    "full_fidelity": "On this page only trials of full fidelity count, which is the highest of any "
    "run on the problem.",
    "best_seen": "On this page fidelities are ignored: the incumbent is the best seen.",
}
NOMINAL = {"epsilon": "nominal epsilon"}
"""Hyperparameters whose names are those of objectives: what a mechanism is set to is not spent."""
FOLDED = frozenset({"pairs", "ranks"})
"""Tables that are folded up until they are asked for."""


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


@dataclass(frozen=True)
class _Part:
    """A section, and the files it brings."""

    html: str
    files: Mapping[str, File]


@checked_types
def make_report(
    records: Iterable[tuple[Path, RunRecord]], version: str, now: datetime | None = None
) -> str:
    """Return the report of some runs as an HTML page; see `build_report`."""
    return build_report(group(records), version, now).html


@checked_types
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
    """
    if not problems:
        raise MissingDataError("there is nothing to report; make records with `fedhpo-gym run`")
    lines = [run.trajectory for problem in problems for of in problem.runs.values() for run in of]
    looks = looks_of(line.agent for line in lines)
    volumes, missing = _volumes(problems)
    studies = [
        *((study, REGRET) for study in Study.whole(_relative(problems))),
        *((study, VALIDATION) for study in Study.whole(_unknown(problems))),
        *((study, VOLUME) for study in Study.whole(volumes)),
    ]
    compared = [compare(*study) for study in studies]
    answers = [_answer(one, place, looks) for place, one in enumerate(compared, start=1)]
    anchors = [f"problem-{number}" for number in range(1, len(problems) + 1)]
    sections = [_section(*pair, looks) for pair in zip(problems, anchors, strict=True)]
    files: dict[str, File] = {"incumbents.csv": _incumbents(problems)}
    for part in (*answers, *sections):
        files |= part.files
    html = PAGE.substitute(
        title=escape(TITLE),
        style=STYLE,
        meta=_meta(problems, version, now or datetime.now(UTC)),
        contents=_contents(problems, anchors) if len(problems) > 1 else "",
        answers="\n".join([*(part.html for part in answers), missing]),
        sections="\n".join(part.html for part in sections),
        unfinished=_unfinished(unfinished),
        rule=RULES_IN_WORDS.get(rule, ""),
        files="Every table is also a CSV and a LaTeX file, and every figure an SVG and a PDF file "
        "with its numbers as CSV, in the folder that is written beside this page.",
    )
    return Report(html, files, tuple(words for one in compared for words in verdict(one)))


def _relative(problems: Sequence[Problem]) -> list[Trajectory]:
    """Return the relative regrets of all runs of problems where it is known."""
    of = [run for one in problems if _is_judged(one) for runs in one.runs.values() for run in runs]
    return [run.relative for run in of if run.relative is not None]


def _unknown(problems: Sequence[Problem]) -> list[Trajectory]:
    """Return the validation losses of all runs of the other problems."""
    others = [problem for problem in problems if not _is_judged(problem)]
    return [run.trajectory for one in others for runs in one.runs.values() for run in runs]


def _is_judged(problem: Problem) -> bool:
    return all(run.relative is not None for runs in problem.runs.values() for run in runs)


def _volumes(problems: Sequence[Problem]) -> tuple[list[Trajectory], str]:
    """Return the hypervolume regrets of runs of vectors; or why they are not known."""
    try:
        return [line for problem in problems for line in problem.volumes()], ""
    except MissingDependencyError as error:
        return [], f"<p>Fronts are not judged: {escape(str(error))}</p>"


def _answer(found: Comparison, number: int, looks: Looks) -> _Part:
    prefix = f"study-{number}"
    figures = comparison_figures(found, prefix, looks)
    tables = comparison_tables(found)
    count = counted(len(found.study.problems), "problem")
    by = " by hypervolume" if found.measure == VOLUME else ""
    early = early_differences(found, prefix)
    html = ANSWER.substitute(
        anchor=prefix,
        heading=f"The answer{by}: {len(found.order)} agents on {count}",
        words="\n".join(f"<p>{escape(words)}</p>" for words in answer(found)),
        first=_table(tables[0]),
        figures="".join(map(_figure, figures)),
        body="".join(map(_table, tables[1:])) + _folded("Critical differences earlier", early),
    )
    files = _files([*figures, *early])
    for table in tables:
        files |= _table_files(f"{prefix}-{table.name}", table)
    return _Part(html, files)


def _section(problem: Problem, anchor: str, looks: Looks) -> _Part:
    figures = [incumbents_figure(problem, f"{anchor}-incumbents", looks)]
    if len(problem.runs) > 1:
        figures.append(regret_figure(problem, f"{anchor}-regret", looks))
    if attained := attainment_figure(problem, f"{anchor}-attainment", looks):
        figures.append(attained)
    results = _results(problem.results(), problem.known is not None)
    html = SECTION.substitute(
        anchor=anchor,
        heading=escape(problem.name),
        settings=f"{_settings(problem)}. {_data(problem)}{_truth(problem.known)}",
        figures="".join(map(_figure, figures)),
        results=results.html(),
        best=_best(problem),
    )
    return _Part(html, _table_files(f"{anchor}-results", results) | _files(figures))


def _unfinished(rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = ("problem", "agent", "seed", "what became of it", "what is known")
    table = Table("unfinished", "", "", head, [[*map(Cell, row)] for row in rows])
    return UNFINISHED.substitute(table=table.html())


def _best(problem: Problem) -> str:
    run = problem.winner()
    if run is None or run.best is None:
        return ""
    line, best = run.trajectory, run.best
    test = f"{line.test[-1]:.4f}" if line.test is not None and len(line.test) else "unknown"
    return BEST.substitute(
        winner=f"Found by <b>{escape(line.agent)}</b> with seed {line.seed} in {best.word} "
        f"{best.number} of {best.steps}: validation loss {line.final:.4f}, "
        f"test loss {test}, test accuracy {best.test_accuracy:.4f}.",
        configuration=_pairs_table(
            {NOMINAL.get(k, k): v for k, v in {**best.configuration, **best.fidelity}.items()}
        ),
    )


def _data(problem: Problem) -> str:
    if not problem.fingerprints:
        return "From a table of another program"
    names = ", ".join(f"<code>{escape(name)}</code>" for name in problem.fingerprints)
    if len(problem.fingerprints) == 1:
        return f"Data fingerprint {names}"
    return f"Data fingerprints {names}: the same numbers under names of several versions"


def _meta(problems: Sequence[Problem], version: str, now: datetime) -> str:
    runs = [run for problem in problems for of_agent in problem.runs.values() for run in of_agent]
    written_by = ", ".join(sorted({run.version for run in runs if run.version}))
    records = f"; records written by fedhpo-gym {written_by}" if written_by else ""
    return escape(
        f"{counted(len(runs), 'run')} on {counted(len(problems), 'problem')}. "
        f"Report made {now:%Y-%m-%d %H:%M} {now.tzname() or ''} by fedhpo-gym {version}, "
        f"Python {platform.python_version()}{records}."
    )


def _contents(problems: Sequence[Problem], anchors: Sequence[str]) -> str:
    items = "".join(
        f'<li><a href="#{anchor}">{escape(problem.id)}</a> '
        f'<span class="meta">{_settings(problem)}</span></li>'
        for problem, anchor in zip(problems, anchors, strict=True)
    )
    return f"<details open><summary>Problems</summary><ul>{items}</ul></details>"


def _settings(problem: Problem) -> str:
    # The id says what the task is.
    pairs = [(name, value) for name, value in _flat(problem.kwargs) if name != "task"]
    return ", ".join(f"{escape(name)} = {escape(value)}" for name, value in pairs) or "defaults"


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    pairs = []
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{name}.")
        else:
            pairs.append((f"{prefix}{name}", str(value)))
    return pairs


def _results(results: Sequence[AgentResult], has_regret: bool) -> Table:
    picks = {"val_loss": min, "test_loss": min, "test_accuracy": max}
    if has_regret:
        picks |= {"regret": min, "relative_regret": min}
    best = {}
    for name, pick in picks.items():
        known = [found.mean for result in results if (found := getattr(result, name))]
        best[name] = pick(known) if len(known) > 1 else None
    rows = []
    for result in results:
        cells = [Cell(result.agent), Cell(str(result.runs), result.runs)]
        for name, value in best.items():
            summary: Summary | None = getattr(result, name)
            cells.append(_summary(summary, 4, summary is not None and summary.mean == value))
        rows.append([*cells, _summary(result.trials, 1)])
    names = {"val_loss": "validation loss"}
    columns = [names.get(name, name.replace("_", " ")) for name in picks]
    head = ("agent", "runs", *columns, "trials per run")
    note = "Mean ± standard deviation over runs."
    return Table("results", "Final results", note, head, rows)


def _truth(known: Known | None) -> str:
    if known is None:
        return ""
    where = (
        "of all that can be asked for" if known.exact else "that a search of the surrogate found"
    )
    return (
        f". Regret is of the recommended configuration at full fidelity, in {known.objective}: 0 "
        f"is the best {where}, {known.best:.4f}; relative regret of 1 is the median configuration, "
        f"{known.typical:.4g}, or worse"
    )


def _summary(summary: Summary | None, digits: int, best: bool = False) -> Cell:
    if summary is None:
        return Cell("–")
    spread = "" if summary.std is None else f" ± {summary.std:.{digits}f}"
    return Cell(f"{summary.mean:.{digits}f}{spread}", summary.mean, best)


def _pairs_table(pairs: Mapping[str, Any]) -> str:
    rows = [
        f'<tr><td><code>{escape(name)}</code></td><td class="number">{escape(_value(value))}</td>'
        "</tr>"
        for name, value in pairs.items()
    ]
    return "<table>\n" + "\n".join(rows) + "\n</table>"


def _figure(figure: Figure) -> str:
    return FIGURE.substitute(
        anchor=figure.name,
        svg=figure.drawn.svg,
        title=escape(figure.title),
        caption=escape(figure.caption),
    )


def _table(table: Table) -> str:
    html = TABLE.substitute(title=escape(table.title), note=escape(table.note), table=table.html())
    if table.name not in FOLDED:
        return html
    return f"<details><summary>{escape(table.title)}</summary>\n{html}</details>\n"


def _folded(title: str, figures: Sequence[Figure]) -> str:
    shown = "".join(map(_figure, figures))
    return (
        f"<details><summary>{escape(title)}</summary>\n"
        f'<div class="figures">\n{shown}</div></details>\n'
    )


def _files(figures: Iterable[Figure]) -> dict[str, File]:
    return {name: content for figure in figures for name, content in figure.files().items()}


def _table_files(name: str, table: Table) -> dict[str, File]:
    return {f"{name}.csv": table.csv(), f"{name}.tex": table.latex()}


def _incumbents(problems: Sequence[Problem]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for problem in problems:
        for runs in problem.runs.values():
            for run in runs:
                writer.writerows(run.trajectory.rows())
    return buffer.getvalue()


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
