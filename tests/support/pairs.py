"""The arrays of a stored pair, and cards changed on purpose."""

from __future__ import annotations

import json
from pathlib import Path

from fedhpo_gym.core import archive
from fedhpo_gym.core.archive import DIGEST, card_digest


def arrays_of(card: Path) -> Path:
    """Return the file of arrays that a card names."""
    return archive.arrays_of(card, json.loads(card.read_text(encoding="utf-8")))


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
