"""Where surrogates are: beside the tables, embedded in the package or fitted by the user."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from fedhpo_gym.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.identity import Identity
from fedhpo_gym.surrogates.surrogate import SUFFIX, Surrogate
from fedhpo_gym.tables.locate import KEEP, TRAIN, File, find, list_names, named, require_identity
from fedhpo_gym.typed import checked_types


def list_surrogates() -> tuple[str, ...]:
    """Return the names of all surrogates that can be opened."""
    return list_names(f"{SUFFIX}.json")


@checked_types
def open_surrogate(wanted: str | Identity) -> Surrogate:
    """Open a surrogate.

    Args:
        wanted: stem of its files, or what it has to belong to: then messages name the command that
            makes it.

    Raises:
        MissingDataError: nobody has fitted it.
        DamagedDataError: its card is damaged, or belongs to something else.
    """
    name, arguments = named(wanted)
    command = f"fedhpo-gym surrogate {arguments}"
    path = find(name, f"{SUFFIX}.json")
    if path is None:
        raise MissingDataError(
            f"there is no surrogate {name!r}; fit it on its table or sample with "
            f"`{command}`{KEEP}, or {TRAIN}"
        )
    surrogate = _open(File(path, path.stat().st_mtime_ns, arguments))
    require_identity(path, surrogate.identity, wanted, command)
    return surrogate


@checked_types
def open_preferred(identities: Sequence[Identity]) -> Surrogate:
    """Open the first surrogate that exists.

    Args:
        identities: what it may belong to, the preferred first; at least one.

    Raises:
        InvalidArgumentError: there is no identity.
        MissingDataError: nobody has fitted one of them; names the command for the first.
        DamagedDataError: see `open_surrogate`.
    """
    if not identities:
        raise InvalidArgumentError("`identities` must hold at least one, got none")
    there = (identity for identity in identities if has_surrogate(identity.name))
    return open_surrogate(next(there, identities[0]))


@checked_types
def has_surrogate(name: str) -> bool:
    """Return whether there is a surrogate of this name."""
    return find(name, f"{SUFFIX}.json") is not None


@lru_cache(maxsize=16)
def _open(file: File) -> Surrogate:
    return Surrogate(file.path, file.arguments)
