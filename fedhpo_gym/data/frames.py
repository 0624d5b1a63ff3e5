"""Tables from elsewhere as data frames: CSV, Parquet, LEAF's json, data sets of Hugging Face."""

import csv
import io
import itertools
import math
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrow_files import require_sound
from fedhpo_gym.core.checks import short_repr
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    require_optional,
)
from fedhpo_gym.core.files import read_json, read_unpacked, require_growth
from fedhpo_gym.data import cache, leaf

CLIENT, LABEL = "client", "label"
"""Columns of LEAF's json and of arrays."""
ADVICE: Final = "give a CSV or Parquet file, LEAF's json, or a folder that `save_to_disk` wrote"


_FOREIGN: Final = frozenset(
    {".xlsx", ".xls", ".ods", ".jsonl", ".ndjson", ".feather", ".orc", ".h5", ".sav", ".dta"}
)
"""Endings of tables that pandas reads, and that would be damaged CSV files here."""

_ARCHIVES: Final = frozenset({".zip", ".tar", ".tgz", ".7z", ".rar", ".zst"})


def read_frame(data: Any) -> Any:
    """Return a data frame of a path, a data frame, or arrays (features, labels, clients).

    Raises:
        MissingDataError: there is no such file.
        InvalidArgumentError: it is nothing of the kind, or its cells are no numbers and words.
        MissingDependencyError: pandas, or for some files pyarrow, is not installed.
    """
    try:
        return _read_any(data)
    except UnicodeEncodeError as error:  # half of a surrogate pair, as JSON can write it
        raise InvalidArgumentError(f"`data` must have words in UTF-8: {error}") from error


def _read_any(data: Any) -> Any:
    with require_optional("reading a table", "pandas", "data", "pandas"):
        import pandas
    if isinstance(data, pandas.DataFrame):
        frame = data
    elif isinstance(data, tuple):
        if len(data) not in (2, 3):
            raise InvalidArgumentError(
                f"`data` must be (features, labels) or (features, labels, clients), got {len(data)}"
            )
        frame = _of_arrays(*data)
    else:
        if not isinstance(data, str | Path):
            raise InvalidArgumentError(
                "`data` must be a path, a pandas DataFrame, or a tuple (features, labels, "
                f"clients), got {short_repr(data)}"
            )
        frame = _read(Path(data))
    if not frame.size:
        raise InvalidArgumentError("`data` must have columns and rows, got none")
    # An index with a name holds cells, as it does in a CSV file; without one it counts rows.
    levels = frame.index.names
    frame = _flat(frame.reset_index(drop=None in levels or not {*levels}.isdisjoint(frame)))
    names = [*frame.columns]
    odd = [name for name in names if not name.strip() or not name.isprintable()]
    if odd or len({*names}) < len(names):
        raise InvalidArgumentError(
            f"`data` must have columns of different, printable names, got {names!r:.200}"
        )
    return frame


def stem_of(path: Path) -> str:
    """Return the name of a file without its endings, such as `table` of table.csv.xz."""
    return path.stem.removesuffix(".csv").removesuffix(".json")


def _read(path: Path) -> Any:
    if not path.exists():
        raise MissingDataError(f"`data` must be a file or a folder, {path} is none; {ADVICE}")
    if path.suffix in _ARCHIVES:
        raise InvalidArgumentError(
            f"`data` must be a file that is in no archive, got {path}. Unpack it; one file may be "
            "packed as .gz, .bz2 or .xz."
        )
    if path.suffix in _FOREIGN:
        raise InvalidArgumentError(
            f"`data` must be of another format than {path}: {ADVICE}, or read it by pandas and "
            "give the data frame"
        )
    is_json = path.name.endswith((".json", ".json.gz"))
    with cache.reading(path, ADVICE):
        if path.is_dir() and (path / "dataset_dict.json").exists():
            names = read_json(path / "dataset_dict.json")["splits"]
            return _arrow([file for name in names for file in _arrow_files(path / _bare(name))])
        if path.is_dir() and (path / "state.json").exists():
            return _arrow(_arrow_files(path))
        if path.suffix in (".parquet", ".pq"):
            return _arrow([path])
        if not (path.is_dir() or is_json):
            return _csv(path)
        files = [path] if is_json else leaf.find_files(path)
        found = leaf.read_files(files)
    if not files:
        raise MissingDataError(f"`data` must be a data set, the folder {path} holds none; {ADVICE}")
    return _of_leaf(found)


def _csv(path: Path) -> Any:
    import pandas

    how = "save it anew, or read it by `pandas.read_csv` and give the data frame"
    read = partial(
        pandas.read_csv, dtype=str, skipinitialspace=True, keep_default_na=False, na_values=[""]
    )  # fmt: skip
    try:
        content = read_unpacked(path)
        if (width := check_cells(content, path)) > MOST_COLUMNS:
            raise DamagedDataError(
                f"{path} must have at most {MOST_COLUMNS:,} columns, got {width:,}; {how}"
            )
        frame = read(io.BytesIO(content))
        header = read(io.BytesIO(content), header=None, nrows=1).iloc[0]
    except UnicodeDecodeError as error:
        raise DamagedDataError(
            f"{path} must be text in UTF-8, and is not ({error}); {how}"
        ) from None
    if len(twice := header[header.duplicated() & header.notna()]):  # pandas would rename them
        raise DamagedDataError(f"{path} must have one column {twice.iloc[0]!r:.80}, got two; {how}")
    if len(frame.columns) == 1 and (marks := [one for one in ";\t|" if one in frame.columns[0]]):
        raise DamagedDataError(f"{path} must have commas between cells, got {marks[0]!r}; {how}")
    if not isinstance(frame.index, pandas.RangeIndex):
        raise DamagedDataError(f"{path} must have as many cells in each row as columns; {how}")
    return frame


def separator_advice(name: str, columns: Iterable[str]) -> str:
    """Return what to do where a name is a part of columns that other marks than commas separate."""
    for mark in ";\t|":
        if any(name in map(str.strip, one.split(mark)) for one in columns if mark in one):
            return (
                f" Cells seem to be separated by {mark!r}: save them with commas, or read them by "
                f"`pandas.read_csv(path, sep={mark!r})` and give the data frame."
            )
    return ""


MISSING: Final = frozenset(
    {
        *("NA", "N/A", "n/a", "#NA", "#N/A", "#N/A N/A", "<NA>", "NULL", "null", "None", "none"),
        *("NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN", "NaT"),
        *("\\N", "?", ".", "-", "--"),
    }
)
"""Words that stand for what is missing among numbers, dates and durations: those of pandas, and
some more. Among words they are words."""
MARKS: Final = re.compile(r"[,_'\s%$€£]")
"""Marks of thousands, decimals and units that people write in numbers, and programs do not."""
_DIGITS: Final = r"(?i:([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?)\s*"
NUMBER: Final = re.compile(rf"\s*[+-]?{_DIGITS}")
_NO_CODE: Final = re.compile(rf"\s*[+-]?(?!0[0-9]|[0-9]{{16,}}\s*\Z){_DIGITS}")
"""Numbers that are no codes, such as 01, or of more digits than a float64 holds exactly."""
_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]+\s*")
DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_TIME: Final = r"\d\d:\d\d:\d\d(\.\d{1,9})?"
_DURATION: Final = re.compile(rf"(\d+ days( {_TIME})?|-\d+ days( \+{_TIME})?)\s*")
"""Durations as pandas writes them; -1 days +23:00:00 is an hour less than none."""
_TRUTHS: Final = {"True": 1.0, "False": 0.0}


def is_missing(word: str) -> bool:
    """Return whether a word stands for a missing number, date or duration."""
    word = word.strip()
    return not word or word in MISSING


def _distinct(column: Any) -> tuple[NDArray[np.intp], list[str]]:
    """Return where each of (n,) cells is in a list of different words; -1 is a missing one."""
    import pandas

    codes, words = pandas.factorize(column)
    return codes, [str(word) for word in words]


def as_numbers(column: Any) -> Any:
    """Return a column of (n,) words as float64, NaN where a cell is missing.

    Raises:
        ValueError: a cell is no number; Python itself would read 1_000 as one.
    """
    import pandas

    codes, words = _distinct(column)
    for word in words:
        if not (is_missing(word) or NUMBER.fullmatch(word)):
            raise ValueError(f"{word!r:.40} is no number")
    numbers = [math.nan if is_missing(word) else float(word) for word in words]
    return pandas.Series(np.array([*numbers, math.nan])[codes], index=column.index)


def _numbers_of(words: Sequence[str]) -> Sequence[float] | None:
    """Return words as numbers, truths as 1 and 0, or durations in days; None if one is neither."""
    import pandas

    if all(map(_NO_CODE.fullmatch, words)):
        return [*map(float, words)]
    if all(word.strip() in _TRUTHS for word in words):
        return [_TRUTHS[word.strip()] for word in words]
    if all(map(_DURATION.fullmatch, words)):
        with suppress(ValueError):  # beyond 292 years
            return [*(pandas.to_timedelta(words) / pandas.Timedelta(days=1))]
    return None


def _of_words(column: Any) -> Any:
    """Return words as the int64 or float64 numbers that they all are, where they are.

    Others stay words, without spaces before them, as in a CSV file; a blank one is missing.
    """
    import pandas

    codes, words = _distinct(column)
    known = [word for word in words if not is_missing(word)]
    if known and (numbers := _numbers_of(known)) is not None:
        values = dict(zip(known, numbers, strict=True))
        cells = np.array([*(values.get(word, math.nan) for word in words), math.nan])[codes]
        whole = all(_WHOLE.fullmatch(word) or word.strip() in _TRUTHS for word in known)
        whole = whole and not np.isnan(cells).any()
        return pandas.Series(cells.astype(np.int64) if whole else cells)
    is_date = bool(known) and all(map(DATE.match, known))
    missing = (is_missing(word) if is_date else not word.strip() for word in words)
    kept = [None if out else word.lstrip(" ") for word, out in zip(words, missing, strict=True)]
    if kept == words:
        return column
    return pandas.Series(np.array([*kept, None], dtype=object)[codes], dtype=column.dtype)


MOST_COLUMNS: Final = 4_000
"""Of a CSV: pandas takes milliseconds for each, however few rows there are."""


def check_cells(content: bytes, path: Path) -> int:
    """Return the columns of a CSV, whose missing cells at the ends of rows must be in proportion.

    Raises:
        TooLargeError: they would take more memory than their file explains.
    """
    lines = csv.reader(io.TextIOWrapper(io.BytesIO(content), "utf-8", "replace", newline=""))
    some = (len(row) for row in lines if len(row) > 1 or "".join(row).strip())
    width = max(itertools.islice(some, 2), default=0)  # a long first row makes an index of columns
    rows = content.count(b"\n") + content.count(b"\r")
    require_growth(8 * width * rows, path.stat().st_size, path)
    return width


def _arrow_files(folder: Path) -> list[Path]:
    """Return the files of what `save_to_disk` of Hugging Face's datasets wrote into a folder."""
    path = folder / "state.json"
    state = read_json(path) if path.is_file() else {"_data_files": [{"filename": path.name}]}
    if any(state.get(name) for name in ("_indices_data_files", "_indices_files")):
        raise DamagedDataError(
            f"{path} must have no files of indices, which old versions of `datasets` chose rows "
            "by; call `flatten_indices()` before `save_to_disk`"
        )
    files = [folder / _bare(one["filename"]) for one in state["_data_files"]]
    if missing := [one for one in files if not one.is_file()]:
        raise InvalidArgumentError(f"it must hold the files that it names, {missing[0]} is missing")
    return files


def _arrow(paths: Sequence[Path]) -> Any:
    """Return the rows of Parquet files, or of Arrow's streams in files `*.arrow`."""
    import pandas

    with require_optional("reading Arrow or Parquet", "pyarrow", "columnar", "pyarrow"):
        import pyarrow
    if len({*paths}) < len(paths) or not paths:
        raise InvalidArgumentError(f"it must name files, each once, got {len(paths)} names")
    with tempfile.TemporaryDirectory() as folder:
        require_sound(paths, folder)
        # What no float64 holds exactly stays whole where cells are missing.
        whole = {pyarrow.int64(): pandas.Int64Dtype(), pyarrow.uint64(): pandas.UInt64Dtype()}
        parts = []
        for number in range(len(paths)):
            with pyarrow.OSFile(str(Path(folder) / str(number))) as file:
                parts.append(pyarrow.ipc.open_stream(file).read_pandas(types_mapper=whole.get))
    return pandas.concat(parts)


def _bare(name: str) -> str:
    """Return the name of a file or folder that a file names, which must be beside it."""
    if Path(name).name != name or name in ("", ".", "..") or len(name.encode()) > 255:
        raise InvalidArgumentError(f"a file must name others beside it only, got {name!r:.80}")
    return name


def _of_leaf(data: leaf.LeafData) -> Any:
    features: list[Any] = []
    labels: list[Any] = []
    clients: list[str] = []
    for user, samples in data.users.items():
        features += samples.x
        labels += samples.y
        clients += [user] * len(samples.y)
    try:
        array = np.array(features, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.empty(0)
    if array.ndim != 2:
        raise InvalidArgumentError(
            "`data` in LEAF's json must have a list of numbers as the x of every sample, all of "
            "one length and none beyond 1e308; texts and images need a model of their own"
        )
    return _of_arrays(array, labels, clients)


def _of_arrays(features: Any, labels: Any, clients: Any = None) -> Any:
    import pandas

    named = {LABEL: labels, **({} if clients is None else {CLIENT: clients})}
    for name, cells in named.items():
        if not _is_list(cells) or any(map(_is_list, cells)):
            raise InvalidArgumentError(
                f"`data` must have one {name} for each row, a number or a word, got "
                f"{short_repr(cells)}"
            )
    try:
        array = np.asarray(features)
    except ValueError:
        array = np.empty(0)
    sizes = [array.shape[:1], *((len(cells),) for cells in named.values())]
    if array.ndim != 2 or array.dtype.kind not in "iufb" or len({*sizes}) > 1:
        raise InvalidArgumentError(
            "`data` must be (n, d) numbers, then n labels and perhaps n clients, got features of "
            f"{array.dtype} and shape {array.shape}, and lengths {sizes}"
        )
    columns: Mapping[str, Any] = {f"x{i}": array[:, i] for i in range(array.shape[1])}
    return pandas.DataFrame({**columns, **{name: list(cells) for name, cells in named.items()}})


def _is_list(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str)


def _flat(frame: Any) -> Any:
    """Return a frame of numbers and words: cells decide which, not the type of their column.

    Equally long lists of numbers become columns of numbers.
    """
    import pandas

    parts = []
    for name, column in frame.items():
        try:
            parts.append(_flat_part(str(name), _without_arrow(column)))
        except (FedHPOError, UnicodeError):  # words that are no text are refused by who writes them
            raise
        except (OverflowError, NotImplementedError, ValueError) as error:
            # such as dates after the year 9999, or integers of thousands of digits
            raise InvalidArgumentError(
                f"`data` must have cells that pandas can read in {name!r}, got {column.dtype} "
                f"({error}). Give them as words or numbers."
            ) from error
    return pandas.concat(parts, axis=1)


def _without_arrow(column: Any) -> Any:
    """Return a column of an Arrow type that pandas reads in part as it comes from an Arrow file."""
    import pandas

    if not isinstance(column.dtype, pandas.ArrowDtype):
        return column
    import pyarrow

    kinds, stored = pyarrow.types, column.dtype.pyarrow_dtype
    if kinds.is_duration(stored) or kinds.is_timestamp(stored) or kinds.is_string_view(stored):
        return pyarrow.array(column.array).to_pandas()
    return column


def _flat_part(name: str, column: Any) -> Any:
    """Return a column, or the columns of lists of numbers, as a series or frame of these names."""
    import pandas

    first = next((cell for cell in column if cell is not None), None)
    if isinstance(first, Sequence | np.ndarray) and not isinstance(first, str | bytes):
        try:
            rows = [np.asarray(cell, dtype=np.float64).ravel() for cell in column]
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(
                f"`data` must have lists of numbers in each row of {name!r}: {error}"
            ) from error
        if len({len(row) for row in rows}) > 1:
            raise InvalidArgumentError(f"`data` must have lists of one length in {name!r}")
        wide = np.stack(rows)
        return pandas.DataFrame(wide, columns=[f"{name}{i}" for i in range(wide.shape[1])])
    if isinstance(first, Mapping | bytes):
        raise InvalidArgumentError(
            f"`data` must have numbers, words and lists of numbers as cells, got "
            f"{type(first).__name__} in {name!r}; images and the like need a model of their own"
        )
    return _flat_column(column).rename(name)


def _plain(cell: Any) -> Any:
    """Return a cell; None for a signalling NaN, which pandas cannot ask whether it is missing."""
    if isinstance(cell, Fraction):
        return float(cell)
    return None if isinstance(cell, Decimal) and cell.is_snan() else cell


_OBJECTS: Final = {"boolean": "boolean", "timedelta": "timedelta64[ns]"}
"""Cells of a column of objects, as pandas infers them -> the type that they have."""


def _flat_column(column: Any) -> Any:
    """Return a column as int64, float64 or words (durations in days); None is a missing word."""
    import pandas

    if column.dtype == "str":
        return _of_words(column)
    if column.dtype.kind == "O":
        column = column.astype("object").map(_plain)
        if (cells := pandas.api.types.infer_dtype(column)) in _OBJECTS:
            with suppress(ValueError):  # durations beyond 292 years stay words
                column = column.astype(_OBJECTS[cells])
    if column.dtype.kind == "m":  # by numpy: pandas would convert to finer units, and wrap round
        column = pandas.Series(column.to_numpy() / np.timedelta64(1, "D"))
    kind, is_whole = column.dtype.kind, column.notna().all()
    if kind == "f" or (kind == "b" and not is_whole):
        return pandas.Series(column.astype("Float64").to_numpy(np.float64, na_value=np.nan))
    if is_whole and (kind in "bi" or (kind == "u" and column.dtype.itemsize < 8)):
        return column.astype(np.int64)
    # A float64 has no room for every int64: where cells are missing, words decide what is exact.
    return _of_words(
        column.astype("object").map(lambda cell: None if pandas.isna(cell) else str(cell))
    )
