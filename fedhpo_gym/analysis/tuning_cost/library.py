"""A run library: finished runs of algorithms on problems, under draws from their priors."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from fedhpo_gym.analysis.stats.ranks import Numbers
from fedhpo_gym.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.typed import checked_types

COLUMNS: Final = ("algorithm", "problem", "validation", "test", "cost")
"""Of a table of runs; `test` and `cost` may be missing."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Finished runs of one algorithm on one problem; lower is better.

    Attributes:
        validation: (N,) what a search selects by: the lowest over the epochs of a run.
        test: (N,) what is reported of the run that was selected.
        cost: (N,) what each run took, in any unit; 1 each if nothing is known.

    Raises:
        InvalidArgumentError: there is no run, a length differs, a value is NaN, or a cost is not
            positive.
    """

    validation: Numbers
    test: Numbers
    cost: Numbers

    def __post_init__(self) -> None:
        """Check the arrays."""
        for name in ("validation", "test", "cost"):
            array = getattr(self, name)
            if array.ndim != 1 or not len(array) or len(array) != len(self.validation):
                raise InvalidArgumentError(
                    f"`{name}` must have one entry per run, and at least one, got {array.shape}"
                )
            if np.isnan(array).any():
                raise InvalidArgumentError(f"`{name}` must not hold NaN; leave the run out")
        if np.any(self.cost <= 0):
            raise InvalidArgumentError("`cost` must be positive for every run")

    @classmethod
    def of(cls, validation: Numbers, test: Numbers | None = None) -> Runs:
        """Make runs of equal cost, reported by their validation values unless told otherwise."""
        return cls(validation, validation if test is None else test, np.ones(len(validation)))

    def __len__(self) -> int:
        return len(self.validation)


@dataclass(frozen=True)
class RunLibrary:
    """Runs of every algorithm on every problem (Prabhu Teja S et al., 2020, procedure 1).

    Attributes:
        algorithms: names.
        problems: names.
        runs: of each (algorithm, problem).

    Raises:
        InvalidArgumentError: an algorithm lacks a problem that another one has.
    """

    algorithms: tuple[str, ...]
    problems: tuple[str, ...]
    runs: Mapping[tuple[str, str], Runs]

    def __post_init__(self) -> None:
        """Check that nothing is missing."""
        for algorithm in self.algorithms:
            for problem in self.problems:
                if (algorithm, problem) not in self.runs:
                    raise InvalidArgumentError(
                        f"`runs` must hold every algorithm on every problem, but there is none of "
                        f"{algorithm!r} on {problem!r}"
                    )

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[str, str, float, float, float]]) -> RunLibrary:
        """Collect rows of algorithm, problem, validation, test and cost, in any order.

        Raises:
            InvalidArgumentError: see `Runs` and this class.
        """
        found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
        for algorithm, problem, *numbers in rows:
            found.setdefault((algorithm, problem), []).append((numbers[0], numbers[1], numbers[2]))
        if not found:
            raise InvalidArgumentError("`rows` must hold at least one run")
        runs = {key: Runs(*np.array(lines, dtype=np.float64).T) for key, lines in found.items()}
        return cls(tuple(dict.fromkeys(a for a, _ in runs)), _sorted(p for _, p in runs), runs)

    def of(self, algorithm: str, problem: str) -> Runs:
        """Return the runs of an algorithm on a problem."""
        return self.runs[algorithm, problem]


@checked_types
def read_library(path: Path) -> RunLibrary:
    """Read a CSV file with a header line and a line per finished run.

    Columns are `COLUMNS`. Without `test`, validation is reported; without `cost`, each run costs 1.

    Raises:
        MissingDataError: there is no such file.
        DamagedDataError: a column is missing or unknown, a field is no finite number, or an
            algorithm lacks a problem.
    """
    if not path.is_file():
        raise MissingDataError(f"there is no run library {path}; give a CSV file with {COLUMNS}")
    with path.open(encoding="utf-8", newline="") as handle:
        reader = csv.DictReader(handle, strict=True)
        try:
            _check_columns(path, reader.fieldnames or ())
            rows = [_row(path, reader.line_num, line) for line in reader]
        except (csv.Error, UnicodeDecodeError) as error:
            raise DamagedDataError(f"{path} is no CSV file: {error}") from error
    try:
        return RunLibrary.from_rows(rows)
    except InvalidArgumentError as error:
        raise DamagedDataError(f"{path}: {error}") from error


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _check_columns(path: Path, names: Sequence[str]) -> None:
    if not {*COLUMNS[:3]} <= {*names} <= {*COLUMNS} or len(set(names)) < len(names):
        raise DamagedDataError(
            f"{path} must have the columns {COLUMNS[:3]} and may have {COLUMNS[3:]}, once each, "
            f"got {tuple(names)}"
        )


def _row(
    path: Path, number: int, line: Mapping[str, str | None]
) -> tuple[str, str, float, float, float]:
    try:
        validation = _finite(line["validation"])
        test = _finite(line["test"]) if "test" in line else validation
        cost = _finite(line["cost"]) if "cost" in line else 1.0
    except (TypeError, ValueError) as error:
        raise DamagedDataError(f"{path}, line {number}: {error}") from error
    return str(line["algorithm"]), str(line["problem"]), validation, test, cost


def _finite(text: str | None) -> float:
    number = float(text or "")
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number
