"""Which macro-F1 occur with how many hits: a client's class counts leave few.

What occurs is a list per seed, split, client and number of hits; a macro-F1 is then a place in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

MOST_LISTS = 1 << 14
"""With more lists than that, macro-F1 is coded as the number it is."""
_CODES = 1 << 8
COUNTS, VALUES = "f1_counts", "f1_values"


class Listed:
    """Lists of macro-F1 codes, and the nearest entry of each to any code.

    Attributes:
        sizes: (lists,) entries.
    """

    def __init__(self, samples: NDArray[np.int64], members: Mapping[str, NDArray[Any]]) -> None:
        """Take the lists.

        Args:
            samples: (seeds, columns) samples, the largest numbers of hits.
            members: `COUNTS`, with the entries of every list, and `VALUES`, all entries.

        Raises:
            ValueError: they do not fit together.
        """
        counts, values = members[COUNTS], members[VALUES]
        if counts.dtype != np.uint8 or values.dtype != np.uint8 or counts.ndim + values.ndim != 2:
            raise ValueError("lists of macro-F1 must be bytes")
        if counts.size != lists_for(samples) or int(counts.sum(dtype=np.int64)) != values.size:
            raise ValueError("the lists of macro-F1 do not fit the numbers of samples")
        self._samples = samples.astype(np.int32)
        self._first = _first(samples)
        self.sizes = counts.astype(np.int32)
        self._starts = (np.cumsum(self.sizes) - self.sizes).astype(np.int32)
        self._values = np.append(values, np.uint8(0)).astype(np.int32)
        occurs = np.zeros((counts.size, _CODES), np.bool_)
        occurs[np.repeat(np.arange(counts.size), counts), values] = True
        if np.count_nonzero(occurs) != values.size:
            raise ValueError("a list of macro-F1 holds a value twice")
        self._nearest = _nearest(occurs)

    def find(self, seeds: Integers, hits: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the numbers of the lists: (n, columns).

        Args:
            seeds: (n,) positions of seeds.
            hits: (n, columns) hits; more than there are samples count as all.
        """
        return self._first.take(seeds, axis=0) + np.minimum(hits, self._samples.take(seeds, axis=0))

    def place(self, lists: NDArray[np.int32], codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return which entries are nearest to codes; 0 where a list is empty."""
        return self._nearest.take(lists * _CODES + np.clip(codes, 0, _CODES - 1)).astype(np.int32)

    def value(self, lists: NDArray[np.int32], places: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return entries; what is no place in a list is the nearest one."""
        last = np.maximum(self.sizes.take(lists) - 1, 0)
        return self._values.take(self._starts.take(lists) + np.clip(places, 0, last))


def _first(samples: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the number of the list of no hits: (seeds, columns)."""
    return (np.cumsum(samples + 1).reshape(samples.shape) - samples - 1).astype(np.int32)


def lists_for(samples: NDArray[np.int64]) -> int:
    """Return how many lists there are."""
    return int((samples + 1).sum())


def list_values(
    samples: NDArray[np.int64],
    seeds: Integers,
    pairs: list[tuple[NDArray[np.int32], NDArray[np.int32]]],
) -> dict[str, NDArray[np.uint8]]:
    """Return the members that hold the lists of what occurs.

    Args:
        samples: (seeds, columns) samples.
        seeds: (cells,) positions of seeds.
        pairs: hits and macro-F1 codes, each (cells, columns).
    """
    occurs = np.zeros((lists_for(samples), _CODES), np.bool_)
    for hits, codes in pairs:
        occurs[_first(samples)[seeds] + hits, codes] = True
    counts = occurs.sum(axis=1).astype(np.uint8)
    return {COUNTS: counts, VALUES: np.nonzero(occurs)[1].astype(np.uint8)}


def _nearest(occurs: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the place of the entry nearest to every code, the smaller one of two."""
    codes = np.arange(_CODES, dtype=np.int16)
    below = np.maximum.accumulate(np.where(occurs, codes, np.int16(-1 << 13)), axis=1)
    above = np.where(occurs, codes, np.int16(1 << 13))[:, ::-1]
    above = np.minimum.accumulate(above, axis=1)[:, ::-1]
    place = np.cumsum(occurs, axis=1, dtype=np.int16) - 1
    place += codes - below > above - codes
    return np.clip(place, 0, _CODES - 1).astype(np.uint8)
