"""Training data behind one checksummed cache, and clients of it; names are imported when asked."""

from typing import TYPE_CHECKING

from fedhpo_gym.core import lazy_names

if TYPE_CHECKING:
    from fedhpo_gym.data.catalogue import SOURCES, load_dataset
    from fedhpo_gym.data.records import Dataset, Source, SparseRows, make_dataset
    from fedhpo_gym.data.tables import TableSource

__getattr__ = lazy_names(
    __name__,
    {
        "catalogue": "SOURCES, load_dataset",
        "records": "Dataset, Source, SparseRows, make_dataset",
        "tables": "TableSource",
    },
)

__all__ = [
    "SOURCES",
    "Dataset",
    "Source",
    "SparseRows",
    "TableSource",
    "load_dataset",
    "make_dataset",
]
