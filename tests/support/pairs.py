"""The arrays of a stored pair."""

from __future__ import annotations

import json
from pathlib import Path


def arrays_of(card: Path) -> Path:
    """Return the file of arrays that a card names."""
    return card.with_name(json.loads(card.read_text(encoding="utf-8"))["arrays"])
