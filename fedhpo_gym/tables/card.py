"""Reading the card of anything the package stores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedhpo_gym.errors import DamagedDataError


@contextmanager
def reading_card(card: Path, kind: str, number: int, repair: str) -> Iterator[dict[str, Any]]:
    """Give the content of a card; what goes wrong while it is taken apart is damage of the card.

    Args:
        card: the JSON file.
        kind: what the card describes, for messages.
        number: the format that can be read.
        repair: what to do after deleting the card, for messages.

    Raises:
        DamagedDataError: the card is no JSON, of another format, or the body of the `with`
            statement misses an entry or refuses its value.
    """
    try:
        content: dict[str, Any] = json.loads(card.read_text(encoding="utf-8"))
        _require_format(content["format"], number)
        yield content
    except (LookupError, ValueError, TypeError) as error:
        raise DamagedDataError(
            f"{card} is not a {kind} card of format {number} ({error}); delete it and {repair}"
        ) from error


def _require_format(found: object, number: int) -> None:
    if found != number:
        raise ValueError(f"format {found!r}")


def arrays_beside(card: Path) -> Path:
    """Return the path of the arrays that a card describes."""
    return card.with_name(card.name.removesuffix(".json") + ".npz")
