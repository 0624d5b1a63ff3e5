"""Run records on the command line: a damaged one does not keep the others from being read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedhpo_gym.analysis import RunRecord, read_folder, set_aside
from fedhpo_gym.cli.console import complain
from fedhpo_gym.errors import DamagedDataError


def whole_records(
    command: str, paths: Sequence[Path]
) -> tuple[list[tuple[Path, RunRecord]], list[Path]]:
    """Read every record in some files and folders; a damaged one is named and set aside.

    Args:
        command: the subcommand, for the lines that name damaged records.
        paths: files and folders.

    Returns:
        Files and their records; and the files that were damaged.

    Raises:
        MissingDataError: there is no record in one of the folders, or no such file.
    """
    damaged: list[Path] = []
    return list(each_whole_record(command, paths, damaged)), damaged


def each_whole_record(
    command: str, paths: Sequence[Path], damaged: list[Path]
) -> Iterator[tuple[Path, RunRecord]]:
    """Yield what `whole_records` returns, one record at a time; damaged files are appended."""

    def tell(path: Path, error: DamagedDataError) -> None:
        complain(command, set_aside(path, error))
        damaged.append(path)

    yield from read_folder(paths, tell)
