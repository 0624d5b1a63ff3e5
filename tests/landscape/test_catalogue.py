"""The health of everything that the package stores: stated, true, and good where it must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedhpo_gym.cli.problems import page
from fedhpo_gym.stored.catalogue import EMBEDDED, ENV_VAR
from fedhpo_gym.stored.health import KINDS, LABELS, agree, faults, health_of, health_on, open_card
from fedhpo_gym.stored.lattice import StoredNumbers
from fedhpo_gym.tasks import task_of

CARDS = sorted(card for ending in KINDS for card in EMBEDDED.glob(f"*{ending}"))
PAGE = Path(__file__).resolve().parents[2] / "docs" / "problems.md"
_EDGES = "the optimum lies at two or more ends that are natural: of batches, epochs or decay"
UNHEALTHY: dict[str, str] = {
    f"LR-{name}-v1-fedavg-standardized.table.json": _EDGES
    for name in ("Australian", "BloodTransfusion", "BreastCancer", "Car", "Digits", "KC1")
}
"""Tables of version 1 or later that cannot be made healthy, by card, and why."""
COMMAND = "fedhpo-gym health --write"


def version_one() -> list[Path]:
    """Return the cards of stored tables of version 1 or later."""
    tables = [card for card in CARDS if card.name.endswith(".table.json")]
    return [card for card in tables if open_card(card).identity.version]


def faults_of(stored: StoredNumbers) -> list[str]:
    return faults(health_on(stored, COMMAND), stored.card[LABELS])


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name.removesuffix(".json"))
def test_every_card_states_the_health_of_its_numbers(card: Path) -> None:
    stored = open_card(card)
    found = health_on(stored, COMMAND)
    assert stored.card[LABELS]["val_loss"] > 0
    optimum = found["optimum"]["configuration"]
    legal = task_of(stored.identity).space  # what the environment can be asked for
    assert legal.validate(optimum) == optimum
    grid = found["lattice"]["grid"]
    assert all(legal[name].contains(value) for name in grid for value in grid[name])
    assert found["lattice"]["exact"] == card.name.endswith(".table.json")


def test_what_a_card_of_a_surrogate_states_is_true() -> None:
    stored = open_card(EMBEDDED / "GNN-CiteSeer-v1-fedprox.surrogate.json")
    assert agree(health_of(stored), dict(health_on(stored, COMMAND)))


def test_tables_of_version_one_are_healthy() -> None:
    found = {card.name: words for card in version_one() if (words := faults_of(open_card(card)))}
    assert found.keys() == UNHEALTHY.keys(), found


def test_a_degenerate_table_would_be_noticed() -> None:
    words = ["optimum loses to the label frequencies", "optimum at more than one edge"]
    assert faults_of(open_card(EMBEDDED / "LR-CreditG-fedavg.table.json")) == words


def test_a_wrong_figure_would_be_noticed() -> None:
    stored = open_card(EMBEDDED / "LR-CreditG-fedavg.table.json")
    found = dict(health_on(stored, COMMAND))
    changes: list[dict[str, Any]] = [{"seed_noise": found["seed_noise"] * 1.01}, {"edges": {}}]
    for change in (*changes, {"new": None}):
        assert not agree({**found, **change}, found)


def test_the_page_says_what_the_cards_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENV_VAR, str(tmp_path))
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run `fedhpo-gym show all > docs/problems.md`"
    )
