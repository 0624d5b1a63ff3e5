"""Find and open stored data: tables, samples and surrogates, by name or by identity.

Backends, the builders in `building/` and the command line open stored files through this module. A
file is searched in the user's folder first and among the files embedded in the package second, so
that a user's own table takes precedence. A card that is opened for an identity is checked against
it, because a name is only the stem of a file. Messages about missing data name the command that
makes it.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from fedhpo_gym.core.archive import DIGEST_ENTRY, EMBEDDED_FOLDER, arrays_path, require_writable
from fedhpo_gym.core.checks import coerce, validate_call
from fedhpo_gym.core.errors import DamagedDataError, FedHPOError, MissingDataError
from fedhpo_gym.core.files import cache_folder, expand_home, matching_files, path_exists, read_json
from fedhpo_gym.core.identity import Identity
from fedhpo_gym.stored.table import SUFFIX, Sample, Table
from fedhpo_gym.tasks import Task
from fedhpo_gym.tasks.results import ResultsTask

R = TypeVar("R")
ENV_VAR = "FEDHPO_GYM_TABLES"
COST = ", which first says what that costs (`--sample N` trains N courses only, for a surrogate)"
"""Appended to the command that builds a table in messages: a full grid can take years."""
KEEP = " (`--keep` where it says that errors are not accepted)"
"""Appended to the command that fits a surrogate in messages: some fits are rejected without it."""
TRAIN = 'train: gymnasium.make(..., backend="raw")'
"""Last part of the message about a table that is missing."""


def table_folder() -> Path:
    """Return the folder of the user's own tables: `FEDHPO_GYM_TABLES`, else the user's cache."""
    if ENV_VAR in os.environ:
        return expand_home(os.environ[ENV_VAR])
    return cache_folder("tables")


@validate_call
def writable_table_folder(folder: Path | None) -> Path:
    """Return a folder for a new table, sample or surrogate, checked before it is computed."""
    if folder is not None:
        require_writable(folder, "the folder for the result (`folder`, `--out`)")
        return folder
    variables = f"`{ENV_VAR}` (else `XDG_CACHE_HOME`, else ~/.cache)"
    require_writable(table_folder(), variables)
    return table_folder()


def find_stored(name: str, suffix: str) -> Path | None:
    """Return `<name><suffix>` from the user's folder, else from the package, else None."""
    for folder in (table_folder(), EMBEDDED_FOLDER):
        path = folder / f"{name}{suffix}"
        if path_exists(path):
            return path
    return None


def open_card(reader: Callable[..., R], name: str, suffix: str, how: str, *maker: str) -> R:
    """Read the file that `find_stored` returns; the result is cached until the file changes.

    Raises:
        MissingDataError: no such file exists; `how` is the message.
    """
    path = find_stored(name, suffix)
    if path is None:
        raise MissingDataError(how)
    content: R = _read(reader, File(path, path.stat().st_mtime_ns, maker))
    return content


@lru_cache(maxsize=32)
def _read(reader: Callable[..., R], file: "File") -> R:
    return reader(file.path, *file.maker)


def list_names(suffix: str) -> tuple[str, ...]:
    """Return the sorted names of all files `<name><suffix>` that `find_stored` can return."""
    folders = (table_folder(), EMBEDDED_FOLDER)
    names = {
        path.name.removesuffix(suffix) for f in folders for path in matching_files(f, f"*{suffix}")
    }
    return tuple(sorted(names))


def list_tables() -> tuple[str, ...]:
    """Return the names of all tables that can be opened."""
    return list_names(".table.json")


def list_samples() -> tuple[str, ...]:
    """Return the names of all samples that can be opened."""
    return list_names(f"{SUFFIX}.json")


def has_table(name: str) -> bool:
    """Return whether there is a table of this name."""
    return find_stored(name, ".table.json") is not None


def has_sample(name: str) -> bool:
    """Return whether there is a sample of this name."""
    return find_stored(name, f"{SUFFIX}.json") is not None


@validate_call
def open_table(identity: str | Identity) -> Table:
    """Open a table by the stem of its files, or by the identity that it must have.

    Raises:
        MissingDataError: the table has not been built.
        DamagedDataError: its card is damaged, or belongs to another identity.
    """
    name, command = named(identity)[0], _command(identity)
    how = f"build it with `{command}`{COST}, or {TRAIN}"
    if is_imported(identity):
        how = f"import it with `{command}`"
    how = f"there is no table {name!r}; {_instead(name)}{how}"
    table = open_card(Table, name, ".table.json", how, command)
    require_identity(table.identity, identity, command)
    return table


def is_imported(identity: str | Identity) -> bool:
    """Return whether numbers were imported, so that missing ones cannot be trained."""
    return isinstance(identity, Identity) and "table" in dict(identity.options)


def imported_card(identity: Identity) -> Mapping[str, Any] | None:
    """Return the card of imported numbers; None if it is absent or the numbers were trained."""
    paths = (find_stored(identity.name, suffix) for suffix in (".table.json", f"{SUFFIX}.json"))
    if is_imported(identity):
        for path in filter(None, paths):
            with suppress(OSError, ValueError):  # opening the file reports the error
                card: Mapping[str, Any] = coerce("card", read_json(path), Mapping)
                return card
    return None


def require_import(task: Task) -> None:
    """Check that imported numbers are those that the task file was written with.

    The numbers and the task file are written one after the other. A process that ends in between,
    or that imports while another one reads, can pair the numbers of one import with the task of
    another.
    """
    if not isinstance(task, ResultsTask) or not task.numbers_sha256:
        return
    card = imported_card(task.identity)
    if card is not None and card.get(DIGEST_ENTRY) != task.numbers_sha256:
        raise DamagedDataError(
            f"the numbers of {task.id} must be those that its task file names by `numbers_sha256`, "
            f"{task.numbers_sha256:.12}, got {card.get(DIGEST_ENTRY)!s:.12}. Run "
            f"`{task.identity.command}` again; if another process has done so, start Python anew."
        )


def _command(identity: str | Identity) -> str:
    return "fedhpo-gym build ID" if isinstance(identity, str) else identity.command


def is_here(name: str) -> bool:
    """Return whether this machine has the arrays of a table; true for a damaged one as well."""
    try:
        open_table(name).require_installed()
    except FedHPOError as error:
        return not isinstance(error, MissingDataError)
    return True


def is_installed(card: Path) -> bool:
    """Return whether this machine has the arrays of a card; true for a damaged one as well."""
    try:
        return path_exists(arrays_path(card, read_json(card)))
    except (OSError, ValueError, TypeError, LookupError, FedHPOError):
        return True


def _instead(name: str) -> str:
    """Return which stored data can replace a missing table, as the start of a sentence."""
    if find_stored(name, ".surrogate.json") is not None:
        return 'use backend="surrogate", '
    if has_sample(name):
        return 'use its pool, which backend="tabular" opens, '
    return ""


@validate_call
def open_sample(identity: str | Identity) -> Sample:
    """Open a sample as `open_table` opens a table."""
    name, command = named(identity)[0], _command(identity)
    command += "" if is_imported(identity) else " --sample N"
    path = find_stored(name, f"{SUFFIX}.json")
    if path is None:
        raise MissingDataError(f"there is no sample {name!r}; build it with `{command}`")
    sample = Sample(path, command)
    require_identity(sample.identity, identity, command)
    return sample


def named(identity: str | Identity) -> tuple[str, str]:
    """Return the stem of the files, and the arguments that make them (`ID` for a stem alone)."""
    return (identity, "ID") if isinstance(identity, str) else (identity.name, identity.arguments)


def require_identity(stored: Identity, expected: str | Identity, command: str) -> None:
    """Check that a card belongs to the identity that is opened."""
    if isinstance(expected, Identity) and stored != expected:
        raise DamagedDataError(
            f"the file stored as {expected.name} belongs to `{stored.arguments}`, not to "
            f"`{expected.arguments}`; delete its card and run `{command}`"
        )


@dataclass(frozen=True)
class File:
    """Cache key of a card: a card that is written again has another modification time."""

    path: Path  # where it is
    modified: int  # when it was written, in nanoseconds
    maker: tuple[str, ...] = field(compare=False)  # command that makes it, for messages
