"""Where surrogates are: beside the tables, embedded in the package or fitted by the user."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from fedhpo_gym.errors import MissingDataError
from fedhpo_gym.surrogates.surrogate import SUFFIX, Surrogate
from fedhpo_gym.tables.locate import TRAIN, build_arguments, find, list_names


def list_surrogates() -> tuple[str, ...]:
    """Return the names of all surrogates that can be opened."""
    return list_names(f"{SUFFIX}.json")


def open_surrogate(name: str) -> Surrogate:
    """Open a surrogate by the name of its table.

    Raises:
        MissingDataError: nobody has fitted it; the message names the command that does.
        DamagedDataError: its card or its file is not what was written.
    """
    path = find(name, f"{SUFFIX}.json")
    if path is None:
        raise MissingDataError(
            f"there is no surrogate {name!r}; fit it on its table or sample with "
            f"`{fit_command(name)}`, or {TRAIN}"
        )
    return _open(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _open(path: Path, _modified: int) -> Surrogate:
    return Surrogate(path)


def fit_command(name: str) -> str:
    """Return the command that fits the surrogate of a table or sample."""
    if name.count("-") < 2:  # not <model>-<data set>-<algorithm>: no arguments can be read off it
        return "fedhpo-gym surrogate"
    return f"fedhpo-gym surrogate {build_arguments(name)}"
