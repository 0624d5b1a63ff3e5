"""Tables of an older format, written in the newest one: the same numbers in fewer bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedhpo_gym.archive import DIGEST
from fedhpo_gym.errors import DamagedDataError
from fedhpo_gym.landscape.health import HEALTH, SURVIVAL
from fedhpo_gym.tables.store import Table, write_table
from fedhpo_gym.tables.stored import FORMER, PLAIN
from fedhpo_gym.typed import checked_types

LEAST = 0.25
"""Packed curves take longer to read: what saves less than this share of its bytes is kept."""
_WRITTEN = frozenset({"format", "arrays", "sha256", "bytes", DIGEST, FORMER, HEALTH})
"""Entries that are not the same on the new card."""


@dataclass(frozen=True)
class Repacked:
    """What became of a table.

    Attributes:
        before: bytes of its arrays.
        after: those that they take in the newest format.
        written: whether the table has it now.
    """

    before: int
    after: int
    written: bool


@checked_types
def repack(card: Path, least: float = LEAST) -> Repacked | None:
    """Write a table of format 1 in format 2, if that makes its file so much smaller.

    Every array is read back from the new file, and compared bit for bit, before the pair is
    replaced. The new card names what the fingerprint was, so that records of runs still replay.

    Args:
        card: path of the card.
        least: the share of its bytes that must be saved.

    Returns:
        What became of it; None where it has format 2 already.

    Raises:
        DamagedDataError: the table is damaged, or the new file would not give its arrays back.
        OSError: the pair cannot be written; the old one is as it was.
    """
    table = Table(card)
    if table.card["format"] != PLAIN:
        return None
    arrays = arrays_of(table)
    said = {name: value for name, value in table.card.items() if name not in _WRITTEN}
    said[FORMER] = list(dict.fromkeys([table.digest, *table.former]))
    with tempfile.TemporaryDirectory() as folder:
        trial = Table(write_table(Path(folder), said, arrays))
        require_equal(card, arrays, arrays_of(trial))
    before, after = table.card["bytes"], trial.card["bytes"]
    written = bool(after <= (1.0 - least) * before)
    if written:
        stated = {
            entry: {**table.card[entry], "of": trial.digest}
            for entry in (HEALTH, SURVIVAL)
            if entry in table.card
        }
        write_table(card.parent, {**said, **stated}, arrays)
    return Repacked(before, after, written)


def arrays_of(table: Table) -> dict[str, NDArray[Any]]:
    """Return all arrays of a table, unpacked."""
    return {name: table.codes(name) for name in table.names}


def require_equal(
    card: Path, expected: Mapping[str, NDArray[Any]], found: Mapping[str, NDArray[Any]]
) -> None:
    """Check that two tables hold the same bits.

    Raises:
        DamagedDataError: an array differs, in a number, its type or its shape.
    """
    for name in sorted(expected.keys() | found.keys()):
        one, other = expected.get(name), found.get(name)
        if one is None or other is None or _kind(one) != _kind(other) or (one != other).any():
            raise DamagedDataError(
                f"{card} cannot be packed: array {name!r} would not come back as it is; keep it"
            )


def _kind(array: NDArray[Any]) -> tuple[Any, ...]:
    return array.dtype, array.shape
