"""`fedhpo-gym health`: computes the health of stored numbers, and writes it onto their cards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fedhpo_gym.cli.arguments import Arg
from fedhpo_gym.cli.console import complain, say
from fedhpo_gym.cli.listing import answering
from fedhpo_gym.cli.options import Ids
from fedhpo_gym.cli.words import survival_words
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError, needing
from fedhpo_gym.stored.health import HEALTH, LABELS, agree, health_of
from fedhpo_gym.stored.health_cards import health_cards, open_card, write_health
from fedhpo_gym.stored.lattice import Stored
from fedhpo_gym.stored.table import Table
from fedhpo_gym.tasks import get_task, task_of


def main(
    ids: Ids = (),
    *,
    write: Annotated[bool, Arg("write it onto the cards")] = False,
    survival: Annotated[
        bool, Arg("train the best of tables anew, with initial weights moved by 1e-8, instead")
    ] = False,
) -> int:
    """Compare, or with `--write` write, card by card; 1 where a card says something else."""
    cards = chosen(ids)
    if survival:
        return _survival(cards, ids, write=write)
    differing = 0
    for card in cards:
        stored = open_card(card)
        if write:
            write_health(card, _labels(stored))
            say(f"{card.name}: written")
            continue
        equal = agree(health_of(stored), stored.card.get(HEALTH))
        say(f"{card.name}: {'as on the card' if equal else 'not as on the card'}")
        differing += not equal
    say(f"{len(cards)} cards{'' if write else f', {differing} differ'}")
    return 1 if differing else 0


def _survival(cards: Sequence[Path], ids: Sequence[str], *, write: bool) -> int:
    """Say, table by table, whether the best configurations survive a perturbation."""
    tables = [card for card in cards if card.name.endswith(".table.json")]
    if not (ids and tables):
        raise InvalidArgumentError(
            "`ID` must name problems with a table for `--survival`, which trains, got "
            f"{', '.join(ids) or 'none'}; `fedhpo-gym list` names them"
        )
    with needing("training the best configurations", "torch", "raw", "torch"):
        from fedhpo_gym.cli.survival import survival_of, write_survival
    for card in tables:
        found = write_survival(card) if write else survival_of(Table(card))
        say(f"{card.name}: {survival_words(found)}")
    return 0


def chosen(ids: Sequence[str]) -> list[Path]:
    """Return the cards whose numbers ids answer from; all where no id is given."""
    if not ids:
        return list(health_cards())
    found = [(card, {task.key for task in answering(open_card(card))}) for card in health_cards()]
    picked = []
    for word in ids:
        cards = [card for card, keys in found if get_task(word).key in keys]
        if not cards:
            raise InvalidArgumentError(
                f"`ID` must be one with stored numbers, got {word!r}; `fedhpo-gym list` names them"
            )
        picked += cards
    return list(dict.fromkeys(picked))


def _labels(stored: Stored) -> dict[str, float] | None:
    """Return what the label frequencies reach if the card lacks it and the data are at hand."""
    if LABELS in stored.card:
        return None
    try:
        with needing("reading training data", "torch", "raw", "torch"):
            from fedhpo_gym.backends.training import task_label_frequencies
        return task_label_frequencies(task_of(stored.identity))
    except FedHPOError as error:
        complain("health", error)
        return None
