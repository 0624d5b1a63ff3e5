"""Cards of others: any entry may be forged, and the digest with it; what reads them says so."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attacks.damage import change
from attacks.verdicts import Tally, judged, run_cases
from fedhpo_gym.cli import main
from fedhpo_gym.cli.show import description
from fedhpo_gym.core.archive import DIGEST_ENTRY, UNDIGESTED_ENTRIES, arrays_path, card_digest
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.envs.trial import truth
from fedhpo_gym.stored import catalogue
from fedhpo_gym.stored.catalogue import EMBEDDED_FOLDER, ENV_VAR
from fedhpo_gym.stored.health import (
    agree,
    faults,
    health_of,
    health_on,
    labels_on,
    open_stored,
    unimportant,
)
from fedhpo_gym.tasks import get_task


@dataclass(frozen=True)
class Told:
    """A card that comes with the package, and what is told of it.

    Attributes:
        name: the row of the table.
        file: the card.
        task: whose environment answers from it.
        backend: by which backend.
        asked: whether the numbers are read, too.
    """

    name: str
    file: str
    task: str
    backend: str
    asked: bool = False


CARDS = (
    Told("table", "LR-CreditG-fedavg.table.json", "LR-CreditG-v0", "tabular"),
    Told("surrogate", "LR-Car-v1-fedavg-standardized.surrogate.json", "LR-Car-v1", "surrogate"),
    Told("made-up table, asked", "", "", "tabular", asked=True),
)


def cards(count: int, seed: int, room: Path) -> list[Tally]:
    """Forge an entry of each card, one per case, and let everything that tells of it speak."""
    return [_forged(number, told, count, seed, room) for number, told in enumerate(CARDS)]


def _forged(number: int, told: Told, count: int, seed: int, room: Path) -> Tally:
    with tempfile.TemporaryDirectory(dir=room) as home:
        path = _written(told, Path(home))
        good = json.loads(path.read_text(encoding="utf-8"))
        attempt = _asked if told.asked else _told(told)

        def case(index: int) -> tuple[str, str]:
            rng = stream(seed, "cards", number, index)
            card = json.loads(json.dumps(good))
            what = _changed(card, rng)
            card[DIGEST_ENTRY] = card_digest(card)
            if isinstance(card.get("health"), dict) and rng.random() < 0.9:
                card["health"]["of"] = card[DIGEST_ENTRY]
            path.write_text(json.dumps(card), encoding="utf-8")
            os.utime(path, ns=(index, index))  # a card that was written anew is another one
            verdict, said = judged(lambda: attempt(path))
            return verdict, f"{said} [{what}]"

        return run_cases(f"cards of others: {told.name}", count, case)


def _written(told: Told, folder: Path) -> Path:
    """Return a copy of a card, with its arrays beside it."""
    if told.asked:
        from stored_files import write_made_up_table

        return write_made_up_table(folder)
    card = EMBEDDED_FOLDER / told.file
    arrays = arrays_path(card, json.loads(card.read_text(encoding="utf-8")))
    (folder / arrays.name).symlink_to(arrays)
    (folder / told.file).write_bytes(card.read_bytes())
    return folder / told.file


def _changed(card: dict[str, object], rng: np.random.Generator) -> str:
    """Change what decides no answer as often as the rest, which has many more places."""
    names = sorted(UNDIGESTED_ENTRIES & card.keys()) if rng.random() < 0.5 else sorted(card)
    name = names[int(rng.integers(len(names)))]
    part = {name: card.pop(name)}
    what = change(part, rng)
    card |= part
    return what


def _told(told: Told) -> Callable[[Path], str]:
    def tell(path: Path) -> str:
        os.environ[ENV_VAR] = str(path.parent)
        catalogue._read.cache_clear()  # each case is about one card
        truth._known.clear()
        words = ["show", told.task, "--backend", told.backend]
        main(words)
        main([*words, "--json"])
        description(get_task(told.task), told.backend, told.task)
        stored = open_stored(path)
        health = health_on(stored, "write it again")
        faults(health, labels_on(stored))
        unimportant(health)
        return "fine"

    return tell


def _asked(path: Path) -> str:
    stored = open_stored(path)
    agree(health_of(stored), stored.card.get("health"))
    return "fine"
