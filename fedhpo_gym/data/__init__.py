"""Training data in one checksummed cache, and its partitions; names are imported at first use."""

from typing import TYPE_CHECKING

from fedhpo_gym.core import lazy_names

if TYPE_CHECKING:
    from fedhpo_gym.data.catalogue import (
        REGISTERED,
        SOURCES,
        get_source,
        load_dataset,
        register_source,
    )
    from fedhpo_gym.data.records import Dataset, Source, SparseRows, make_dataset
    from fedhpo_gym.data.tables import TableSource

__getattr__ = lazy_names(
    __name__,
    {
        "catalogue": "REGISTERED, SOURCES, get_source, load_dataset, register_source",
        "records": "Dataset, Source, SparseRows, make_dataset",
        "tables": "TableSource",
    },
)

__all__ = [
    "REGISTERED",
    "SOURCES",
    "Dataset",
    "Source",
    "SparseRows",
    "TableSource",
    "get_source",
    "load_dataset",
    "make_dataset",
    "register_source",
]
