"""Loading a table: from the data folder, from OpenML into a checksummed cache, or scikit-learn."""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import DamagedDataError, unknown_name
from fedhpo_gym.fl.datasets import cache
from fedhpo_gym.fl.datasets.catalogue import TABLE_SOURCES, TableSource
from fedhpo_gym.fl.datasets.parsing import encode_columns, read_columns


@dataclass(frozen=True, eq=False)
class DataTable:
    """One classification table.

    Attributes:
        name: name of the table.
        features: (n, d) float64; nominal columns are label-encoded, see `encode_columns`.
        labels: (n,) int64 in 0..num_classes-1.
        num_classes: number of classes.
        fingerprint: sha256 of features and labels; two tables with one fingerprint are equal.
    """

    name: str
    features: NDArray[np.float64]
    labels: NDArray[np.int64]
    num_classes: int
    fingerprint: str


@lru_cache(maxsize=16)
def load_table(name: str) -> DataTable:
    """Load a table by name.

    The data folder (environment variable `FEDHPO_GYM_DATA`, else the user's cache) is searched for
    the plain file first; otherwise the table is downloaded from OpenML once and cached. Tables
    that ship with scikit-learn need neither.

    Raises:
        UnknownNameError: no such table.
        DamagedDataError: a file does not have its checksum or its documented shape.
        MissingDataError: the table is neither in the data folder nor downloadable.
        MissingDependencyError: the extra `data` is not installed.
    """
    if name not in TABLE_SOURCES:
        raise unknown_name("table", name, TABLE_SOURCES)
    source = TABLE_SOURCES[name]
    features, labels = _read(source)
    _check_shape(source, features, labels)
    digest = hashlib.sha256(features.tobytes() + labels.tobytes()).hexdigest()
    features.flags.writeable = labels.flags.writeable = False
    return DataTable(name, features, labels, source.num_classes, digest)


def _read(source: TableSource) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    if source.sklearn is not None:
        module: Any = cache.require("sklearn.datasets", "data")
        bunch = getattr(module, source.sklearn)()
        return np.asarray(bunch.data, dtype=np.float64), np.asarray(bunch.target, dtype=np.int64)
    path = local_file(source)
    if path is not None:
        return encode_columns(read_columns(path))
    return _read_openml(source)


def local_file(source: TableSource) -> Path | None:
    """Return the verified plain file of a table in the data folder, or None if there is none.

    Raises:
        DamagedDataError: the file exists but its checksum is wrong.
    """
    if source.file is None:
        return None
    root = cache.data_folder()
    for path in (root / source.file, root / "tabular" / source.file):
        if path.exists():
            found = hashlib.sha256(path.read_bytes()).hexdigest()
            if found != source.sha256:
                raise DamagedDataError(
                    f"{path} has sha256 {found}, expected {source.sha256}; delete it and run "
                    f"`fedhpo-gym download {source.name}`"
                )
            return path
    return None


def _read_openml(source: TableSource) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    path = cache.data_folder() / "openml" / f"task-{source.openml_task}.npz"
    if not path.exists():
        openml = importlib.import_module("fedhpo_gym.fl.datasets.openml_client")
        cache.write_arrays(path, openml.download(source))
    arrays = cache.read_arrays(path, f"fedhpo-gym download {source.name}")
    return arrays["features"], arrays["labels"]


def _check_shape(
    source: TableSource, features: NDArray[np.float64], labels: NDArray[np.int64]
) -> None:
    classes = np.unique(labels)
    expected = np.arange(source.num_classes)
    if len(features) == len(labels) == source.num_rows and np.array_equal(classes, expected):
        return
    raise DamagedDataError(
        f"table {source.name} must have {source.num_rows} rows and {source.num_classes} classes, "
        f"got {len(features)} rows and {len(classes)} classes; "
        f"run `fedhpo-gym download {source.name}` to fetch it again"
    )
