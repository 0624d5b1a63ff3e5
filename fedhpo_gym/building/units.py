"""The results of one unit in one file: written whole, and checked whenever they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import DamagedDataError, TooLargeError
from fedhpo_gym.files import new_file
from fedhpo_gym.limits import max_bytes
from fedhpo_gym.npz import read_npz

ARRAYS = ("metrics", "rounds", "diverged_at", "hardware")
DIGEST = "digest"


@dataclass(frozen=True)
class UnitShape:
    """What the results of a unit must be like.

    Attributes:
        courses: number of courses.
        rounds: the rounds after which they were evaluated.
        axes: clients, splits and metrics of an evaluation.
    """

    courses: int
    rounds: tuple[int, ...]
    axes: tuple[int, int, int]

    @property
    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays."""
        return {
            "metrics": (self.courses, len(self.rounds), *self.axes),
            "rounds": (len(self.rounds),),
            "diverged_at": (self.courses,),
            "hardware": (),
        }


def write_unit(folder: Path, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the results of a unit with a digest of their content.

    Args:
        folder: where the file goes.
        name: name of the unit.
        arrays: `ARRAYS`.
    """
    with new_file(folder / f"{name}.npz") as handle:
        digest = np.array(_digest(name, arrays))
        np.savez_compressed(handle, allow_pickle=False, **{**arrays, DIGEST: digest})


def read_unit(folder: Path, name: str, shape: UnitShape) -> dict[str, NDArray[Any]]:
    """Return the arrays of a stored unit.

    Args:
        folder: where the file is.
        name: name of the unit.
        shape: what it must be like.

    Raises:
        DamagedDataError: the file cannot be read, or does not hold the results of the unit; says
            what to do.
        TooLargeError: they are larger than may be read.
    """
    path = folder / f"{name}.npz"
    max_bytes()  # a wrong variable is no damage
    try:
        with path.open("rb") as handle:
            arrays = read_npz(handle, f"what is in {path}")
        _check(name, arrays, shape)
    except TooLargeError:
        raise
    except (OSError, ValueError) as error:
        raise DamagedDataError(
            f"{path} is damaged ({error}); delete it and run the same build again"
        ) from error
    return arrays


def _digest(name: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(name.encode("utf-8"))
    for key in ARRAYS:
        array = np.ascontiguousarray(arrays[key])
        digest.update(f"\n{key} {array.dtype.str} {np.shape(arrays[key])}\n".encode())
        digest.update(array.view(np.uint8).data)
    return digest.hexdigest()


def _check(name: str, arrays: Mapping[str, NDArray[Any]], shape: UnitShape) -> None:
    """Compare what is in a file with what must be there.

    Raises:
        ValueError: it is something else.
    """
    found = {key: array.shape for key, array in arrays.items() if key != DIGEST}
    if found != shape.arrays:
        raise ValueError(f"it holds arrays of the shapes {found}, expected {shape.arrays}")
    if str(arrays.get(DIGEST, "")) != _digest(name, arrays):
        raise ValueError(f"its digest is not that of the results of unit {name!r}")
    kinds = "".join(arrays[key].dtype.kind for key in ARRAYS)
    if kinds != "fiiU" or not np.isfinite(arrays["metrics"]).all():
        raise ValueError("its metrics must be finite numbers, its rounds integers")
    if tuple(arrays["rounds"].tolist()) != shape.rounds:
        raise ValueError(f"it was evaluated after other rounds than {shape.rounds}")
    at = arrays["diverged_at"]
    if at.size and not 0 <= at.min() <= at.max() <= shape.rounds[-1]:
        raise ValueError("`diverged_at` must be rounds, or 0")
