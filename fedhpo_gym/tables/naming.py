"""The command that makes a table, from the table's name."""

from __future__ import annotations

import re

_SETTING = re.compile(r"([a-z_]+)(\d[\d.]*)")


def build_arguments(name: str) -> str:
    """Return the arguments of `fedhpo-gym build` that make the table of this name.

    A name that is not built as table names are gives the placeholder `ID`.
    """
    if name.count("-") < 2:
        return "ID"
    model, dataset, algorithm, *rest = name.split("-")
    words = [f"FedHPO-{model}-{dataset}", f"--algorithm {algorithm}"]
    for part in rest:
        if part.startswith("alpha"):
            words.append(f"--alpha {part.removeprefix('alpha')}")
        elif held := _SETTING.fullmatch(part):
            words.append(f"--setting {held[1]}={held[2]}")
        else:
            words.append(f"--preprocessing {part}")
    return " ".join(words)
