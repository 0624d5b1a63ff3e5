"""`fedhpo-gym list`: the environments, and what can answer them here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.util import find_spec

from fedhpo_gym.cli.console import say, say_table
from fedhpo_gym.studies.environments import known_ids
from fedhpo_gym.surrogates import list_surrogates
from fedhpo_gym.tables import list_tables
from fedhpo_gym.tables.naming import build_arguments
from fedhpo_gym.tasks import TASKS, Task

VARIANT_HEADS = ("id", "arguments", "backends")
HEADS = ("id", "data set", "clients", "configurations", "simulated budget", "backends")


def main(_options: argparse.Namespace) -> int:
    """Print one line per environment."""
    registered, tables, surrogates = set(known_ids()), list_tables(), list_surrogates()
    rows = [
        _row(task, backends(task, tables, surrogates))
        for task in TASKS.values()
        if task.id in registered
    ]
    say_table(HEADS, rows)
    if stored := variants(tables, surrogates):
        say("\nVariants with stored numbers, by the arguments of gymnasium.make:\n")
        say_table(VARIANT_HEADS, stored)
    if any(task.round_id in registered for task in TASKS.values()):
        say(
            "\nEvery FedHPO-... id is also there as FedHPO-DAC-...: a step is some rounds of one "
            "course\nthat goes on (really trained; needs torch)."
        )
    if any(f"MO-{task.id}" in registered for task in TASKS.values()):
        say("\nEvery id is also there as MO-..., with one reward per objective.")
    return 0


def _row(task: Task, answers: Sequence[str]) -> tuple[str, ...]:
    dimensions = len(task.space)
    size = f"{task.space.grid_size} ({dimensions} dims)"
    budget = f"{task.budget_s / 3600:g} h"
    names = ", ".join(answers) or "none yet"
    return task.id, task.dataset, str(task.num_clients), size, budget, names


def backends(task: Task, tables: Sequence[str], surrogates: Sequence[str]) -> list[str]:
    """Return the backends that can answer a task on this machine."""
    found = ["tabular"] if task.table_name in tables else []
    if task.table_name in surrogates:
        found.append("surrogate")
    if find_spec("torch") is not None:
        found.append("raw")
    return found


def variants(tables: Sequence[str], surrogates: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return id, arguments and backends of the stored variants that no id has by default."""
    defaults = {task.table_name for task in TASKS.values()}
    found = []
    for name in sorted({*tables, *surrogates} - defaults):
        words = build_arguments(name).split()
        pairs = zip(words[1::2], words[2::2], strict=True)
        arguments = (_argument(option.removeprefix("--"), value) for option, value in pairs)
        stored = (("tabular", tables), ("surrogate", surrogates))
        answers = [backend for backend, names in stored if name in names]
        found.append((f"{words[0]}-v0", ", ".join(arguments), ", ".join(answers)))
    return found


def _argument(option: str, value: str) -> str:
    """Return an option of `fedhpo-gym build` as an argument of `gymnasium.make`."""
    if option == "setting":
        name, _, number = value.partition("=")
        return f"settings={{{name!r}: {number}}}"
    return f"{option}={value if option == 'alpha' else repr(value)}"
