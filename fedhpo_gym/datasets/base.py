"""What the catalogue knows of a data set, whatever kind it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from fedhpo_gym.datasets.records import Dataset
from fedhpo_gym.errors import DamagedDataError


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
            where there are none. docs/licences.md says what follows for numbers derived from it.
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
        """Compare a data set with what is documented of it.

        Raises:
            DamagedDataError: it has another number of samples, or labels out of range.
        """
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
