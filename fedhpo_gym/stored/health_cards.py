"""Health on the cards of stored numbers: written there, and read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from fedhpo_gym.core import archive
from fedhpo_gym.core.checks import as_typed, checked_types
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.space import Value
from fedhpo_gym.stored import surrogate, table
from fedhpo_gym.stored.catalogue import find, list_names
from fedhpo_gym.stored.health import HEALTH, LABELS, MEANS, SURVIVAL, health_of
from fedhpo_gym.stored.lattice import StoredNumbers
from fedhpo_gym.stored.table import FORMAT

KINDS: Mapping[str, int] = MappingProxyType(
    {".table.json": FORMAT, f"{surrogate.SUFFIX}.json": surrogate.FORMAT}
)
"""How the names of cards end that have a health, and their format."""
ANY = "*"
"""Stands for every name in a rule."""
_SHARES = {"cells": float, "full_fidelity": float}
_FIGURES: Mapping[str, Any] = MappingProxyType(
    {
        "of": str,
        "lattice": {
            "exact": bool,
            "grid": Mapping[str, Sequence[Value]],
            "configurations": int,
            "draws": int,
            "rounds": Sequence[int],
            "client_sample_rates": Sequence[float],
        },
        "optimum": {
            "configuration": Mapping[str, Value],
            "round": int,
            **dict.fromkeys(("client_sample_rate", *MEANS), float),
        },
        "edges": Mapping[str, Literal["lowest", "highest"]],
        "losing": (_SHARES, None),
        "near_optimum": _SHARES,
        "diverging": (_SHARES, None),
        "seed_noise": float | None,
        "spread": float | None,
        "kendall": {
            "rounds": {"of": Sequence[int], "tau": float | None},
            "client_sample_rates": {"of": Sequence[float], "tau": float | None},
            "seeds": {"pairs": int, "tau": float | None},
        },
        "importance": ({ANY: {"alone": float, "total": float}}, None),
        "missing": Mapping[str, str],
    }
)
"""The figures of a health, and the types of what they hold."""
_SURVIVAL: Mapping[str, Any] = MappingProxyType(
    {
        "of": str,
        **dict.fromkeys(("draws", "cells", "surviving"), int),
        "perturbation": float,
        "optimum": dict.fromkeys(("stored", "trained", "lowest", "highest"), float),
        "moved": float,
        "seeds": float | None,
    }
)


def health_cards() -> list[Path]:
    """Return the cards of all tables and surrogates that can be opened, by kind and name."""
    found = ((find(name, ending)) for ending in KINDS for name in list_names(ending))
    return [card for card in found if card is not None]


def open_card(card: Path) -> StoredNumbers:
    """Open the table or the surrogate of a card."""
    return table.Table(card) if card.name.endswith(".table.json") else surrogate.Surrogate(card)


@checked_types
def write_health(card: Path, labels: Mapping[str, float] | None = None) -> Path:
    """Compute the health of a table or a surrogate, and write it onto its card, whose digest stays.

    Raises:
        DamagedDataError: the card or its arrays are damaged.
        OSError: the card cannot be written.
    """
    number = next((known for ending, known in KINDS.items() if card.name.endswith(ending)), None)
    if number is None:
        raise InvalidArgumentError(f"`card` must end in one of {list(KINDS)}, got {card.name!r}")
    if labels is not None:
        archive.add_to_card(card, number, {LABELS: dict(labels)})
    archive.add_to_card(card, number, {HEALTH: health_of(open_card(card))})
    return card


@checked_types
def health_on(stored: StoredNumbers, command: str) -> Mapping[str, Any]:
    """Return the health that a card states, of these very numbers."""
    found: Mapping[str, Any] | None = stored.card.get(HEALTH)
    if found is None or found.get("of") != stored.digest:
        what = "states no health" if found is None else "states the health of other numbers"
        raise DamagedDataError(f"the card of {stored.card['name']} {what}; run `{command}`")
    try:
        return _figures(HEALTH, found, _FIGURES)  # type: ignore[no-any-return]
    except InvalidArgumentError as error:
        raise DamagedDataError(
            f"the card of {stored.card['name']}: {error}; run `{command}`"
        ) from error


def survival_on(stored: StoredNumbers) -> Mapping[str, Any] | None:
    """Return what a card says of the best cells' survival; None where it says none of these."""
    found = stored.card.get(SURVIVAL)
    if found is None or found.get("of") != stored.digest:
        return None
    try:
        return _figures(SURVIVAL, found, _SURVIVAL)  # type: ignore[no-any-return]
    except InvalidArgumentError as error:
        raise DamagedDataError(
            f"the card of {stored.card['name']}: {error}; run `fedhpo-gym health ID --survival "
            "--write`"
        ) from error


def _figures(name: str, value: Any, rule: Any) -> Any:
    """Return what a rule knows of a value, if it has the types of the rule."""
    if isinstance(rule, tuple):
        return None if value is None else _figures(name, value, rule[0])
    if not isinstance(rule, Mapping):
        return as_typed(name, value, rule)
    held = as_typed(name, value, Mapping[str, Any])
    rules = dict.fromkeys(held, rule[ANY]) if ANY in rule else rule
    if missing := sorted(rules.keys() - held.keys()):
        raise InvalidArgumentError(f"`{name}` must hold {', '.join(rules)}; it lacks {missing}")
    return {key: _figures(f"{name}.{key}", held[key], one) for key, one in rules.items()}
