"""`fedhpo-gym list`: the environments, and what can answer them here."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from fedhpo_gym.analysis.environments import known_ids
from fedhpo_gym.cli.console import say, say_table
from fedhpo_gym.tables import list_tables
from fedhpo_gym.tables.locate import find
from fedhpo_gym.tasks import TASKS, Task

HEADS = ("id", "data set", "clients", "configurations", "simulated budget", "backends")


def main(_options: argparse.Namespace) -> int:
    """Print one line per environment."""
    registered, tables = set(known_ids()), set(list_tables())
    rows = [_row(task, tables) for task in TASKS.values() if task.id in registered]
    say_table(HEADS, rows)
    if any(f"MO-{task.id}" in registered for task in TASKS.values()):
        say("\nEvery id is also there as MO-..., with one reward per objective.")
    return 0


def _row(task: Task, tables: set[str]) -> tuple[str, ...]:
    dimensions = len(task.space)
    size = f"{task.space.grid_size} ({dimensions} dims)"
    budget = f"{task.budget_s / 3600:g} h"
    answers = ", ".join(backends(task, tables)) or "none yet"
    return task.id, task.dataset, str(task.num_clients), size, budget, answers


def backends(task: Task, tables: set[str]) -> list[str]:
    """Return the backends that can answer a task on this machine."""
    found = ["tabular"] if task.table_name in tables else []
    if find(task.table_name, ".surrogate.json") is not None:
        found.append("surrogate")
    if find_spec("torch") is not None:
        found.append("raw")
    return found
