"""Training data: real loaders behind one checksummed cache.

What is named here is imported when it is asked for: the catalogue of tasks reads one table of this
package, and must not import every loader for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedhpo_gym.datasets.base import Source
    from fedhpo_gym.datasets.catalogue import SOURCES
    from fedhpo_gym.datasets.loading import load_dataset
    from fedhpo_gym.datasets.records import Dataset, SparseRows, make_dataset
    from fedhpo_gym.datasets.tables import TableSource

_HOMES = {
    "Source": "base",
    "SOURCES": "catalogue",
    "load_dataset": "loading",
    "Dataset": "records",
    "SparseRows": "records",
    "make_dataset": "records",
    "TableSource": "tables",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


__all__ = [
    "SOURCES",
    "Dataset",
    "Source",
    "SparseRows",
    "TableSource",
    "load_dataset",
    "make_dataset",
]
