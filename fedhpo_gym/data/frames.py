"""Tables from elsewhere as data frames: CSV, Parquet, LEAF's json, data sets of Hugging Face."""

import csv
import io
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedhpo_gym.core.checks import shown
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError, needing
from fedhpo_gym.core.files import growth_limit, read_json, require_growth, unpacked
from fedhpo_gym.data import cache, leaf

CLIENT, LABEL = "client", "label"
"""Columns of LEAF's json and of arrays."""
ADVICE: Final = "give a CSV or Parquet file, LEAF's json, or a folder that `save_to_disk` wrote"


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
    with needing("reading a table", "pandas", "data", "pandas"):
        import pandas
    if isinstance(data, pandas.DataFrame):
        frame = data.reset_index(drop=True)
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
                f"clients), got {shown(data)}"
            )
        frame = _read(Path(data))
    frame.columns = [str(name) for name in frame.columns]
    if not len(frame.columns):
        raise InvalidArgumentError("`data` must have columns, got none")
    odd = [name for name in frame.columns if not name.strip() or not name.isprintable()]
    if odd or len({*frame.columns}) < len(frame.columns):
        raise InvalidArgumentError(
            f"`data` must have columns of different, printable names, got {[*frame.columns]!r:.200}"
        )
    return _flat(frame)


def _read(path: Path) -> Any:
    if not path.exists():
        raise MissingDataError(f"`data` must be a file or a folder, {path} is none; {ADVICE}")
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
    try:
        content = unpacked(path)
        if (width := check_cells(content, path)) > MOST_COLUMNS:
            raise DamagedDataError(
                f"{path} must have at most {MOST_COLUMNS:,} columns, got {width:,}; {how}"
            )
        frame = pandas.read_csv(
            io.BytesIO(content),
            dtype=str,
            skipinitialspace=True,
            keep_default_na=False,
            na_values=[""],
        )
    except UnicodeDecodeError as error:
        raise DamagedDataError(
            f"{path} must be text in UTF-8, and is not ({error}); {how}"
        ) from None
    if len(frame.columns) == 1 and (marks := [one for one in ";\t|" if one in frame.columns[0]]):
        raise DamagedDataError(f"{path} must have commas between cells, got {marks[0]!r}; {how}")
    if not isinstance(frame.index, pandas.RangeIndex):
        raise DamagedDataError(f"{path} must have as many cells in each row as columns; {how}")
    return frame.apply(_numbers)


UNKNOWN: Final = ("NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?", "-", ".")
"""Words that stand for a missing number among numbers; among words they are words."""


def _numbers(column: Any) -> Any:
    """Return cells as the numbers they are, to the last digit; codes such as 01 stay words."""
    cells = column.where(~column.isin(UNKNOWN))
    try:
        numbers = cells.astype(np.float64)
    except ValueError:
        return column
    written = cells.dropna().str
    if cells.isna().all() or written.match(r"[+-]?(0\d|\d{16})").any():
        return column
    whole = cells.notna().all() and written.fullmatch(r"[+-]?\d+").all()
    return numbers.astype(np.int64) if whole else numbers


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
    files = [folder / _bare(one["filename"]) for one in state["_data_files"]]
    if missing := [one for one in files if not one.is_file()]:
        raise InvalidArgumentError(f"it must hold the files that it names, {missing[0]} is missing")
    return files


def _arrow(paths: Sequence[Path]) -> Any:
    """Return the rows of Parquet files, or of Arrow's streams in files `*.arrow`."""
    import pandas

    with needing("reading Arrow or Parquet", "pyarrow", "columnar", "pyarrow"):
        import pyarrow
    if len({*paths}) < len(paths) or not paths:
        raise InvalidArgumentError(f"it must name files, each once, got {len(paths)} names")
    stored = sum(path.stat().st_size for path in paths)
    with tempfile.TemporaryDirectory() as folder:
        limit = growth_limit(stored)
        asked = {"folder": folder, "limit": limit, "files": [str(path.resolve()) for path in paths]}
        try:
            done = subprocess.run(  # noqa: S603 - this interpreter, on a program of the package
                [sys.executable, "-P", str(Path(__file__).with_name("arrow_reader.py"))],
                input=json.dumps(asked), capture_output=True, text=True, check=False,
                timeout=_START_S + stored / _BYTES_PER_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise InvalidArgumentError(f"reading it took {error.timeout:g} s") from error
        if done.returncode == _TOO_LARGE:
            require_growth(limit + 1, stored, paths[0].parent if len(paths) > 1 else paths[0])
        if done.returncode:
            words = f"it ended the process that read it by signal {-done.returncode}"
            raise InvalidArgumentError(words if done.returncode < 0 else done.stderr)
        parts = []
        for number in range(len(paths)):
            with pyarrow.OSFile(str(Path(folder) / str(number))) as file:
                parts.append(pyarrow.ipc.open_stream(file).read_pandas())
    return pandas.concat(parts, ignore_index=True)


_START_S, _BYTES_PER_S = 60.0, 1e6
"""Time that reading may take: seconds for any file, and bytes for one second more."""
_TOO_LARGE: Final = 3
"""Exit status of the program where the data take more memory than they may."""


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
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim != 2:
        raise InvalidArgumentError(
            "`data` in LEAF's json must have a list of numbers as the x of every sample, all of "
            "one length; texts and images need a model of their own"
        )
    return _of_arrays(array, labels, clients)


def _of_arrays(features: Any, labels: Any, clients: Any = None) -> Any:
    import pandas

    named = {LABEL: labels, **({} if clients is None else {CLIENT: clients})}
    for name, cells in named.items():
        if not _is_list(cells) or any(map(_is_list, cells)):
            raise InvalidArgumentError(
                f"`data` must have one {name} for each row, a number or a word, got {shown(cells)}"
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
    """Return a frame whose columns of equally long lists of numbers are columns of numbers."""
    import pandas

    parts = []
    for name in frame:
        column = frame[name]
        first = next((cell for cell in column if cell is not None), None)
        if isinstance(first, Sequence | np.ndarray) and not isinstance(first, str | bytes):
            try:
                rows = [np.asarray(cell, dtype=np.float64).ravel() for cell in column]
            except (TypeError, ValueError) as error:
                raise InvalidArgumentError(
                    f"`data` must have lists of numbers in each row of {name!r}: {error}"
                ) from error
            if len({len(row) for row in rows}) > 1:
                raise InvalidArgumentError(f"`data` must have lists of one length in {name!r}")
            wide = np.stack(rows)
            names = [f"{name}{i}" for i in range(wide.shape[1])]
            parts.append(pandas.DataFrame(wide, columns=names))
        elif isinstance(first, Mapping | bytes):
            raise InvalidArgumentError(
                f"`data` must have numbers, words and lists of numbers as cells, got "
                f"{type(first).__name__} in {name!r}; images and the like need a model of their own"
            )
        elif column.dtype.kind in "biuf":
            whole = column.dtype.kind != "f" and column.notna().all()
            if not whole:  # of nullable types, too
                numbers = column.astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
                column = pandas.Series(numbers, name=name)
            parts.append(column.astype(np.int64) if whole else column)
        else:
            parts.append(column.astype("object").map(lambda x: x if pandas.isna(x) else str(x)))
    return pandas.concat(parts, axis=1)
