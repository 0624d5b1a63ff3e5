"""Classification tables: from the data folder, from OpenML into the cache, or from scikit-learn.

`tables.csv` beside this file describes each table in a row, and the catalogue lists them. Nominal
columns are label-encoded and nothing is scaled, as in the arrays of the OpenML client with which
the original tables of results were computed.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import DamagedDataError, MissingDataError
from fedhpo_gym.core.files import path_exists
from fedhpo_gym.data import cache
from fedhpo_gym.data.cache import repair_advice, reporting_damage
from fedhpo_gym.data.records import Dataset, Source, make_dataset


@dataclass(frozen=True, kw_only=True)
class TableSource(Source):
    """A table of numbers and categories with one label per row.

    The plain file in the data folder is preferred; otherwise the table is downloaded from OpenML
    once and cached. Tables of scikit-learn need neither.
    """

    openml_task: int | None = None  # OpenML task id, or None for tables of scikit-learn
    # name of the plain file in the data folder, which is preferred.
    file: str | None = None
    sha256: str | None = None  # checksum of `file`
    sklearn: str | None = None  # name of the scikit-learn loader, or None

    @property
    def origin(self) -> str:
        return self.sklearn or f"OpenML task {self.openml_task}"

    @property
    def offline(self) -> bool:
        return self.sklearn is not None

    @property
    def library(self) -> tuple[str, str] | None:
        if self.offline:
            return "sklearn", "data"
        return None if self.here else ("openml", "data")

    @property
    def here(self) -> bool:
        """Whether it loads without a download: from scikit-learn, the data folder or the cache."""
        return self.offline or self._plain is not None or path_exists(self._download)

    @property
    def _plain(self) -> Path | None:
        return cache.find_data(self.file, f"tabular/{self.file}") if self.file else None

    @property
    def _download(self) -> Path:
        return cache.data_folder() / "openml" / f"task-{self.openml_task}.npz"

    def read(self) -> Dataset:
        """Return the table: (n, d) float64 features."""
        features, labels = self._arrays()
        return make_dataset(self.name, features, labels, self.num_classes)

    def check(self, dataset: Dataset) -> None:
        """Check the documented properties; each class must occur, and no value may be missing."""
        super().check(dataset)
        if not np.isfinite(np.asarray(dataset.features)).all():
            raise DamagedDataError(
                f"data set {self.name} must hold finite numbers, got nan or infinity; {self.again}"
            )
        num_classes = len(np.unique(dataset.labels))
        if num_classes != self.num_classes:
            raise DamagedDataError(
                f"data set {self.name} must have samples of {self.num_classes} classes, got "
                f"{num_classes}; {self.again}"
            )

    def _arrays(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        if self.sklearn is not None:
            module: Any = cache.import_optional("sklearn.datasets", "data")
            bunch = getattr(module, self.sklearn)()
            features = np.asarray(bunch.data, dtype=np.float64)
            return features, np.asarray(bunch.target, dtype=np.int64)
        path = self._plain
        if path is not None and self.sha256 is not None:
            cache.verify(path, self.sha256, self.repair)
            with reporting_damage(path, repair_advice(self.repair)):
                return encode_columns(read_columns(path))
        return self._read_openml()

    def _read_openml(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        path = self._download
        if not path_exists(path) and self.openml_task is not None:
            advice = (
                f"For data set {self.name}, check the network and run `{self.repair}`, or put the "
                f"file {self.file} into the folder named by {cache.ENV_VAR}"
            )
            arrays = download_task(self.openml_task, advice)
            dataset = make_dataset(
                self.name, arrays["features"], arrays["labels"], self.num_classes
            )
            self.check(dataset)  # before it is stored
            cache.write_arrays(path, arrays)
        arrays = cache.read_arrays(path, self.repair)
        with reporting_damage(path, repair_advice(self.repair)):
            kinds = {"features": ("float64", 2), "labels": ("int64", 1)}
            features, labels = cache.check_columns(arrays, kinds).values()
            return features, labels


def _read_table_list(path: Path) -> tuple[TableSource, ...]:
    """Return the tables that a CSV file describes, one per row; empty cells mean defaults."""
    counts = dict.fromkeys(("num_rows", "num_classes", "openml_task"), int)
    converters: dict[str, Any] = {**counts, "open_licence": bool}
    with path.open(encoding="utf-8", newline="") as handle:
        return tuple(
            TableSource(
                **{name: converters.get(name, str)(cell) for name, cell in row.items() if cell}
            )
            for row in csv.DictReader(handle)
        )


TABLES = _read_table_list(Path(__file__).with_suffix(".csv"))


@dataclass(frozen=True)
class Nominal:
    """A column of categories."""

    cells: list[str]  # the value of each row
    order: tuple[str, ...]  # the categories in the order of the data set


Column = NDArray[np.float64] | Nominal


def read_columns(path: Path) -> list[Column]:
    """Return the columns of an ARFF file, or a CSV file with a header; the last is the target."""
    if path.suffix == ".arff":
        arff: Any = cache.import_optional("arff", "data")
        with path.open(encoding="utf-8") as handle:
            content = arff.load(handle)
        kinds = [kind for _, kind in content["attributes"]]
        return [
            Nominal([str(cell) for cell in cells], tuple(kind))
            if isinstance(kind, list)
            else np.asarray(cells, dtype=np.float64)
            for cells, kind in zip(zip(*content["data"], strict=True), kinds, strict=True)
        ]
    with path.open(encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.reader(handle, skipinitialspace=True) if row][1:]
    return [np.array(cells, dtype=np.float64) for cells in zip(*rows, strict=True)]


def encode_columns(columns: list[Column]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Label-encode nominal columns, without any scaling: (n, d) features and (n,) labels.

    A nominal feature becomes the index of its category in the declared order; classes are numbered
    in the sorted order of their names.
    """
    features = np.stack([_encode_column(column) for column in columns[:-1]], axis=1)
    target = columns[-1]
    names = np.asarray(target.cells) if isinstance(target, Nominal) else target
    return np.ascontiguousarray(features), np.unique(names, return_inverse=True)[1].astype(np.int64)


def _encode_column(column: Column) -> NDArray[np.float64]:
    if isinstance(column, Nominal):
        position = {name: float(code) for code, name in enumerate(column.order)}
        return np.array([position[cell] for cell in column.cells])
    return column


def download_task(task_id: int, advice: str) -> dict[str, NDArray[Any]]:
    """Download the table of an OpenML task (the client verifies the server's checksum)."""
    openml: Any = cache.import_optional("openml", "data")
    openml.config.set_root_cache_directory(str(cache.data_folder() / "openml-client"))
    try:
        task = openml.tasks.get_task(task_id, download_splits=False)
        frame, target, _, _ = task.get_dataset().get_data(target=task.target_name)
    except Exception as error:  # noqa: BLE001 - the message names it
        raise MissingDataError(
            f"OpenML could not be reached, or did not send its task {task_id} "
            f"({type(error).__name__}). {advice}"
        ) from None  # the traceback of the client would hide the message
    columns: list[Column] = [_to_column(frame[name]) for name in frame.columns]
    features, labels = encode_columns([*columns, _to_column(target)])
    return {"features": features, "labels": labels}


def _to_column(series: Any) -> Column:
    if hasattr(series, "cat"):
        order = tuple(str(category) for category in series.cat.categories)
        return Nominal([str(value) for value in series], order)
    return np.asarray(series, dtype=np.float64)
