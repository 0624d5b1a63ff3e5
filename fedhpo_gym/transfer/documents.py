"""JSON files of others: bounded in size, never code, and named where they are faulty."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fedhpo_gym.core.checks import FAULTS
from fedhpo_gym.core.errors import DamagedDataError, FedHPOError, MissingDataError
from fedhpo_gym.core.files import load_json, require_bytes

AGAIN: Final = "unpack the archives of https://github.com/sebastianpinedaar/hpo-data again"


def document(path: Path) -> Any:
    """Return what a JSON file says, if it fits into memory."""
    require_bytes(path.stat().st_size, path)
    return load_json(path.read_bytes(), path)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name a file that is missing, or that is not what it should be."""
    try:
        yield
    except FedHPOError:
        raise
    except OSError as error:
        raise MissingDataError(f"{path} cannot be read ({error}); {AGAIN}") from error
    except FAULTS as error:
        words = f"{type(error).__name__}: {error}"
        raise DamagedDataError(f"{path} is no file of HPO-B ({words}); {AGAIN}") from error
