"""Tables of users as data frames: from CSV, Parquet, LEAF's JSON, Hugging Face data sets or arrays.

`new_task` reads its data here before it inspects them, and so does the import of results.
Every column of the resulting frame is int64, float64 or words; the cells decide which, not the type
of the column. Sizes are checked before unpacking, and Arrow files are validated in another process,
because files may come from others.
"""

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


_UNSUPPORTED_ENDINGS: Final = frozenset(
    {".xlsx", ".xls", ".ods", ".jsonl", ".ndjson", ".feather", ".orc", ".h5", ".sav", ".dta"}
)
"""Endings of formats that pandas reads, but that would look like damaged CSV files here."""

_ARCHIVES: Final = frozenset({".zip", ".tar", ".tgz", ".7z", ".rar", ".zst"})


def read_frame(data: Any) -> Any:
    """Return a data frame of a path, a data frame, or arrays (features, labels, clients).

    Raises:
        MissingDataError: there is no such file.
        InvalidArgumentError: it is none of these, or has cells other than numbers and words.
        MissingDependencyError: pandas, or for some files pyarrow, is not installed.
    """
    try:
        return _read_any(data)
    except UnicodeEncodeError as error:  # JSON may contain half of a surrogate pair
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
        frame = _frame_from_arrays(*data)
    else:
        if not isinstance(data, str | Path):
            raise InvalidArgumentError(
                "`data` must be a path, a pandas DataFrame, or a tuple (features, labels, "
                f"clients), got {short_repr(data)}"
            )
        frame = _read_path(Path(data))
    if not frame.size:
        raise InvalidArgumentError("`data` must have columns and rows, got none")
    # A named index is data and becomes a column; one without a name counts rows.
    levels = frame.index.names
    frame = frame.reset_index(drop=None in levels or not {*levels}.isdisjoint(frame))
    frame = _flatten_frame(frame)
    names = [*frame.columns]
    unprintable = [name for name in names if not name.strip() or not name.isprintable()]
    if unprintable or len({*names}) < len(names):
        raise InvalidArgumentError(
            f"`data` must have columns of different, printable names, got {names!r:.200}"
        )
    return frame


def name_without_endings(path: Path) -> str:
    """Return the name of a file without its endings: `table` for table.csv.xz."""
    return path.stem.removesuffix(".csv").removesuffix(".json")


def _read_path(path: Path) -> Any:
    if not path.exists():
        raise MissingDataError(f"`data` must be a file or a folder, {path} is none; {ADVICE}")
    if path.suffix in _ARCHIVES:
        raise InvalidArgumentError(
            f"`data` must be a file that is in no archive, got {path}. Unpack it; one file may be "
            "packed as .gz, .bz2 or .xz."
        )
    if path.suffix in _UNSUPPORTED_ENDINGS:
        raise InvalidArgumentError(
            f"`data` must be of another format than {path}: {ADVICE}, or read it by pandas and "
            "give the data frame"
        )
    is_json = path.name.endswith((".json", ".json.gz"))
    with cache.reporting_damage(path, ADVICE):
        if path.is_dir() and (path / "dataset_dict.json").exists():
            names = read_json(path / "dataset_dict.json")["splits"]
            folders = [path / _require_bare_name(name) for name in names]
            return _read_arrow([file for folder in folders for file in _list_arrow_files(folder)])
        if path.is_dir() and (path / "state.json").exists():
            return _read_arrow(_list_arrow_files(path))
        if path.suffix in (".parquet", ".pq"):
            return _read_arrow([path])
        if not (path.is_dir() or is_json):
            return _read_csv(path)
        files = [path] if is_json else leaf.find_files(path)
        leaf_data = leaf.read_files(files)
    if not files:
        raise MissingDataError(f"`data` must be a data set, the folder {path} holds none; {ADVICE}")
    return _frame_from_leaf(leaf_data)


def _read_csv(path: Path) -> Any:
    import pandas

    advice = "save it anew, or read it by `pandas.read_csv` and give the data frame"
    read = partial(
        pandas.read_csv, dtype=str, skipinitialspace=True, keep_default_na=False, na_values=[""]
    )  # fmt: skip
    try:
        content = read_unpacked(path)
        if (width := check_csv_size(content, path)) > MAX_COLUMNS:
            raise DamagedDataError(
                f"{path} must have at most {MAX_COLUMNS:,} columns, got {width:,}; {advice}"
            )
        frame = read(io.BytesIO(content))
        header = read(io.BytesIO(content), header=None, nrows=1).iloc[0]
    except UnicodeDecodeError as error:
        raise DamagedDataError(
            f"{path} must be text in UTF-8, and is not ({error}); {advice}"
        ) from None
    if len(repeated := header[header.duplicated() & header.notna()]):  # pandas would rename them
        raise DamagedDataError(
            f"{path} must have one column {repeated.iloc[0]!r:.80}, got two; {advice}"
        )
    if len(frame.columns) == 1 and (marks := [mark for mark in ";\t|" if mark in frame.columns[0]]):
        raise DamagedDataError(f"{path} must have commas between cells, got {marks[0]!r}; {advice}")
    if not isinstance(frame.index, pandas.RangeIndex):
        raise DamagedDataError(f"{path} must have as many cells in each row as columns; {advice}")
    return frame


def separator_advice(name: str, columns: Iterable[str]) -> str:
    """Return advice if a name is part of a column because cells are not separated by commas."""
    for mark in ";\t|":
        if any(name in map(str.strip, column.split(mark)) for column in columns if mark in column):
            return (
                f" Cells seem to be separated by {mark!r}: save them with commas, or read them by "
                f"`pandas.read_csv(path, sep={mark!r})` and give the data frame."
            )
    return ""


MISSING_WORDS: Final = frozenset(
    {
        *("NA", "N/A", "n/a", "#NA", "#N/A", "#N/A N/A", "<NA>", "NULL", "null", "None", "none"),
        *("NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN", "NaT"),
        *("\\N", "?", ".", "-", "--"),
    }
)
"""Words that mean a missing cell among numbers, dates and durations: those of pandas, and others.
In columns of words they are ordinary values."""
NUMBER_MARKS: Final = re.compile(r"[,_'\s%$€£]")
"""Thousands separators, decimal commas and units, which `float` does not accept."""
_DIGITS: Final = r"(?i:([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf(inity)?)\s*"
NUMBER: Final = re.compile(rf"\s*[+-]?{_DIGITS}")
_PLAIN_NUMBER: Final = re.compile(rf"\s*[+-]?(?!0[0-9]|[0-9]{{16,}}\s*\Z){_DIGITS}")
"""Numbers except codes, which have leading zeros, or more digits than a float64 can hold."""
_INTEGER: Final = re.compile(r"\s*[+-]?[0-9]+\s*")
DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_TIME: Final = r"\d\d:\d\d:\d\d(\.\d{1,9})?"
_DURATION: Final = re.compile(rf"(\d+ days( {_TIME})?|-\d+ days( \+{_TIME})?)\s*")
"""Durations as pandas writes them; -1 days +23:00:00 is minus one hour."""
_TRUTH_VALUES: Final = {"True": 1.0, "False": 0.0}


def is_missing(word: str) -> bool:
    """Return whether a word means a missing number, date or duration."""
    word = word.strip()
    return not word or word in MISSING_WORDS


def _factorize(column: Any) -> tuple[NDArray[np.intp], list[str]]:
    """Return (n,) indices of cells in a list of distinct words, -1 for missing, and the list."""
    import pandas

    codes, values = pandas.factorize(column)
    return codes, [str(value) for value in values]


def words_to_floats(column: Any) -> Any:
    """Return a column of (n,) words as float64, with NaN for missing cells.

    Raises:
        ValueError: a cell is no number; Python itself would read 1_000 as one.
    """
    import pandas

    codes, cells = _factorize(column)
    for cell in cells:
        if not (is_missing(cell) or NUMBER.fullmatch(cell)):
            raise ValueError(f"{cell!r:.40} is no number")
    numbers = [math.nan if is_missing(cell) else float(cell) for cell in cells]
    return pandas.Series(np.array([*numbers, math.nan])[codes], index=column.index)


def _parse_numbers(cells: Sequence[str]) -> Sequence[float] | None:
    """Return words as numbers, truth values as 1 and 0, or durations in days; else None."""
    import pandas

    if all(map(_PLAIN_NUMBER.fullmatch, cells)):
        return [*map(float, cells)]
    if all(cell.strip() in _TRUTH_VALUES for cell in cells):
        return [_TRUTH_VALUES[cell.strip()] for cell in cells]
    if all(map(_DURATION.fullmatch, cells)):
        with suppress(ValueError):  # pandas represents durations up to 292 years
            return [*(pandas.to_timedelta(cells) / pandas.Timedelta(days=1))]
    return None


def _parse_words(column: Any) -> Any:
    """Return a column of words as int64 or float64 if all are numbers, else as words.

    Words lose leading spaces, as in a CSV file; a blank word is a missing cell.
    """
    import pandas

    codes, distinct = _factorize(column)
    present = [word for word in distinct if not is_missing(word)]
    if present and (numbers := _parse_numbers(present)) is not None:
        values = dict(zip(present, numbers, strict=True))
        cells = np.array([*(values.get(word, math.nan) for word in distinct), math.nan])[codes]
        is_integer = all(
            _INTEGER.fullmatch(word) or word.strip() in _TRUTH_VALUES for word in present
        )
        is_integer = is_integer and not np.isnan(cells).any()
        return pandas.Series(cells.astype(np.int64) if is_integer else cells)
    is_date = bool(present) and all(map(DATE.match, present))
    missing = (is_missing(word) if is_date else not word.strip() for word in distinct)
    stripped = [
        None if is_blank else word.lstrip(" ")
        for word, is_blank in zip(distinct, missing, strict=True)
    ]
    if stripped == distinct:
        return column
    return pandas.Series(np.array([*stripped, None], dtype=object)[codes], dtype=column.dtype)


MAX_COLUMNS: Final = 4_000
"""Largest number of columns of a CSV file: pandas needs milliseconds for each."""


def check_csv_size(content: bytes, path: Path) -> int:
    """Return the number of columns of a CSV file, after checking the size of its frame.

    Short rows are padded with missing cells, so a small file could need much memory.

    Raises:
        TooLargeError: the frame would be out of proportion to its file.
    """
    lines = csv.reader(io.TextIOWrapper(io.BytesIO(content), "utf-8", "replace", newline=""))
    lengths = (len(row) for row in lines if len(row) > 1 or "".join(row).strip())
    width = max(
        itertools.islice(lengths, 2), default=0
    )  # the first two: pandas turns surplus columns into an index
    rows = content.count(b"\n") + content.count(b"\r")
    require_growth(8 * width * rows, path.stat().st_size, path)
    return width


def _list_arrow_files(folder: Path) -> list[Path]:
    """Return the files of a folder written by `save_to_disk` of Hugging Face's datasets."""
    path = folder / "state.json"
    state = read_json(path) if path.is_file() else {"_data_files": [{"filename": path.name}]}
    if any(state.get(name) for name in ("_indices_data_files", "_indices_files")):
        raise DamagedDataError(
            f"{path} must have no files of indices, which old versions of `datasets` chose rows "
            "by; call `flatten_indices()` before `save_to_disk`"
        )
    files = [folder / _require_bare_name(file["filename"]) for file in state["_data_files"]]
    if missing := [file for file in files if not file.is_file()]:
        raise InvalidArgumentError(f"it must hold the files that it names, {missing[0]} is missing")
    return files


def _read_arrow(paths: Sequence[Path]) -> Any:
    """Return the rows of Parquet files, or of Arrow streams in `*.arrow` files."""
    import pandas

    with require_optional("reading Arrow or Parquet", "pyarrow", "columnar", "pyarrow"):
        import pyarrow
    if len({*paths}) < len(paths) or not paths:
        raise InvalidArgumentError(f"it must name files, each once, got {len(paths)} names")
    with tempfile.TemporaryDirectory() as folder:
        require_sound(paths, folder)
        # Nullable types, because large integers do not fit into float64 if cells are missing.
        exact_types = {pyarrow.int64(): pandas.Int64Dtype(), pyarrow.uint64(): pandas.UInt64Dtype()}
        tables = []
        for index in range(len(paths)):
            with pyarrow.OSFile(str(Path(folder) / str(index))) as file:
                tables.append(
                    pyarrow.ipc.open_stream(file).read_pandas(types_mapper=exact_types.get)
                )
    return pandas.concat(tables)


def _require_bare_name(name: str) -> str:
    """Return the name of a file or folder, after checking that it contains no path."""
    if Path(name).name != name or name in ("", ".", "..") or len(name.encode()) > 255:
        raise InvalidArgumentError(f"a file must name others beside it only, got {name!r:.80}")
    return name


def _frame_from_leaf(data: leaf.LeafData) -> Any:
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
    return _frame_from_arrays(array, labels, clients)


def _frame_from_arrays(features: Any, labels: Any, clients: Any = None) -> Any:
    import pandas

    named_columns = {LABEL: labels, **({} if clients is None else {CLIENT: clients})}
    for name, cells in named_columns.items():
        if not _is_list(cells) or any(map(_is_list, cells)):
            raise InvalidArgumentError(
                f"`data` must have one {name} for each row, a number or a word, got "
                f"{short_repr(cells)}"
            )
    try:
        array = np.asarray(features)
    except ValueError:
        array = np.empty(0)
    sizes = [array.shape[:1], *((len(cells),) for cells in named_columns.values())]
    if array.ndim != 2 or array.dtype.kind not in "iufb" or len({*sizes}) > 1:
        raise InvalidArgumentError(
            "`data` must be (n, d) numbers, then n labels and perhaps n clients, got features of "
            f"{array.dtype} and shape {array.shape}, and lengths {sizes}"
        )
    columns: Mapping[str, Any] = {f"x{i}": array[:, i] for i in range(array.shape[1])}
    return pandas.DataFrame(
        {**columns, **{name: list(cells) for name, cells in named_columns.items()}}
    )


def _is_list(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str)


def _flatten_frame(frame: Any) -> Any:
    """Return a frame of numbers and words, by the cells of columns and not by their types.

    Lists of numbers of one length become columns of numbers.
    """
    import pandas

    columns = []
    for name, column in frame.items():
        try:
            columns.append(_flatten_cells(str(name), _without_arrow(column)))
        except (FedHPOError, UnicodeError):  # already describes the fault
            raise
        except (OverflowError, NotImplementedError, ValueError) as error:
            # such as dates after the year 9999, or integers of thousands of digits
            raise InvalidArgumentError(
                f"`data` must have cells that pandas can read in {name!r}, got {column.dtype} "
                f"({error}). Give them as words or numbers."
            ) from error
    return pandas.concat(columns, axis=1)


def _without_arrow(column: Any) -> Any:
    """Return a column without those Arrow types that pandas supports only in part."""
    import pandas

    if not isinstance(column.dtype, pandas.ArrowDtype):
        return column
    import pyarrow

    kinds, stored = pyarrow.types, column.dtype.pyarrow_dtype
    if kinds.is_duration(stored) or kinds.is_timestamp(stored) or kinds.is_string_view(stored):
        return pyarrow.array(column.array).to_pandas()
    return column


def _flatten_cells(name: str, column: Any) -> Any:
    """Return a column as a series, or a column of lists of numbers as a frame."""
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
    return _flatten_column(column).rename(name)


def _plain_cell(cell: Any) -> Any:
    """Return a cell; None for a signalling NaN, for which `pandas.isna` fails."""
    if isinstance(cell, Fraction):
        return float(cell)
    return None if isinstance(cell, Decimal) and cell.is_snan() else cell


_INFERRED_DTYPES: Final = {"boolean": "boolean", "timedelta": "timedelta64[ns]"}
"""Inferred type of the cells of an object column -> dtype."""


def _flatten_column(column: Any) -> Any:
    """Return a column as int64, float64 (durations in days) or words; None is a missing word."""
    import pandas

    if column.dtype == "str":
        return _parse_words(column)
    if column.dtype.kind == "O":
        column = column.astype("object").map(_plain_cell)
        if (cells := pandas.api.types.infer_dtype(column)) in _INFERRED_DTYPES:
            with suppress(ValueError):  # durations above 292 years stay words
                column = column.astype(_INFERRED_DTYPES[cells])
    if column.dtype.kind == "m":  # in numpy, because pandas could overflow in finer units
        column = pandas.Series(column.to_numpy() / np.timedelta64(1, "D"))
    kind, is_whole = column.dtype.kind, column.notna().all()
    if kind == "f" or (kind == "b" and not is_whole):
        return pandas.Series(column.astype("Float64").to_numpy(np.float64, na_value=np.nan))
    if is_whole and (kind in "bi" or (kind == "u" and column.dtype.itemsize < 8)):
        return column.astype(np.int64)
    # A float64 cannot hold each int64 exactly: with missing cells, convert from words instead.
    return _parse_words(
        column.astype("object").map(lambda cell: None if pandas.isna(cell) else str(cell))
    )
