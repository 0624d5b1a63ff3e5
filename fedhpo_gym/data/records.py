"""Records of data sets: their samples, dense or sparse, and the base class of their sources.

Each family of data (tables, images, graphs, ...) has a module with a subclass of `Source`, whose
`read` returns a `Dataset`. `load_dataset` and the partitions use nothing else. All arrays of a data
set are read-only, and its fingerprint is the sha256 of their contents.
"""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import Axes, validate_call
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError

UNASSIGNED, TRAIN, VAL, TEST = -1, 0, 1, 2
"""Values of `Dataset.fixed_split`: assigned by a seed, or the index of a split."""


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A sparse matrix in compressed row form (CSR); indexing returns dense rows."""

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
        """Return the dense rows of an array of row indices: (len(rows), columns), float32."""
        selected = self.take(rows)
        dense = np.zeros(selected.shape, np.float32)
        dense[np.repeat(np.arange(len(rows)), np.diff(selected.indptr)), selected.indices] = (
            selected.values
        )
        return dense

    def take(self, rows: NDArray[np.integer[Any]], axis: int = 0) -> "SparseRows":
        """Return the rows of an array of row indices, as `take` of an array."""
        counts = self.indptr[rows + 1] - self.indptr[rows]
        indptr = np.concatenate([[0], counts.cumsum()])
        positions = np.repeat(self.indptr[rows] - indptr[:-1], counts) + np.arange(indptr[-1])
        return SparseRows(indptr, self.indices[positions], self.values[positions], self.num_columns)


Features: TypeAlias = NDArray[Any] | SparseRows
"""Samples along the first axis; indexing with row indices returns dense rows of both kinds."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """The samples of one data set, before it is partitioned; all arrays are read-only.

    Attributes:
        name: name of the data set.
        features: (n, ...); float64 for tables (nominal columns are label-encoded), uint8 for
            images, integers for tokens, `SparseRows` for bags of words.
        labels: (n,) int64 in 0..num_classes-1.
        num_classes: number of classes.
        fingerprint: sha256 of the content; two data sets with one fingerprint are equal.
        users: (n,) int64, index of the user of each sample; None if the data has no users and is
            partitioned by a seed.
        fixed_split: (n,) int8, the published split (0 train, 1 validation, 2 test), or -1 for
            samples that a seed assigns; None if a seed assigns all samples.
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
        samples = self.features
        feature_arrays = samples.arrays if isinstance(samples, SparseRows) else (samples,)
        optional = (array for array in (self.users, self.fixed_split) if array is not None)
        return (*feature_arrays, self.labels, *optional)


@validate_call
def make_dataset(
    name: str,
    features: Features,
    labels: Annotated[NDArray[np.int64], Axes(1, 1, empty=True)],
    num_classes: int,
    users: NDArray[np.int64] | None = None,
    fixed_split: NDArray[np.int8] | None = None,
) -> Dataset:
    """Return a data set with its fingerprint, and make its arrays read-only."""
    optional = [array for array in (users, fixed_split) if array is not None]
    lengths = [len(features), len(labels), *map(len, optional)]
    if len(set(lengths)) > 1:
        raise InvalidArgumentError(
            "`features`, `labels`, `users` and `fixed_split` must have one entry per sample, "
            f"got {lengths} entries"
        )
    feature_arrays = features.arrays if isinstance(features, SparseRows) else (features,)
    digest = seal(*feature_arrays, labels, *optional)
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
    """The origin of one data set, its documented properties, and how to read it.

    A family of sources (tables, images, ...) is a subclass in its own module.

    Attributes:
        name: name used in environment ids.
        num_classes: number of distinct labels.
        licence: terms of the data as stated by its publisher.
        citation: publication to cite.
        open_licence: whether these terms allow everybody to use, change and share the data; False
            if there are no terms. docs/datasets.md describes the consequences for derived results.
        num_rows: number of samples, or None if it depends on the preprocessing of the user.
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
        """The origin of the data: an address, a task id, a library, or a generator."""

    @property
    def offline(self) -> bool:
        """Whether it loads without a download: it is part of a library, or generated."""
        return False

    @property
    def library(self) -> tuple[str, str] | None:
        """The package that contains the data, and the extra that installs it; None for files."""
        return None

    @property
    def repair(self) -> str:
        """The command that fetches the data again."""
        return f"fedhpo-gym download {self.name}"

    @property
    def again(self) -> str:
        """Advice for damaged data, as a clause of an error message."""
        return f"delete what is kept of it and run `{self.repair}`"

    @abstractmethod
    def read(self) -> Dataset:
        """Return the data set, and download it first if necessary and possible.

        Raises:
            DamagedDataError: a file does not have its checksum or its documented layout.
            MissingDataError: the data is neither in the data folder nor downloadable.
            MissingDependencyError: an extra is not installed.
        """

    def check(self, dataset: Dataset) -> None:
        """Check that a data set has its documented properties."""
        rows, labels = len(dataset.labels), dataset.labels
        fits = rows > 0 and labels.min() >= 0 and labels.max() < self.num_classes
        if fits and self.num_rows in (None, rows):
            return
        expected = "at least 1" if self.num_rows is None else self.num_rows
        label_range = f"labels {labels.min()} to {labels.max()}" if rows else "no labels"
        raise DamagedDataError(
            f"data set {self.name} must have {expected} rows and {self.num_classes} classes, "
            f"got {rows} rows and {label_range}; {self.again}"
        )


@dataclass(frozen=True, kw_only=True)
class PublishedSource(Source):
    """Data that its publisher provides at one address."""

    url: str

    @property
    def origin(self) -> str:
        return self.url
