"""`fedhpo-gym report`: one HTML page of run records."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedhpo_gym.analysis import make_report, read_folder
from fedhpo_gym.cli.console import say
from fedhpo_gym.version import __version__


def main(options: argparse.Namespace) -> int:
    """Read all records and write the page."""
    page = make_report(read_folder(options.paths), __version__)
    target = options.out or _beside(options.paths[0])
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    part.write_text(page, encoding="utf-8")
    part.replace(target)
    say(str(target))
    return 0


def _beside(path: Path) -> Path:
    return (path if path.is_dir() else path.parent) / "report.html"
