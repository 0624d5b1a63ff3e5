"""Reads the tables that FedHPO-Bench published, row by row and by a grammar of its own.

A table is `<model>/<data>/<algorithm>/tabular.csv.gz`, in a zip file, a folder, or alone. Nothing
is unpacked to the disk, and no pickle is read: `info.pkl` repeats what the rows say.
"""

import gzip
import hashlib
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

import numpy as np

from fedhpo_gym.building.results import PSEUDO, UNMEASURED, ImportedCourse, Results, write_results
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    InvalidArgumentError,
    TooLargeError,
    require_known,
)
from fedhpo_gym.core.files import require_growth
from fedhpo_gym.core.identity import FEDHPO_BENCH, IMPORTED
from fedhpo_gym.data.tables import TABLES
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import Task, get_task

FILE: Final = "tabular.csv.gz"
LONGEST_ROW: Final = 1 << 22
"""Characters of a row; those published have about 59,000."""
MOST_ROWS: Final = 1 << 20
COLUMNS: Final[Mapping[str, str]] = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "dropout": "dropout",
    "batch": "batch_size",
    "step": "step_size",
    "layer": "model_depth",
    "hidden": "model_width",
    "lrserver": "server_learning_rate",
    "momentumsserver": "server_momentum",
    "mu": "mu",
}
RATE, SEED, RESULT = "sample_client", "seed", "result"
NAMED: Final[Mapping[str, str]] = {
    "avg": "fedavg",
    "opt": "fedopt",
    "prox": "fedprox",
    "nbafl": "nbafl",
}
_GRAPHS = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}
_OPENML = {str(table.openml_task): table.name for table in TABLES if table.openml_task}
PROBLEMS: Final[Mapping[str, str]] = {
    "cnn/femnist": "CNN-FEMNIST",
    "bert/cola": "BERT-CoLA",
    "bert/sst2": "BERT-SST2",
    "cross_device/twitter": "LR-Twitter",
    **{f"gcn/{name}": f"GNN-{ours}" for name, ours in _GRAPHS.items()},
    **{
        f"{m}/{name}": f"{m.upper()}-{ours}"
        for m in ("lr", "mlp")
        for name, ours in _OPENML.items()
    },
}
"""Model and data of theirs -> the problem of ours."""
EVERY: Final[Mapping[str, int]] = {"CNN-FEMNIST": 2}
"""Rounds from one evaluation to the next, where it is not one."""
PATIENCE: Final[Mapping[str, int]] = {"BERT-CoLA": 5, "BERT-SST2": 5}
"""Evaluations without a better loss after which a course stops, where it is not 100."""
MEANS: Final = "FedHPO-Bench's tables hold means over clients only"


@dataclass(frozen=True)
class Archive:
    """One table of theirs."""

    path: Path  # the file that is opened
    member: str  # of a zip file; "" for a file
    place: tuple[str, str, str]  # model, data and algorithm, as their folders are called

    def __str__(self) -> str:
        return f"{self.path}:{self.member}" if self.member else str(self.path)


@validate_call
def find_archives(path: Path) -> list[Archive]:
    """Return the tables in a zip file, below a folder, or in one file.

    Raises:
        InvalidArgumentError: there is none, or a name leaves its folder.
        DamagedDataError: the zip file is damaged.
    """
    if path.suffix == ".zip":
        with _naming_damage(path), zipfile.ZipFile(path) as opened:
            names = opened.namelist()
        for name in names:
            if ".." in PurePosixPath(name).parts or name.startswith("/") or "\\" in name:
                raise InvalidArgumentError(
                    f"`path` must hold files below one folder, got the member {name!r:.200}"
                )
        candidates = [(path, name, PurePosixPath(name).parts) for name in names]
    else:
        files = sorted(path.rglob(FILE)) if path.is_dir() else [path]
        files = [file for file in files if file.is_file()]  # a pipe would be waited for
        candidates = [(file, "", file.resolve().parts) for file in files]
    tables = [
        Archive(file, member, (parts[-4], parts[-3], parts[-2]))
        for file, member, parts in candidates
        if len(parts) > 3 and parts[-1] == FILE
    ]
    if not tables:
        raise InvalidArgumentError(
            f"`path` must be or hold files <model>/<data>/<algorithm>/{FILE} of FedHPO-Bench, got "
            f"{path}"
        )
    return tables


@validate_call
def import_archive(archive: Archive, folder: Path | None = None) -> Path:
    """Write our table of one of theirs, or a sample if courses are missing; return its card.

    Raises:
        UnknownNameError: it is of a problem that nobody has here.
        DamagedDataError: it is cut off, or a row is not as they are written.
        InvalidArgumentError: a column, a value or a seed is not one of the problem's.
    """
    return write_results(read_bench_archive(archive), folder)


def read_bench_archive(archive: Archive) -> Results:
    """Return what a table of theirs holds; its rows are read when its courses are."""
    model, data, algorithm = archive.place
    where = f"{model}/{data.partition('@')[0]}"
    require_known("table of FedHPO-Bench", where, PROBLEMS)
    require_known("algorithm of FedHPO-Bench", algorithm, NAMED)
    task = get_task(f"{PROBLEMS[where]}-v0").variant(algorithm=NAMED[algorithm], table=FEDHPO_BENCH)
    every = EVERY.get(task.name, 1)
    rounds = tuple(r for r in map(int, task.stored_fidelity_space()["round"].grid) if r >= every)
    lacks = {
        "clients": MEANS,
        "samples": "FedHPO-Bench's tables do not say how many samples clients have",
    }
    if task.algorithm == "nbafl":
        lacks["privacy"] = "FedHPO-Bench's table does not say with which epsilon it was made"
    samples = dict.fromkeys(task.seeds, np.full((1, len(SPLITS)), PSEUDO, np.int64))
    card_entries: dict[str, Any] = {IMPORTED: {"from": "/".join(archive.place), "file": FILE}}
    card_entries["known_defects"] = list(defects(task))
    courses = _read_courses(archive, task, every, lacks, card_entries)
    fewest = PATIENCE.get(task.name, 100) + 1
    return Results(task, task.space.names, courses, rounds, samples, fewest, lacks, card_entries)


def defects(task: Task) -> Iterator[str]:
    """Yield what is known to be wrong with a table of theirs, and what is made of it."""
    yield "a call of theirs answers one seed at random; here, one that is named, or the mean"
    yield "their round r has the best of r + 1 evaluations; here, of those up to the round"
    yield "costs are those of this suite's clock: recorded times are not used"
    yield "a course that stops early keeps its best, and all rounds that are asked are charged"
    yield "the three seeds deal data to clients in three ways"
    if task.name in EVERY:
        yield "models are evaluated every 2 rounds, which theirs takes for every round"
    if task.model == "MLP":
        yield "trained with dropout 0.5, though the column says 0"
    if task.model == "BERT":
        yield "dropout never reached the model: that dimension is a placebo"
    if task.algorithm == "fedopt" and task.model in ("MLP", "CNN"):
        yield "FedOpt left running statistics of batch normalisation as they were initialised"
    if task.algorithm in ("fedprox", "nbafl"):
        yield "their code of that date cannot run this algorithm: nobody knows what made the rows"


@contextmanager
def _naming_damage(what: object) -> Iterator[None]:
    """Say which file is damaged."""
    try:
        yield
    except FedHPOError:
        raise
    except (
        EOFError,
        ValueError,
        RuntimeError,
        zlib.error,
        gzip.BadGzipFile,
        zipfile.BadZipFile,
    ) as error:
        raise DamagedDataError(
            f"{what} is no table of FedHPO-Bench ({error}); delete it and download it again"
        ) from error


def _read_rows(archive: Archive, card_entries: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of every row, the head first; hashes the file."""
    with _naming_damage(archive), archive.path.open("rb") as file:
        raw: Any = file
        size = archive.path.stat().st_size
        if archive.member:
            opened = zipfile.ZipFile(file)
            size = opened.getinfo(archive.member).compress_size
            raw = opened.open(archive.member)
        length = 0
        with gzip.open(raw, "rt", encoding="utf-8", newline="\n") as lines:
            for row_number in range(MOST_ROWS):
                row = _read_row(lines)
                length += len(row)
                require_growth(length, size, archive)
                if not row:
                    raw.seek(0)
                    card_entries[IMPORTED]["sha256"] = hashlib.file_digest(
                        raw, "sha256"
                    ).hexdigest()
                    return
                yield row_number, row
        raise TooLargeError(f"{archive} has more than {MOST_ROWS:,} rows")


def _read_row(lines: IO[str]) -> str:
    """Return a row, whose result may hold line ends within its quotation marks."""
    row = lines.readline(LONGEST_ROW)
    while row.count('"') % 2 and len(row) < LONGEST_ROW and (more := lines.readline(LONGEST_ROW)):
        row += more
    if len(row) >= LONGEST_ROW:
        raise ValueError(f"a row has more than {LONGEST_ROW:,} characters")
    return row


_ROW = re.compile(r'([^"\n]*),"([^"]*)"\r?\n?')
_ENTRY = re.compile(r"'(\w{1,40})': (\[(?:[^\[\]]++|\[[^\[\]]*+\])*+\])(, |\}$)")
_NUMBERS = re.compile(r"\[[-+0-9.eE, naif]*\]")
KEYS: Final = {"avg_loss": "loss", "acc": "accuracy", "f1": "f1"}


def read_result(text: str) -> dict[str, list[float]]:
    """Return the lists of metrics in the text of a result; the others are not looked at.

    Raises:
        ValueError: it is no dictionary of lists, or a list of metrics holds no numbers.
    """
    text, lists = text.strip(), {}
    keys, at, comma = set(), 1, ", "
    while comma == ", ":
        entry = _ENTRY.match(text, at) if text[:1] == "{" else None
        if entry is None or entry[1] in keys:
            raise ValueError(f"a result is no dictionary of lists: {text[at : at + 60]!r}")
        key, inner, comma = entry.groups()
        keys.add(key)
        at = entry.end()
        if key in _MEASURED:
            inner = inner.replace("np.float64(", "").replace(")", "")
            if not _NUMBERS.fullmatch(inner):
                raise ValueError(f"{key!r} holds other things than numbers: {inner[:60]!r}")
            lists[key] = [float(word) for word in inner[1:-1].split(",")] if len(inner) > 2 else []
    return lists


_MEASURED = {f"{s}_{key}": (i, j) for i, s in enumerate(SPLITS) for j, key in enumerate(KEYS)}
VAL: Final = "val_avg_loss"


def _read_courses(
    archive: Archive, task: Task, every: int, lacks: dict[str, str], card_entries: dict[str, Any]
) -> Iterator[ImportedCourse]:
    """Yield the courses of all rows that have a result."""
    rows = _read_rows(archive, card_entries)
    with _naming_damage(archive):
        _, head = next(rows, (0, ""))
        columns = _translate_columns(head, task)
        most, empty, expected_keys = task.max_round // every, 0, None
        fixed: dict[str, float] = {}
        for row_number, row in rows:
            cells, metrics, measured = _parse_row(row_number, row, len(columns))
            if metrics is None:
                empty += 1
                continue
            if expected_keys not in (None, measured) or len(metrics) > most:
                raise ValueError(
                    f"row {row_number} has {len(metrics)} evaluations, at most {most} in "
                    f"{task.max_round} rounds, of {sorted(measured)}, as all rows must"
                )
            expected_keys = measured
            values = dict(zip(columns, cells, strict=True))
            if values[SEED] not in task.seeds:
                raise InvalidArgumentError(
                    f"`path` must hold seeds among {task.seeds}, got {values[SEED]} in row "
                    f"{row_number}"
                )
            for name in columns:
                if (
                    name not in (*task.space.names, RATE, SEED)
                    and fixed.setdefault(name, values[name]) != values[name]
                ):
                    raise InvalidArgumentError(
                        f"`path` must be a table of {task.id}, which does not search {name!r}, but "
                        f"{archive} does"
                    )
            yield ImportedCourse(
                _to_configuration(task, values),
                values[RATE],
                int(values[SEED]),
                every * np.arange(1, len(metrics) + 1),
                metrics[:, None],
            )
        for key, (split, metric) in _MEASURED.items():
            if expected_keys is not None and key not in expected_keys:
                lacks[f"{SPLITS[split]}_{METRICS[metric]}"] = (
                    f"{archive.member or FILE} lacks {key!r}"
                )
        card_entries[IMPORTED] |= {"fixed": fixed, "rows_without_result": empty}


def _translate_columns(head: str, task: Task) -> list[str]:
    """Return our names of the columns but the last, and check that all are there once."""
    names = head.strip().split(",")
    our_names = {**COLUMNS, RATE: RATE, SEED: SEED}
    if names[-1] != RESULT or len({*names}) < len(names):
        raise ValueError(f"its columns must differ, and the last be {RESULT!r}, got {names!r:.200}")
    for name in names[:-1]:
        require_known("column of FedHPO-Bench", name, our_names)
    columns = [our_names[name] for name in names[:-1]]
    if lacking := {*task.space.names, RATE, SEED}.difference(columns):
        raise InvalidArgumentError(
            f"`path` must be a table of {task.id}, whose columns are {sorted(COLUMNS)}; it lacks "
            f"{sorted(lacking)}"
        )
    return columns


_CELL = re.compile(r"-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")


def _parse_row(
    row_number: int, row: str, count: int
) -> tuple[list[float], Floats | None, frozenset[str]]:
    """Return the numbers of a row, (evaluations, splits, metrics), and what was measured."""
    parts = _ROW.fullmatch(row)
    cells = parts[1].split(",") if parts else []
    if parts is None or len(cells) != count or not all(map(_CELL.fullmatch, cells)):
        raise ValueError(
            f"row {row_number} is no list of {count} numbers and a result: {row[:80]!r}"
        )
    result = {key: values for key, values in read_result(parts[2]).items() if values}
    if VAL not in result:
        return [*map(float, cells)], None, frozenset()
    evaluations = len(result[VAL])
    if short := [key for key, values in result.items() if len(values) < evaluations]:
        raise ValueError(f"row {row_number} has fewer values of {short[0]!r} than of {VAL!r}")
    metrics = np.tile(UNMEASURED, (evaluations, len(SPLITS), 1))
    for key, values in result.items():
        metrics[:, *_MEASURED[key]] = values[:evaluations]
    return [*map(float, cells)], metrics, frozenset(result)


def _to_configuration(task: Task, values: Mapping[str, float]) -> tuple[Value, ...]:
    """Return a configuration; their layers count the last one, too."""
    configuration: list[Value] = []
    for dimension in task.space.dimensions:
        value = values[dimension.name] - (dimension.name == "model_depth")
        if dimension.kind == "int" and value != int(value):
            raise ValueError(f"{dimension.name!r} must be whole, got {value!r}")
        configuration.append(int(value) if dimension.kind == "int" else value)
    return tuple(configuration)
