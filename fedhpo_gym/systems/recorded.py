"""The clock of recorded times: rounds cost what a user's rounds took."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from fedhpo_gym.core import files
from fedhpo_gym.core.checks import checked_types
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.evaluation.records import Cost
from fedhpo_gym.systems.base import MOST, System, Work

WORK_COLUMNS: Final = (
    "num_parameters", "sampled_clients", "local_epochs", "minibatch_steps", "samples",
)  # fmt: skip
TIME_COLUMNS: Final = ("communication_s", "computation_s")


@dataclass(frozen=True)
class RoundRecord:
    """A measured round: the work of one round, and seconds of messages and of computation."""

    work: Work
    communication_s: float
    computation_s: float

    @property
    def time_s(self) -> float:
        """Seconds of the round."""
        return self.communication_s + self.computation_s


@dataclass(frozen=True, kw_only=True)
class RecordedModel(System):
    """A clock that looks rounds up in a CSV file; docs/cost_model.md says of which columns.

    A round costs the mean of the recorded rounds with the same work, in the columns that the file
    has. Recorded times include the server's, so `server_compute_s` and `compute` decide nothing
    here but what work is looked up by.
    """

    path: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise InvalidArgumentError("`path` must name a file of recorded rounds, got none.")
        derived = self._table
        del derived  # it stays read

    def _cost(self, work: Work) -> Cost:
        columns, means = self._table
        asked = tuple(_amount(work, name) for name in columns)
        if asked not in means:
            said = ", ".join(f"{n}={v}" for n, v in zip(columns, asked, strict=True))
            raise InvalidArgumentError(
                f"`path` must hold rounds like every one that is charged, and {self.path} has none "
                f"with {said}; fit a model to it with `fedhpo_gym.systems.calibrate`."
            )
        communication_s, computation_s = (work.rounds * mean for mean in means[asked])
        return self._charged(work, communication_s, computation_s)

    @cached_property
    def _table(self) -> tuple[tuple[str, ...], dict[tuple[float, ...], tuple[float, ...]]]:
        """The columns of work, and the mean seconds of messages and of computation by work."""
        columns, rows = _read(self.path)
        seconds: dict[tuple[float, ...], list[tuple[float, float]]] = {}
        for row in rows:
            key = tuple(row[name] for name in columns)
            seconds.setdefault(key, []).append((row[TIME_COLUMNS[0]], row[TIME_COLUMNS[1]]))
        return columns, {
            key: tuple(math.fsum(column) / len(each) for column in zip(*each, strict=True))
            for key, each in seconds.items()
        }


@checked_types
def read_records(path: str) -> list[RoundRecord]:
    """Read measured rounds, for `calibrate`, of the same columns as `RecordedModel` reads."""
    columns, rows = _read(path)
    if "num_parameters" not in columns:
        raise _damaged(path, "it has no column `num_parameters`")
    return [_record(row) for row in rows]


def _record(row: dict[str, float]) -> RoundRecord:
    clients = int(row.get("sampled_clients", 1))
    work = Work(
        int(row["num_parameters"]),
        1,
        clients,
        float(clients),
        row.get("local_epochs", 1.0),
        row.get("minibatch_steps"),
        row.get("samples"),
        clients,
    )
    return RoundRecord(work, row[TIME_COLUMNS[0]], row[TIME_COLUMNS[1]])


def _amount(work: Work, name: str) -> float:
    amount = getattr(work, name)
    if amount is None:
        raise InvalidArgumentError(
            f"`path` must not have the column {name!r} where nobody knows how many samples a "
            "client has; leave it out, or give `samples_per_client`."
        )
    return float(amount)


def _read(path: str) -> tuple[tuple[str, ...], list[dict[str, float]]]:
    """Return the columns of work that a file of rounds has, and its rows as numbers."""
    file = Path(path)
    try:
        with file.open("rb") as handle:
            content = handle.read(files.max_bytes() + 1)
    except (OSError, ValueError) as error:  # a path may hold what no path can
        raise MissingDataError(
            f"the file of recorded rounds {file} cannot be read ({error}); write it, or choose "
            "another system model"
        ) from error
    files.require_bytes(len(content), file)
    try:
        lines = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        names = lines.fieldnames or ()
        if len(set(names)) < len(names):
            raise _damaged(path, f"it names a column twice: {', '.join(names)[:200]}")
        return _numbers(path, list(lines))
    except (ValueError, csv.Error) as error:
        if isinstance(error, DamagedDataError):
            raise
        raise _damaged(path, str(error)) from error


def _numbers(
    path: str, rows: list[dict[str, Any]]
) -> tuple[tuple[str, ...], list[dict[str, float]]]:
    if not rows:
        raise _damaged(path, "it has no rounds")
    names = tuple(rows[0])
    for name in TIME_COLUMNS:
        if name not in names:
            raise _damaged(path, f"it has no column `{name}`")
    if unknown := sorted(set(map(str, names)) - {*WORK_COLUMNS, *TIME_COLUMNS}):
        raise _damaged(path, f"it has the unknown column {unknown[0]!r}")
    found = []
    for index, row in enumerate(rows):
        numbers = {name: float(row[name] or "nothing") for name in names}
        wrong = [name for name, value in numbers.items() if not 0 <= value <= MOST]
        if wrong:
            raise _damaged(path, f"`{wrong[0]}` of round {index} is {numbers[wrong[0]]!r}")
        if not any(numbers[name] for name in TIME_COLUMNS):
            raise _damaged(path, f"round {index} takes no time, and rounds take some")
        found.append(numbers)
    return tuple(name for name in WORK_COLUMNS if name in names), found


def _damaged(path: str, why: str) -> DamagedDataError:
    return DamagedDataError(
        f"{path} is no file of recorded rounds: {why}; write one line of numbers per round, under "
        f"a header of {', '.join(TIME_COLUMNS)} and any of {', '.join(WORK_COLUMNS)}"
    )
