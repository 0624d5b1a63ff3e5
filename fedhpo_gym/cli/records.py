"""Run records on the command line: a damaged one does not keep the others from being read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fedhpo_gym.analysis import RunRecord, read_folder, set_aside
from fedhpo_gym.analysis.files import read_each, read_judged
from fedhpo_gym.analysis.runs import JudgedRun
from fedhpo_gym.cli.console import complain
from fedhpo_gym.core.errors import DamagedDataError


def whole_records(
    command: str, paths: Sequence[Path]
) -> tuple[list[tuple[Path, RunRecord]], list[Path]]:
    """Read every record in some files and folders; a damaged one is named and set aside."""
    damaged: list[Path] = []
    return list(read_folder(paths, _teller(command, damaged))), damaged


def each_judged_run(
    command: str, paths: Sequence[Path], damaged: list[Path]
) -> Iterator[tuple[Path, JudgedRun]]:
    """Yield what judges read, one record at a time; damaged files are named and appended."""
    yield from read_each(paths, read_judged, _teller(command, damaged))


def _teller(command: str, damaged: list[Path]) -> Callable[[Path, DamagedDataError], None]:
    def tell(path: Path, error: DamagedDataError) -> None:
        complain(command, set_aside(path, error))
        damaged.append(path)

    return tell
