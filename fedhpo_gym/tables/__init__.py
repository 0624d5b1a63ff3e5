"""Stored results: learning curves of the courses of a grid, or of a sample."""

from fedhpo_gym.tables.locate import (
    list_samples,
    list_tables,
    open_sample,
    open_table,
    table_folder,
    writable_table_folder,
)
from fedhpo_gym.tables.sample import Sample
from fedhpo_gym.tables.store import Table

__all__ = [
    "Sample",
    "Table",
    "list_samples",
    "list_tables",
    "open_sample",
    "open_table",
    "table_folder",
    "writable_table_folder",
]
