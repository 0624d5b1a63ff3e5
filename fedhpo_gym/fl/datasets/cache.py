"""The data folder: where it is, and arrays written to it whole or not at all."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import DamagedDataError, MissingDependencyError

ENV_VAR = "FEDHPO_GYM_DATA"


def data_folder() -> Path:
    """Return the folder with training data: `FEDHPO_GYM_DATA`, else the user's cache folder."""
    if ENV_VAR in os.environ:
        return Path(os.environ[ENV_VAR]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "fedhpo_gym" / "datasets"


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency.

    Raises:
        MissingDependencyError: the module is not installed; names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"this needs the module {module!r}; install it with `pip install 'fedhpo_gym[{extra}]'`"
        ) from error


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as .npz and, beside it, its sha256; a crash leaves nothing half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("wb") as handle:
        np.savez_compressed(handle, allow_pickle=False, **dict(arrays))
    digest = hashlib.sha256(part.read_bytes()).hexdigest()
    path.with_suffix(".sha256").write_text(digest + "\n", encoding="utf-8")
    part.replace(path)


def read_arrays(path: Path, repair: str) -> dict[str, NDArray[Any]]:
    """Read arrays written by `write_arrays`, checking the checksum.

    Raises:
        DamagedDataError: the checksum is missing or wrong; names the repair command.
    """
    checksum = path.with_suffix(".sha256")
    expected = checksum.read_text(encoding="utf-8").strip() if checksum.exists() else "missing"
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != expected:
        raise DamagedDataError(
            f"{path} is damaged (sha256 {found}, expected {expected}); delete it and run `{repair}`"
        )
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
