"""`fedhpo-gym report`: one HTML page of run records."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedhpo_gym.analysis import make_report
from fedhpo_gym.archive import require_writable
from fedhpo_gym.cli.console import say
from fedhpo_gym.cli.records import whole_records
from fedhpo_gym.files import write_text
from fedhpo_gym.version import __version__


def main(options: argparse.Namespace) -> int:
    """Read all records and write the page; 1 if one of them is damaged and not on it."""
    records, damaged = whole_records("report", options.paths)
    target = options.out or _beside(options.paths[0])
    require_writable(target.parent, "`--out`, without its last part,")
    write_text(target, make_report(records, __version__))
    say(str(target))
    return 1 if damaged else 0


def _beside(path: Path) -> Path:
    return (path if path.is_dir() else path.parent) / "report.html"
