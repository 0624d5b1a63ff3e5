"""Training data: real loaders behind one checksummed cache, and the federations made of them."""

from fedhpo_gym.fl.datasets.catalogue import TABLE_SOURCES, TableSource
from fedhpo_gym.fl.datasets.loading import DataTable, load_table

__all__ = ["TABLE_SOURCES", "DataTable", "TableSource", "load_table"]
