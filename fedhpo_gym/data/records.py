"""What a loader returns: the samples of one data set, dense or sparse."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import Axes, validate_call
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError

DRAWN, TRAIN, VAL, TEST = -1, 0, 1, 2
"""Values of `Dataset.fixed_split`: still to be drawn, or the position of a split."""


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows that are mostly zero, in compressed form (CSR); indexing gives dense rows."""

    indptr: NDArray[np.int64]  # (n + 1,) int64, row i has the entries indptr[i]..indptr[i + 1]
    indices: NDArray[np.int32]  # (stored values,) int32 columns, none twice in a row
    values: NDArray[np.float32]  # (stored values,) float32
    num_columns: int  # width of a row

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.indptr) - 1, self.num_columns

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """Type of the dense rows."""
        return self.values.dtype

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Its three arrays."""
        return self.indptr, self.indices, self.values

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the dense rows (len(rows), columns), float32, of an array of row numbers."""
        own = self.take(rows)
        dense = np.zeros(own.shape, np.float32)
        dense[np.repeat(np.arange(len(rows)), np.diff(own.indptr)), own.indices] = own.values
        return dense

    def take(self, rows: NDArray[np.integer[Any]], axis: int = 0) -> "SparseRows":
        """Return the rows of an array of row numbers, as an array's `take` does."""
        counts = self.indptr[rows + 1] - self.indptr[rows]
        indptr = np.concatenate([[0], counts.cumsum()])
        stored = np.repeat(self.indptr[rows] - indptr[:-1], counts) + np.arange(indptr[-1])
        return SparseRows(indptr, self.indices[stored], self.values[stored], self.num_columns)


Features: TypeAlias = NDArray[Any] | SparseRows
"""Samples along the first axis; both kinds give dense rows when indexed with row numbers."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """The samples of one data set, not yet split over clients. Nothing in it can be written to.

    Attributes:
        name: name of the data set.
        features: (n, ...); float64 for tables (nominal columns are label-encoded), uint8 for
            images, integers for tokens, `SparseRows` for bags of words.
        labels: (n,) int64 in 0..num_classes-1.
        num_classes: number of classes.
        fingerprint: sha256 of the content; two data sets with one fingerprint are equal.
        users: (n,) int64, the number of the user each sample belongs to; None when the data has no
            users and is partitioned by a seed.
        fixed_split: (n,) int8, 0 train, 1 validation, 2 test where the publisher says so and -1
            where a seed decides; None when a seed decides everywhere.
    """

    name: str
    features: Features
    labels: NDArray[np.int64]
    num_classes: int
    fingerprint: str
    users: NDArray[np.int64] | None = None
    fixed_split: NDArray[np.int8] | None = None

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Every array of the data set, in the order of its fingerprint."""
        own = self.features
        features = own.arrays if isinstance(own, SparseRows) else (own,)
        optional = (part for part in (self.users, self.fixed_split) if part is not None)
        return (*features, self.labels, *optional)


@validate_call
def make_dataset(
    name: str,
    features: Features,
    labels: Annotated[NDArray[np.int64], Axes(1, 1, empty=True)],
    num_classes: int,
    users: NDArray[np.int64] | None = None,
    fixed_split: NDArray[np.int8] | None = None,
) -> Dataset:
    """Return a data set with its fingerprint; its arrays become read-only."""
    optional = [part for part in (users, fixed_split) if part is not None]
    lengths = [len(features), len(labels), *map(len, optional)]
    if len(set(lengths)) > 1:
        raise InvalidArgumentError(
            "`features`, `labels`, `users` and `fixed_split` must have one entry per sample, "
            f"got {lengths} entries"
        )
    dense = features.arrays if isinstance(features, SparseRows) else (features,)
    digest = seal(*dense, labels, *optional)
    return Dataset(name, features, labels, num_classes, digest, users, fixed_split)


def seal(*arrays: NDArray[Any]) -> str:
    """Make arrays read-only and return the sha256 of their contents, in order."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
        array.flags.writeable = False
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """Where one data set comes from, what it must look like and how it is read.

    A family of sources (tables, images, ...) is a subclass in its own module.

    Attributes:
        name: name used in environment ids.
        num_classes: number of distinct labels.
        licence: terms of the data as its publisher states them.
        citation: whom to cite.
        open_licence: whether these terms let everybody use, change and pass on the data; False
            where there are none. docs/datasets.md says what follows for numbers derived from it.
        num_rows: number of samples, or None where it depends on the user's own preprocessing.
    """

    name: str
    num_classes: int
    licence: str
    citation: str
    open_licence: bool = False
    num_rows: int | None = None

    @property
    @abstractmethod
    def origin(self) -> str:
        """Where the data comes from: an address, a task number, a library, a generator."""

    @property
    def offline(self) -> bool:
        """Whether it loads on any machine: it comes with a library or is generated."""
        return False

    @property
    def library(self) -> tuple[str, str] | None:
        """The package that brings the data, and the extra that installs it; None of files."""
        return None

    @property
    def repair(self) -> str:
        """The command that fetches the data again."""
        return f"fedhpo-gym download {self.name}"

    @property
    def again(self) -> str:
        """What to do when the data is not what it should be, as a clause of an error."""
        return f"delete what is kept of it and run `{self.repair}`"

    @abstractmethod
    def read(self) -> Dataset:
        """Return the data set, downloading it if it has to and can.

        Raises:
            DamagedDataError: a file does not have its checksum or its documented layout.
            MissingDataError: the data is neither in the data folder nor downloadable.
            MissingDependencyError: an extra is not installed.
        """

    def check(self, dataset: Dataset) -> None:
        """Compare a data set with what is documented of it."""
        rows, labels = len(dataset.labels), dataset.labels
        fits = rows > 0 and labels.min() >= 0 and labels.max() < self.num_classes
        if fits and self.num_rows in (None, rows):
            return
        expected = "at least 1" if self.num_rows is None else self.num_rows
        found = f"labels {labels.min()} to {labels.max()}" if rows else "no labels"
        raise DamagedDataError(
            f"data set {self.name} must have {expected} rows and {self.num_classes} classes, "
            f"got {rows} rows and {found}; {self.again}"
        )


@dataclass(frozen=True, kw_only=True)
class PublishedSource(Source):
    """Data that its publisher has at one address."""

    url: str

    @property
    def origin(self) -> str:
        return self.url
