"""The arrays of a stored pair, and cards changed on purpose."""

from __future__ import annotations

import json
from pathlib import Path

from fedhpo_gym import archive
from fedhpo_gym.archive import DIGEST, card_digest, write_archive
from fedhpo_gym.tables import Table
from fedhpo_gym.tables.packed import ENTRY
from fedhpo_gym.tables.stored import PLAIN


def arrays_of(card: Path) -> Path:
    """Return the file of arrays that a card names."""
    return archive.arrays_of(card, json.loads(card.read_text(encoding="utf-8")))


def written_plainly(card: Path, folder: Path) -> Path:
    """Write a table in format 1, as tables of version 0 are stored, and return its card."""
    table = Table(card)
    arrays = {name: table.codes(name) for name in table.names}
    said = {key: value for key, value in table.card.items() if key != ENTRY}
    return write_archive(folder, card.name.removesuffix(".json"), {**said, "format": PLAIN}, arrays)


def stamped(content: bytes) -> bytes:
    """Return the text of a changed card with the digest that fits, if it is the text of a card.

    A change by somebody who means it: what a card says has to make sense all the same.
    """
    try:
        card = json.loads(content)
    except ValueError:
        return content
    if not isinstance(card, dict):
        return content
    return json.dumps({**card, DIGEST: card_digest(card)}).encode()
