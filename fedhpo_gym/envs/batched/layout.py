"""A batch of one-level dictionary observations as one matrix, and infos in Gymnasium's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Observations = dict[str, NDArray[np.float32]]
Mask = NDArray[np.bool_]
Indices = NDArray[np.intp]


class Layout:
    """Where the entries of an observation lie in a row of numbers.

    The order is that of the space, so a row is what `gymnasium.spaces.flatten` gives.

    Attributes:
        columns: the columns of every entry.
        size: numbers per row.
    """

    def __init__(self, space: gym.spaces.Dict) -> None:
        """Lay out a dictionary of one-dimensional boxes."""
        self.columns: dict[str, slice] = {}
        self.size = 0
        for name, box in space.items():
            (size,) = box.shape or ()
            self.columns[name] = slice(self.size, self.size + size)
            self.size += size

    def views(self, matrix: NDArray[np.float32]) -> Observations:
        """Return the (n, size of entry) views of an (n, size) matrix, or those of one row."""
        return {name: matrix[..., columns] for name, columns in self.columns.items()}

    def fill(self, matrix: NDArray[np.floating], parts: Mapping[str, NDArray[np.floating]]) -> None:
        """Write some entries into an (n, size) matrix, or into one row."""
        for name, values in parts.items():
            matrix[..., self.columns[name]] = values


def masked(info: Mapping[str, Any], mask: Mask) -> dict[str, Any]:
    """Return nested infos with a mask `_key` beside every `key`; zero where the mask is False.

    Args:
        info: nested dictionaries of (n, ...) arrays; see `columns_of` for those with gaps.
        mask: (n,) environments that say something.
    """
    out: dict[str, Any] = {}
    for key, value in info.items():
        said = mask & ~np.ma.getmaskarray(value) if isinstance(value, np.ma.MaskedArray) else mask
        if isinstance(value, Mapping):
            out[key] = masked(value, mask)
        else:
            out[key] = np.array(value)
            out[key][~said] = None if out[key].dtype == object else 0
        out[f"_{key}"] = said.copy()
    return out


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return an (n,) masked array of every key of n rows, of which some may lack it.

    It is of objects where values are strings, as Gymnasium has it.
    """
    found = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        gaps = [name not in row for row in rows]
        some = next(row[name] for row in rows if name in row)
        values = [row.get(name, some) for row in rows]
        kind = object if isinstance(some, str) else None
        found[name] = np.ma.MaskedArray(np.array(values, dtype=kind), gaps)
    return found


def listed(describe: Callable[[int], Mapping[str, Any]], mask: Mask) -> dict[str, Any]:
    """Return infos, as (n,) arrays of objects, of what each environment of a mask says.

    Args:
        describe: returns what an environment says, objects of its own.
        mask: (n,) environments that say something.
    """
    out: dict[str, Any] = {}
    for index in np.flatnonzero(mask):
        for key, value in describe(int(index)).items():
            if key not in out:
                out[key] = np.full(len(mask), None, dtype=object)
                out[f"_{key}"] = mask.copy()
            out[key][index] = value
    return out


def final_observations(
    layout: Layout, frame: NDArray[np.float32], where: Indices
) -> NDArray[np.object_]:
    """Return (n,) dictionaries: the observations of some environments, None for the others."""
    out = np.full(len(frame), None, dtype=object)
    for index in where:
        out[index] = layout.views(frame[index].copy())
    return out
