"""`fedhpo-gym report`: one HTML page of run records, and its tables and figures as files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from fedhpo_gym.analysis import Report, build_report, group
from fedhpo_gym.analysis.figures import File
from fedhpo_gym.analysis.incumbents import RULE, read_table
from fedhpo_gym.analysis.landscape import landscape as landscape_of
from fedhpo_gym.analysis.landscape import landscape_figure
from fedhpo_gym.analysis.report import sentences
from fedhpo_gym.cli.arguments import Arg
from fedhpo_gym.cli.console import say
from fedhpo_gym.cli.options import Records, Rule
from fedhpo_gym.cli.records import each_judged_run, whole_records
from fedhpo_gym.core import __version__
from fedhpo_gym.core.archive import require_writable
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, unknown_name
from fedhpo_gym.core.files import new_file, write_text
from fedhpo_gym.studies.cells import GOOD, read_log
from fedhpo_gym.studies.regret import known_of
from fedhpo_gym.studies.replay import present_fingerprint

_OURS = re.compile(r"(study|problem)-\d+-[a-z0-9-]+\.(csv|tex|svg|pdf)")
_KINDS = (".pdf", ".svg", ".csv")


def main(
    paths: Records = (),
    *,
    tables: Annotated[
        Sequence[Path],
        Arg(
            "runs of another program: a CSV file with problem, agent, seed, time, value and, if "
            "known, level (how much of a course was trained) and test; may be given several times",
            "FILE",
            "--table",
        ),
    ] = (),
    figure: Annotated[
        str | None,
        Arg(
            "write one figure only, for example `rank-over-time`; --out ends with .pdf or .svg, or "
            "with .csv for the numbers behind it",
            "NAME",
        ),
    ] = None,
    landscape: Annotated[
        str | None,
        Arg(
            "draw the losses of one problem over two hyperparameters instead; --out as above", "X,Y"
        ),
    ] = None,
    rule: Rule = "recommended",
    out: Annotated[Path | None, Arg("(report.html in the folder)", "FILE")] = None,
    tell: bool = False,
) -> int:
    """Read all records and write the page; 1 if one of them is damaged and not on it."""
    damaged: list[Path] = []
    named = [*paths, *tables]
    if not named:
        raise MissingDataError("there is nothing to report; name folders of records, or `--table`")
    if landscape is not None:
        return _landscape(landscape, paths, out)
    foreign = [(path, run) for path in tables for run in read_table(path, rule)]
    records = each_judged_run("report", paths, damaged) if paths else ()
    problems = group(records, foreign, present_fingerprint, rule, known_of)
    target = _figure_file(figure, out) if figure else out or _beside(named[0])
    require_writable(target.parent, "`--out`, without its last part,")
    if tell and not find_spec("matplotlib"):  # who wins needs nothing that draws
        say("\n".join(sentences(problems)))
        again = f"fedhpo-gym report {named[0]}{f' --rule {rule}' if rule != RULE else ''}"
        say(f"For the page: `pip install '.[plot]'`, then `{again}`")
        return 1 if damaged else 0
    report = build_report(problems, __version__, unfinished=_unfinished(paths), rule=rule)
    if figure is None:
        _write(report, target)
    else:
        _write_figure(report, figure, target)
    if tell:
        say("\n".join(report.words))
    say(str(target))
    return 1 if damaged else 0


def _landscape(names: str, paths: Sequence[Path], out: Path | None) -> int:
    """Draw the losses of one problem over two hyperparameters."""
    first, comma, second = names.partition(",")
    if not (first and comma and second) or "," in second:
        raise InvalidArgumentError(
            f"`--landscape` must be two names with a comma between them, got {names!r}"
        )
    target = _figure_file("landscape", out)
    require_writable(target.parent, "`--out`, without its last part,")
    records, damaged = whole_records("report", paths)
    found = landscape_of([record for _, record in records], (first, second))
    drawn = landscape_figure(found, f"Validation loss over {first} and {second}")
    _write_file(target, drawn.files()[f"landscape{target.suffix}"])
    say(str(target))
    return 1 if damaged else 0


def _write(report: Report, target: Path) -> None:
    folder = target.with_name(f"{target.stem}_files")
    folder.mkdir(exist_ok=True)
    for former in folder.iterdir():  # of a report of more problems, which nobody should cite
        if _OURS.fullmatch(former.name) and former.name not in report.files:
            former.unlink()
    for name, content in report.files.items():
        _write_file(folder / name, content)
    write_text(target, report.html)


def _write_file(path: Path, content: File) -> None:
    with new_file(path) as handle:
        handle.write(content.encode("utf-8") if isinstance(content, str) else content())


def _figure_file(name: str, out: Path | None) -> Path:
    target = out or Path(f"{name}.pdf")
    if target.suffix not in _KINDS:
        raise InvalidArgumentError(f"`--out` of a figure must end with one of {_KINDS}, got {out}")
    return target


def _write_figure(report: Report, name: str, target: Path) -> None:
    """Write one figure: of the largest study unless the name says which, or of a problem."""
    for known in (name, f"study-1-{name}", f"problem-1-{name}"):
        if f"{known}.pdf" in report.files:
            _write_file(target, report.files[f"{known}{target.suffix}"])
            return
    names = {file.removesuffix(".pdf") for file in report.files if file.endswith(".pdf")}
    raise unknown_name("figure", name, names | {n.removeprefix("study-1-") for n in names})


def _unfinished(paths: Sequence[Path]) -> list[list[str]]:
    """Return the runs that studies in these folders have logged and left no record of."""
    return [
        [
            found["plan"]["id"], found["plan"]["agent"], str(found["plan"]["seed"]),
            found["status"], found["words"],
        ]
        for path in paths
        if path.is_dir()
        for found in read_log(path)
        if found["status"] not in GOOD
    ]  # fmt: skip


def _beside(path: Path) -> Path:
    return (path if path.is_dir() else path.parent) / "report.html"
