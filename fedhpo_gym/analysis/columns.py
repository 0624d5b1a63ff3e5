"""Rows of plain data as columns, and back: what a columnar file of a record holds.

A column is a leaf of a step: `objectives.val_loss`, `configuration.learning_rate`. Its entries have
one type, so that any reader of tables knows it; where they have several, they are JSON texts. What
a step does not have is missing there. Reading gives every value back, with its type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Path = tuple[str, ...]

KINDS: Final = ("bool", "int64", "double", "string", "list<double>", "json")
"""Types of entries; the first five are called as in Arrow."""
_LARGEST: Final = 2**63


@dataclass(frozen=True)
class Column:
    """One leaf of all rows.

    Attributes:
        path: names that lead to it.
        kind: one of `KINDS`.
        values: an entry per row, None where a row does not have it.
    """

    path: Path
    kind: str
    values: Sequence[Any]

    @property
    def name(self) -> str:
        """What readers of tables call it."""
        return ".".join(self.path)


def to_columns(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the leaves of some rows as columns, in the order in which they first appear."""
    found: dict[Path, list[Any]] = {}
    for place, row in enumerate(rows):
        for path, value in _leaves(row):
            column = found.get(path)
            if column is None:
                column = found[path] = [None] * len(rows)
            column[place] = value
    return [_typed(path, values) for path, values in found.items()]


def from_columns(columns: Sequence[Column], length: int) -> list[dict[str, Any]]:
    """Return the rows that `to_columns` was given."""
    rows: list[dict[str, Any]] = [{} for _ in range(length)]
    for column in columns:
        *parents, last = column.path
        is_json = column.kind == "json"
        for row, value in zip(rows, column.values, strict=True):
            if value is None:
                continue
            inner = row
            for name in parents:
                inner = inner.setdefault(name, {})
            inner[last] = json.loads(value) if is_json else value
    return rows


def _leaves(value: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from _leaves(item, (*path, name))
        else:
            yield (*path, name), item


def _typed(path: Path, values: Sequence[Any]) -> Column:
    kinds = {_kind(value) for value in values if value is not None}
    if len(kinds) == 1 and (kind := kinds.pop()) != "json":
        return Column(path, kind, values)
    texts = [None if value is None else json.dumps(value) for value in values]
    return Column(path, "json", texts)


def _kind(value: Any) -> str:
    if isinstance(value, list) and all(type(item) is float for item in value):
        return "list<double>"
    if type(value) is int and not -_LARGEST <= value < _LARGEST:
        return "json"
    return {bool: "bool", int: "int64", float: "double", str: "string"}.get(type(value), "json")
