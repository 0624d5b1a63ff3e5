"""Tables of other programs: a CSV file with a line per trial joins the same statistics."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from fedhpo_gym.analysis.trajectories.rules import Trials
from fedhpo_gym.analysis.trajectories.trajectory import Trajectory
from fedhpo_gym.errors import DamagedDataError, FedHPOError, MissingDataError
from fedhpo_gym.typed import checked_types

COLUMNS: Final = ("problem", "agent", "seed", "time", "value")
"""What every table has: simulated seconds, and what is minimised."""
OPTIONAL: Final = ("level", "test")
"""What it may have: how much of a course was trained, and the value on the test split."""

_Rows = dict[tuple[str, str, int], list[tuple[float, ...]]]


@checked_types
def read_table(path: Path, rule: str = "highest_fidelity") -> tuple[Trajectory, ...]:
    """Read a CSV file with a header line and one line per trial, in any order of the runs.

    Lines of one run that have equal times keep their order.

    Args:
        path: a file with the columns `COLUMNS`, and those of `OPTIONAL` if they are known.
        rule: which trial is the incumbent; see `fedhpo_gym.analysis.trajectories.rules`.

    Raises:
        MissingDataError: there is no such file.
        DamagedDataError: a column is missing or unknown, or a field is no finite number.
        UnknownNameError: there is no such rule.
    """
    if not path.is_file():
        raise MissingDataError(f"there is no table {path}; give a CSV file with {COLUMNS}")
    with path.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.DictReader(handle, strict=True)
        try:
            names = _checked_columns(path, reader.fieldnames or ())
            found = _rows(path, reader, names)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DamagedDataError(f"{path} is no CSV file: {error}") from error
    if not found:
        raise DamagedDataError(f"{path} has no line after its header")
    return tuple(_trajectory(path, key, rows, names, rule) for key, rows in found.items())


def _checked_columns(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    lacking = [name for name in COLUMNS if name not in names]
    unknown = [name for name in names if name not in (*COLUMNS, *OPTIONAL)]
    if lacking or unknown or len(set(names)) < len(names):
        raise DamagedDataError(
            f"{path} must have the columns {COLUMNS} and may have {OPTIONAL}, once each, "
            f"got {tuple(names)}"
        )
    return tuple(name for name in ("time", "value", *OPTIONAL) if name in names)


def _rows(path: Path, lines: csv.DictReader[str], names: Sequence[str]) -> _Rows:
    found: _Rows = {}
    for line in lines:
        try:
            numbers = tuple(_finite(line[name]) for name in names)
            seed = int(line["seed"])
        except (TypeError, ValueError) as error:
            raise DamagedDataError(f"{path}, line {lines.line_num}: {error}") from error
        found.setdefault((line["problem"], line["agent"], seed), []).append(numbers)
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


def _trajectory(
    path: Path,
    key: tuple[str, str, int],
    rows: Sequence[tuple[float, ...]],
    names: Sequence[str],
    rule: str,
) -> Trajectory:
    array = np.array(rows, dtype=np.float64)
    array = array[np.argsort(array[:, 0], kind="stable")]
    columns: Mapping[str, np.ndarray] = dict(zip(names, array.T, strict=True))
    try:
        trials = Trials(
            columns["time"], columns["value"], columns.get("level"), columns.get("test")
        )
    except FedHPOError as error:
        raise DamagedDataError(f"{path}, run {key}: {error}") from error
    return Trajectory.of(*key, trials, rule)
