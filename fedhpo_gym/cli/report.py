"""`fedhpo-gym report`: one HTML page of run records, and its tables and figures as files."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from fedhpo_gym.analysis import build_report, group
from fedhpo_gym.analysis.trajectories import read_table
from fedhpo_gym.archive import require_writable
from fedhpo_gym.cli.console import say
from fedhpo_gym.cli.records import each_judged_run
from fedhpo_gym.errors import MissingDataError
from fedhpo_gym.files import write_text
from fedhpo_gym.studies.replay import present_fingerprint
from fedhpo_gym.version import __version__

_OURS = re.compile(r"(study|problem)-\d+-[a-z-]+\.(csv|tex|svg)")


def main(options: argparse.Namespace) -> int:
    """Read all records and write the page; 1 if one of them is damaged and not on it."""
    damaged: list[Path] = []
    if not [*options.paths, *options.tables]:
        raise MissingDataError("there is nothing to report; name folders of records, or `--table`")
    tables = [(path, run) for path in options.tables for run in read_table(path, options.rule)]
    records = each_judged_run("report", options.paths, damaged)
    problems = group(records, tables, present_fingerprint, options.rule)
    target = options.out or _beside([*options.paths, *options.tables][0])
    require_writable(target.parent, "`--out`, without its last part,")
    report = build_report(problems, __version__)
    folder = target.with_name(f"{target.stem}_files")
    folder.mkdir(exist_ok=True)
    for former in folder.iterdir():  # of a report of more problems, which nobody should cite
        if _OURS.fullmatch(former.name) and former.name not in report.files:
            former.unlink()
    for name, text in report.files.items():
        write_text(folder / name, text)
    write_text(target, report.html)
    say(str(target))
    return 1 if damaged else 0


def _beside(path: Path) -> Path:
    return (path if path.is_dir() else path.parent) / "report.html"
