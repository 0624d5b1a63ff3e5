"""Stored results: learning curves of every course of a grid."""

from fedhpo_gym.tables.locate import list_tables, open_table, table_folder
from fedhpo_gym.tables.store import Table

__all__ = ["Table", "list_tables", "open_table", "table_folder"]
