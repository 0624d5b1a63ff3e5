"""Loading any data set by its name."""

from __future__ import annotations

from functools import lru_cache

from fedhpo_gym.datasets.catalogue import SOURCES
from fedhpo_gym.datasets.records import Dataset
from fedhpo_gym.errors import require_known
from fedhpo_gym.typed import checked_types


@checked_types
@lru_cache(maxsize=16)
def load_dataset(name: str) -> Dataset:
    """Load a data set by name.

    The data folder (environment variable `FEDHPO_GYM_DATA`, else the user's cache) is searched
    first; what is not there is downloaded into it once, where the publisher allows that. Data that
    ships with a library or is generated needs neither.

    Raises:
        UnknownNameError: no such data set.
        DamagedDataError: a file does not have its checksum, or the data its documented shape.
        MissingDataError: the data is neither in the data folder nor downloadable.
        MissingDependencyError: an extra (for example `data`) is not installed.
    """
    require_known("data set", name, SOURCES)
    source = SOURCES[name]
    dataset = source.read()
    source.check(dataset)
    return dataset
