"""Training data: real loaders behind one checksummed cache."""

from fedhpo_gym.datasets.base import Source
from fedhpo_gym.datasets.catalogue import SOURCES
from fedhpo_gym.datasets.loading import load_dataset
from fedhpo_gym.datasets.records import Dataset, SparseRows, make_dataset
from fedhpo_gym.datasets.tables import TableSource

__all__ = [
    "SOURCES",
    "Dataset",
    "Source",
    "SparseRows",
    "TableSource",
    "load_dataset",
    "make_dataset",
]
