"""`fedhpo-gym import`: results that others computed become stored numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedhpo_gym.cli.console import Arg, OwnTables, complain, say
from fedhpo_gym.core.errors import FedHPOError

Results = Annotated[Path, Arg("a zip file, a folder or a tabular.csv.gz of FedHPO-Bench", "PATH")]


def main(path: Results, *, out: OwnTables = None) -> int:
    """Import every table of an archive; one that is refused does not keep others from coming."""
    from fedhpo_gym.building.fedhpo_bench import find_archives, import_archive

    failed = 0
    for archive in find_archives(path):
        try:
            say(str(import_archive(archive, out)))
        except FedHPOError as error:
            complain("import", error)
            failed += 1
    return 1 if failed else 0
