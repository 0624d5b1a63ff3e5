"""`fedhpo-gym import`: results that others computed become stored numbers."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import fedhpo_gym
from fedhpo_gym.cli.console import Arg, OwnTables, complain, say
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError

TABLES = (".csv", ".parquet", ".pq")
Source = Annotated[
    Path,
    Arg(
        "a zip file, a folder or a tabular.csv.gz of FedHPO-Bench; or a table of results, CSV or "
        "Parquet",
        "PATH",
    ),
]
Description = Annotated[
    Path | None,
    Arg("lines of TOML that describe a table of results (those beside it, *.toml)", "FILE"),
]


def main(path: Source, *, description: Description = None, out: OwnTables = None) -> int:
    """Import every table of an archive, or a table of results; refused ones keep none back."""
    from fedhpo_gym.building.fedhpo_bench import find_archives, import_archive

    if path.suffix in TABLES:
        told = _told(path.with_suffix(".toml") if description is None else description)
        env_id, card = fedhpo_gym.import_results(path, **told, folder=out)
        say(str(card))
        sample = card.name.endswith(".sample.json")
        say(f"fedhpo-gym surrogate {env_id}" if sample else env_id)
        return 0
    if description is not None:
        raise InvalidArgumentError(
            f"`--description` is for tables of results, {', '.join(TABLES)}, got {path}"
        )
    failed = 0
    for archive in find_archives(path):
        try:
            say(str(import_archive(archive, out)))
        except FedHPOError as error:
            complain("import", error)
            failed += 1
    return 1 if failed else 0


def _told(path: Path) -> dict[str, Any]:
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidArgumentError(f"{path} must be TOML: {error}") from error
    for name in ("name", "parameters"):
        if name not in told:
            raise InvalidArgumentError(f"{path} must have a line `{name} = ...`")
    if unknown := {"data", "folder"} & {*told}:
        raise InvalidArgumentError(f"{path} must not have {sorted(unknown)}: the command says it")
    return told
