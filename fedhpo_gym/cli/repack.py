"""`fedhpo-gym repack`: writes stored tables in the newest format, where it saves enough bytes."""

from __future__ import annotations

from typing import Annotated

from fedhpo_gym.cli.arguments import Arg
from fedhpo_gym.cli.console import say
from fedhpo_gym.cli.health import chosen
from fedhpo_gym.cli.options import Ids
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.landscape import repack


def main(
    ids: Ids = (),
    *,
    least: Annotated[
        float,
        Arg(
            "of its bytes that a table must save (0.25): it takes longer to read afterwards",
            "SHARE",
        ),
    ] = 0.25,
) -> int:
    """Repack, table by table."""
    if not 0.0 <= least < 1.0:
        raise InvalidArgumentError(f"`--least` must be in [0, 1), got {least!r}")
    for card in (card for card in chosen(ids) if card.name.endswith(".table.json")):
        found = repack(card, least)
        if found is None:
            say(f"{card.name}: in the newest format already")
            continue
        verb = "become" if found.written else "kept; they would become"
        say(f"{card.name}: {found.before:,} bytes {verb} {found.after:,}")
    return 0
