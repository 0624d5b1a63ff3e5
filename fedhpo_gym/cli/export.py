"""`fedhpo-gym export`: run records for the tools of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedhpo_gym.cli.arguments import Arg
from fedhpo_gym.cli.console import say
from fedhpo_gym.cli.options import Records
from fedhpo_gym.cli.records import whole_records
from fedhpo_gym.core.archive import require_writable
from fedhpo_gym.studies.export import to_optuna


def main(
    paths: Records,
    *,
    optuna: Annotated[
        Path, Arg("write a new SQLite file of Optuna's, for its pictures and dashboard", "FILE")
    ],
) -> int:
    """Write all whole records as studies of Optuna; 1 if one is damaged."""
    require_writable(optuna.parent, "`--optuna`, without its last part,")
    records, damaged = whole_records("export", paths)
    for name in to_optuna([record for _, record in records], optuna):
        say(name)
    say(f"{optuna}: open it with `optuna-dashboard sqlite:///{optuna}`")
    return 1 if damaged else 0
