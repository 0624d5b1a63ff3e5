"""Training data: real loaders behind one checksummed cache."""

from fedhpo_gym.fl.datasets.base import Source
from fedhpo_gym.fl.datasets.catalogue import SOURCES
from fedhpo_gym.fl.datasets.loading import load_dataset
from fedhpo_gym.fl.datasets.records import Dataset, SparseRows, make_dataset
from fedhpo_gym.fl.datasets.tables import TableSource

__all__ = [
    "SOURCES",
    "Dataset",
    "Source",
    "SparseRows",
    "TableSource",
    "load_dataset",
    "make_dataset",
]
