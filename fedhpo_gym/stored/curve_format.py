"""How tables and samples are stored: curves without what follows from the rest.

Losses, hits and macro-F1 are predicted from neighbours (`neighbours.py`), and what predictions miss
is entropy coded (`codec.py`). Two things are not coded at all. The best model so far is that of the
round before, or the current one, unless it was found in a round that is not stored. And how many
hits there are leaves few values of macro-F1: which ones occur is listed once (`Codebook`).
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import as_integer
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.files import require_bytes
from fedhpo_gym.stored.codec import Decoder, Encoder, lanes_for
from fedhpo_gym.stored.curve_coder import (
    COUNTS,
    MOST_LISTS,
    VALUES,
    WHICH,
    Codebook,
    CurveLayout,
    Model,
    Values,
    list_values,
    lists_for,
)
from fedhpo_gym.stored.neighbours import Path, choose_paths

ENTRY = "codec"
"""Entry of a card that says how its curves are packed."""
NAME = "neighbours-rans-1"
WORDS = "words"
_DESCRIPTION = (
    "curves are predicted from neighbouring cells and rounds, and what that misses is entropy coded"
    " (adaptive rANS); the best model so far follows from best_round where it can; macro-F1 is a"
    " place in a list of those that occur with as many hits. fedhpo_gym.stored reads it"
)
_PER_CELL, _PER_NUMBER, _PER_CODE = 256, 24, 4
"""About the bytes that unpacking takes: cells, numbers of one metric, and all codes."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Packing:
    """What a card says about its packed curves."""

    paths: tuple[Path, ...]  # how neighbours predict
    lanes: int  # of the entropy coder
    words: int  # 16-bit words of the entropy coder
    follows: bool  # whether best models that follow from `best_round` are left out
    listed: int | None  # entries of all lists of macro-F1; None without lists
    crc32: int  # of all codes, unpacked: a machine that computes otherwise is found out

    @classmethod
    def from_card(cls, said: Any, layout: CurveLayout) -> Packing:
        """Return what the entry of a card says."""
        if said["name"] != NAME:
            raise ValueError(f"its curves are packed by {said['name']!r:.80}, known is {NAME!r}")
        paths = tuple(tuple(path) for path in said["paths"])
        known = {as_integer(axis) in layout.axes for path in paths for axis in path}
        if known != {True} or not {len(path) for path in paths} <= {1, 2}:
            raise ValueError(f"`paths` must go along one or two of the axes {layout.axes}")
        if len(paths) > _MOST_PATHS or (layout.axis,) not in paths:
            raise ValueError(f"`paths` must be up to {_MOST_PATHS}, one of them [{layout.axis}]")
        counts = [said[name] for name in ("lanes", "words", "listed")]
        if any(
            type(count) is not int or count < 1 for count in counts[: 2 if counts[2] is None else 3]
        ):
            raise ValueError(f"`lanes`, `words` and `listed` must be positive, got {counts!r:.80}")
        if counts[1] < 2 * counts[0]:
            raise ValueError(f"{counts[1]} words are too few for {counts[0]} lanes")
        if counts[2] is not None and not may_list(layout):
            raise ValueError("there are too many clients and samples for lists of macro-F1")
        if type(said["follows"]) is not bool or type(said["crc32"]) is not int:
            raise ValueError("`follows` must be a truth value and `crc32` an integer")
        return cls(paths, counts[0], counts[1], said["follows"], counts[2], said["crc32"])

    def to_card(self) -> dict[str, Any]:
        """Return the entry of the card."""
        return {"name": NAME, "description": _DESCRIPTION, **vars(self)}

    def shapes(self, layout: CurveLayout) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the arrays that hold the curves."""
        found: dict[str, tuple[int, ...]] = {WORDS: (self.words,)}
        if self.listed is not None:
            found |= {COUNTS: (lists_for(layout.by_column),), VALUES: (self.listed,)}
        return found


_MOST_PATHS = 16


def may_list(layout: CurveLayout) -> bool:
    """Return whether there are hits and macro-F1, and not too many lists."""
    metrics = {"accuracy", "f1"} <= {*layout.packed}
    return metrics and lists_for(layout.by_column) <= MOST_LISTS


def pack(
    arrays: Arrays, layout: CurveLayout, seeds: NDArray[np.int64]
) -> tuple[dict[str, NDArray[Any]], Packing]:
    """Return what is stored instead of arrays, and how, with `seeds` (cells,)."""
    values = {(w, m): _columns(arrays, layout, w, m) for w in WHICH for m in layout.packed}
    first = values[WHICH[0], layout.packed[0]]
    paths = choose_paths(first, layout.shape, layout.axes)
    paths += [(layout.axis,)] * ((layout.axis,) not in paths)
    first_guess = layout.following(arrays["best_round"])
    following = first_guess if _follows(layout, values, first_guess) else None
    lists: list[dict[str, NDArray[Any]]] = [{}]
    lists += [dict(list_values(*one)) for one in _pairs(layout, values, seeds)]
    packed = {name: array for name, array in arrays.items() if name not in layout.names}
    crc32 = checksum(arrays, layout)
    found = []
    for members in lists:
        coder = Encoder()
        listed = Codebook(layout.by_column, members) if members else None
        Model(layout, paths, coder, seeds, listed).run(values, following)
        count, words = coder.count, coder.close()
        entries = members[VALUES].size if members else None
        follows = following is not None
        said = Packing(tuple(paths), lanes_for(count), words.size, follows, entries, crc32)
        found.append(({WORDS: words, **members}, said))
    members, said = min(found, key=lambda one: sum(array.nbytes for array in one[0].values()))
    return {**packed, **members}, said


def unpack(
    arrays: Arrays, layout: CurveLayout, seeds: NDArray[np.int64], said: Packing, what: object
) -> dict[str, NDArray[Any]]:
    """Return all arrays of a table or a sample, with `seeds` (cells,)."""
    _require_room(layout, what)
    if arrays[WORDS].dtype != np.uint16:
        raise ValueError(f"{WORDS!r} must be 16-bit words, got {arrays[WORDS].dtype}")
    listed = Codebook(layout.by_column, arrays) if said.listed is not None else None
    following = layout.following(arrays["best_round"]) if said.follows else None
    coder = Decoder(arrays[WORDS], said.lanes)
    nothing = np.zeros((math.prod(layout.shape), layout.by_column.shape[1]), np.int32)
    empty = {(w, m): nothing for w in WHICH for m in layout.packed}
    found = Model(layout, said.paths, coder, seeds, listed).run(empty, following)
    coder.close()
    whole = {name: array for name, array in arrays.items() if name not in said.shapes(layout)}
    clients = layout.samples.shape[1]
    for (which, metric), values in found.items():
        for number, (split, dtype) in enumerate(layout.dtypes(metric).items()):
            codes = values[:, number * clients : (number + 1) * clients].astype(dtype)
            whole[f"{which}_{split}_{metric}"] = codes.reshape(*layout.shape, clients)
    if checksum(whole, layout) != said.crc32:
        raise ValueError("its curves have another checksum than its card says")
    return whole


def checksum(arrays: Arrays, layout: CurveLayout) -> int:
    """Return the CRC-32 of all packed arrays, each in the type of its codes."""
    found = 0
    for which, metric in itertools.product(WHICH, layout.packed):
        for split, dtype in layout.dtypes(metric).items():
            codes = np.ascontiguousarray(
                arrays[f"{which}_{split}_{metric}"], dtype.newbyteorder("<")
            )
            found = zlib.crc32(codes.data.cast("B"), found)
    return found


def _require_room(layout: CurveLayout, what: object) -> None:
    cells, columns = math.prod(layout.shape), layout.samples[0].size
    codes = 2 * len(WHICH) * len(layout.packed) * cells * columns
    size = _PER_CELL * cells + _PER_NUMBER * cells * columns + _PER_CODE * codes
    require_bytes(size, f"unpacking what is in {what}")


def _columns(arrays: Arrays, layout: CurveLayout, which: str, metric: str) -> Values:
    """Return a metric of all splits and clients side by side."""
    clients = layout.samples.shape[1]
    parts = []
    for split, dtype in layout.dtypes(metric).items():
        name = f"{which}_{split}_{metric}"
        array = arrays.get(name)
        shape = (*layout.shape, clients)
        if array is None or array.shape != shape or not _fits(array, dtype):
            found = "nothing" if array is None else f"{array.dtype} of shape {array.shape}"
            raise InvalidArgumentError(
                f"array {name!r} must hold codes that fit {dtype}, of shape {shape}, got {found}; "
                "encode it with `fedhpo_gym.stored.codec`"
            )
        parts.append(array.reshape(-1, clients))
    return np.concatenate(parts, axis=1).astype(np.int32)


def _fits(array: NDArray[Any], dtype: np.dtype[np.unsignedinteger]) -> bool:
    return array.dtype.kind == "u" and int(array.max(initial=0)) <= np.iinfo(dtype).max


def _follows(
    layout: CurveLayout,
    values: Mapping[tuple[str, str], Values],
    following: tuple[NDArray[np.bool_], NDArray[np.bool_]],
) -> bool:
    """Return whether all best models that should follow from others do."""
    same, own = (np.flatnonzero(one) for one in following)
    before = same - math.prod(layout.shape[layout.axis + 1 :])
    return all(
        np.array_equal(values["best", m][same], values["best", m][before])
        and np.array_equal(values["best", m][own], values["current", m][own])
        for m in layout.packed
    )


def _pairs(
    layout: CurveLayout, values: Mapping[tuple[str, str], Values], seeds: NDArray[np.int64]
) -> list[Any]:
    """Return what `list_values` needs, where macro-F1 can be listed."""
    if not may_list(layout):
        return []
    pairs = [(values[which, "accuracy"], values[which, "f1"]) for which in WHICH]
    if any((hits > layout.by_column[seeds]).any() for hits, _ in pairs):
        return []
    return [(layout.by_column, seeds, pairs)]
