"""Run records -> one self-contained HTML page."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from fedhpo_gym.analysis.aggregate import AgentResult, Problem, Summary, group
from fedhpo_gym.analysis.page import PAGE, SECTION, STYLE
from fedhpo_gym.analysis.plot import draw_curves
from fedhpo_gym.analysis.records import RunRecord
from fedhpo_gym.errors import MissingDataError

TITLE = "Federated hyperparameter optimization: report"


def make_report(
    records: Iterable[tuple[Path, RunRecord]], version: str, now: datetime | None = None
) -> str:
    """Return the report of some runs as an HTML page that needs no other file.

    Args:
        records: runs, and the files they come from.
        version: version of the package that makes the report.
        now: time of the report; by default, now.

    Raises:
        MissingDataError: there is no record.
        InvalidArgumentError: two files hold the same run.
        MissingDependencyError: matplotlib is not installed.
    """
    problems = group(records)
    if not problems:
        raise MissingDataError("there is nothing to report; make records with `fedhpo-gym run`")
    anchors = [f"problem-{number}" for number in range(1, len(problems) + 1)]
    return PAGE.substitute(
        title=escape(TITLE),
        style=STYLE,
        meta=_meta(problems, version, now or datetime.now(UTC)),
        contents=_contents(problems, anchors) if len(problems) > 1 else "",
        sections="\n".join(map(_section, problems, anchors)),
    )


def _meta(problems: Sequence[Problem], version: str, now: datetime) -> str:
    runs = [run for problem in problems for of_agent in problem.runs.values() for run in of_agent]
    written_by = ", ".join(sorted({run.header.package_version for run in runs}))
    return escape(
        f"{_count(len(runs), 'run')} on {_count(len(problems), 'problem')}. "
        f"Report made {now:%Y-%m-%d %H:%M} {now.tzname() or ''} by fedhpo-gym {version}, "
        f"Python {platform.python_version()}; records written by fedhpo-gym {written_by}."
    )


def _contents(problems: Sequence[Problem], anchors: Sequence[str]) -> str:
    items = "".join(
        f'<li><a href="#{anchor}">{escape(problem.id)}</a> '
        f'<span class="meta">{_settings(problem)}</span></li>'
        for problem, anchor in zip(problems, anchors, strict=True)
    )
    return f"<nav><ul>{items}</ul></nav>"


def _section(problem: Problem, anchor: str) -> str:
    run = problem.winner()
    best = run.final.incumbent
    word = "step" if "step" in best else "trial"
    winner = (
        f"Found by <b>{escape(run.header.agent)}</b> with seed {run.header.seed} in {word} "
        f"{run.final.best_step} of {len(run.steps)}: validation loss {best['val_loss']:.4f}, "
        f"test loss {run.final_test['loss']:.4f}, test accuracy {run.final_test['accuracy']:.4f}."
    )
    fidelity = run.steps[run.final.best_step - 1].fidelity
    data = f"Data fingerprint <code>{escape(problem.fingerprint)}</code>"
    return SECTION.substitute(
        anchor=anchor,
        heading=escape(problem.id),
        settings=f"{_settings(problem)}. {data}",
        figure=draw_curves(problem.curves(), anchor),
        results=_results_table(problem.results()),
        winner=winner,
        configuration=_pairs_table({**best["configuration"], **fidelity}),
    )


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


def _results_table(results: Sequence[AgentResult]) -> str:
    best = {
        "val_loss": min(result.val_loss.mean for result in results),
        "test_loss": min(result.test_loss.mean for result in results),
        "test_accuracy": max(result.test_accuracy.mean for result in results),
    }
    heads = ("agent", "runs", "validation loss", "test loss", "test accuracy", "trials per run")
    rows = [_row("th", ['scope="col"', *(['scope="col" class="number"'] * 5)], heads)]
    for result in results:
        cells = [escape(result.agent), str(result.runs)]
        looks = ["", 'class="number"']
        for name, value in best.items():
            summary: Summary = getattr(result, name)
            cells.append(_summary(summary, 4))
            looks.append(f'class="number{" best" * (len(results) > 1 and summary.mean == value)}"')
        cells.append(_summary(result.trials, 1))
        rows.append(_row("td", [*looks, 'class="number"'], cells))
    return "<table>\n" + "\n".join(rows) + "\n</table>"


def _pairs_table(pairs: Mapping[str, Any]) -> str:
    rows = [
        _row("td", ["", 'class="number"'], [f"<code>{escape(name)}</code>", escape(_value(value))])
        for name, value in pairs.items()
    ]
    return "<table>\n" + "\n".join(rows) + "\n</table>"


def _row(tag: str, attributes: Sequence[str], cells: Sequence[str]) -> str:
    opened = [f"{tag} {attribute}".strip() for attribute in attributes]
    inner = (f"<{start}>{cell}</{tag}>" for start, cell in zip(opened, cells, strict=True))
    return f"<tr>{''.join(inner)}</tr>"


def _summary(summary: Summary, digits: int) -> str:
    if summary.std is None:
        return f"{summary.mean:.{digits}f}"
    return f"{summary.mean:.{digits}f} ± {summary.std:.{digits}f}"


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
