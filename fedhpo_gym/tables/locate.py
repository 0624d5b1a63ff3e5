"""Where tables are: embedded in the package, or built by the user."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from fedhpo_gym.archive import require_writable
from fedhpo_gym.errors import MissingDataError
from fedhpo_gym.tables.naming import build_arguments as build_arguments
from fedhpo_gym.tables.sample import SUFFIX, Sample
from fedhpo_gym.tables.store import Table

ENV_VAR = "FEDHPO_GYM_TABLES"
EMBEDDED = Path(__file__).parent / "data"
COST = ", which first says what that costs (`--sample N` trains N courses only, for a surrogate)"
"""What a message adds to the command that builds a table: a whole grid can take years."""
TRAIN = 'train: gymnasium.make(..., backend="raw"); a wrapper such as RawBackend comes too late'
"""How a message ends that says that there are no numbers."""


def table_folder() -> Path:
    """Return the folder of the user's own tables: `FEDHPO_GYM_TABLES`, else the user's cache."""
    if ENV_VAR in os.environ:
        return Path(os.environ[ENV_VAR]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "fedhpo_gym" / "tables"


def writable_table_folder(folder: Path | None) -> Path:
    """Return a folder for a new table, sample or surrogate, checked before it is computed.

    Args:
        folder: the folder; that of the user's own tables when None.

    Raises:
        InvalidArgumentError: nothing can be written there.
    """
    if folder is not None:
        require_writable(folder, "the folder for the result (`folder`, `--out`)")
        return folder
    variables = f"`{ENV_VAR}` (else `XDG_CACHE_HOME`, else ~/.cache)"
    require_writable(table_folder(), variables)
    return table_folder()


def find(name: str, suffix: str) -> Path | None:
    """Return `<name><suffix>` from the user's folder, else from the package, else None."""
    for folder in (table_folder(), EMBEDDED):
        path = folder / f"{name}{suffix}"
        if path.exists():
            return path
    return None


def list_names(suffix: str) -> tuple[str, ...]:
    """Return the sorted names of all files `<name><suffix>` that `find` would return."""
    folders = (table_folder(), EMBEDDED)
    found = {path.name.removesuffix(suffix) for f in folders for path in f.glob(f"*{suffix}")}
    return tuple(sorted(found))


def list_tables() -> tuple[str, ...]:
    """Return the names of all tables that can be opened."""
    return list_names(".table.json")


def list_samples() -> tuple[str, ...]:
    """Return the names of all samples that can be opened."""
    return list_names(f"{SUFFIX}.json")


def open_table(name: str) -> Table:
    """Open a table by name.

    Raises:
        MissingDataError: nobody has built it; the message names the command that does.
        DamagedDataError: its file does not have the checksum its card states.
    """
    path = find(name, ".table.json")
    if path is None:
        raise MissingDataError(
            f"there is no table {name!r}; {_instead(name)}build it with "
            f"`fedhpo-gym build {build_arguments(name)}`{COST}, or {TRAIN}"
        )
    return _open(path, path.stat().st_mtime_ns)


def _instead(name: str) -> str:
    """Return what a variant without a table can be answered from, as the start of a sentence."""
    if find(name, ".surrogate.json") is not None:
        return 'use backend="surrogate", '
    if find(name, f"{SUFFIX}.json") is not None:
        command = f"fedhpo-gym surrogate {build_arguments(name)}"
        return f'fit a surrogate on its sample with `{command}` and use backend="surrogate", '
    return ""


def open_sample(name: str) -> Sample:
    """Open a sample by the name of its variant.

    Raises:
        MissingDataError: nobody has built it; the message names the command that does.
        DamagedDataError: its card is damaged; names the repair command.
    """
    path = find(name, f"{SUFFIX}.json")
    if path is None:
        raise MissingDataError(
            f"there is no sample {name!r}; build it with "
            f"`fedhpo-gym build {build_arguments(name)} --sample N`"
        )
    return Sample(path)


@lru_cache(maxsize=16)
def _open(path: Path, _modified: int) -> Table:
    return Table(path)
