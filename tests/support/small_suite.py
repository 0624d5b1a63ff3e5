"""The rule of the suite `small`, as the docstring of `fedhpo_gym.studies.suites` says it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.archive import EMBEDDED
from fedhpo_gym.core.identity import Identity
from fedhpo_gym.tasks import TASKS, Task

ENDINGS = {"table": ".table.json", "surrogate": ".surrogate.json", "pool": ".sample.json"}
"""Of the cards of stored numbers, by kind: what answers by default comes first."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "difficulty.md"


def representative(
    names: Sequence[str], features: NDArray[np.float64], count: int
) -> tuple[str, ...]:
    """Return some names that are far from each other, the most central one first."""
    places = np.stack([_ranked(column) for column in features.T], axis=1)
    distances = np.linalg.norm(places[:, None] - places[None], axis=2)
    chosen = [int(np.argmin(distances.sum(axis=1).round(9)))]
    while len(chosen) < min(count, len(names)):
        chosen.append(int(np.argmax(distances[:, chosen].min(axis=1).round(9))))
    return tuple(names[place] for place in chosen)


def _ranked(column: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks from 0 to 1, means of them where values are equal; 0.5 for what is unknown."""
    known = column[~np.isnan(column)]
    below = (known[None] < column[:, None]).sum(axis=1)
    equal = (known[None] == column[:, None]).sum(axis=1)
    ranks = (below + (equal - 1) / 2) / max(len(known) - 1, 1)
    return np.where(np.isnan(column), 0.5, ranks)


def candidates() -> dict[str, list[float]]:
    """Return the features of every candidate, by id."""
    newest = {task.name: task for task in sorted(TASKS.values(), key=lambda task: task.version)}
    cards = {kind: _card(ending) for kind, ending in ENDINGS.items()}
    contests, found = _contests(), {}
    for task in newest.values():
        names = (task.identity, *task.surrogate_identities)
        stored = [(kind, card[one]) for kind, card in cards.items() for one in names if one in card]
        if not stored:
            continue
        kind, health = stored[0]
        if (f"{task.name}-v{task.version}", f"{task.algorithm}, {kind}") in contests:
            found[task.id] = _features(task, health)
    return found


def _contests() -> set[tuple[str, str]]:
    """Return the problems, with a version, and the variants that docs/difficulty.md says yes to."""
    rows = (line.strip("| ").split(" | ") for line in PAGE.read_text("utf-8").splitlines())
    return {
        (f"{row[0].split('-v')[0]}-v{version}", row[1])
        for row in rows
        if row[-1] == "yes"
        for version in re.findall(r"-v(\d+)", row[0])
    }


def _card(ending: str) -> dict[Identity, Mapping[str, Any]]:
    """Return the health on the package's own cards, by what they belong to."""
    found = {}
    for path in sorted(EMBEDDED.glob(f"*{ending}")):
        content = json.loads(path.read_text(encoding="utf-8"))
        found[Identity.from_card(content)] = content["health"]
    return found


def _features(task: Task, health: Mapping[str, Any]) -> list[float]:
    noise, spread = health["seed_noise"], health["spread"]
    losing = health["losing"]
    values = (
        noise / spread if noise is not None and spread else None,
        health["kendall"]["rounds"]["tau"],
        health["kendall"]["client_sample_rates"]["tau"],
        health["near_optimum"]["full_fidelity"],
        None if losing is None else losing["full_fidelity"],
        len(task.space),
        task.num_clients,
    )
    return [np.nan if value is None else float(value) for value in values]
