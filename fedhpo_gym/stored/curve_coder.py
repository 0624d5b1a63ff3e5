"""What of stored curves is coded, and in which order: one model for both directions.

Of the best model so far little is coded: it is that of the round before, or the current one, unless
it was found in a round that is not stored. `best_round` says which.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Bools, Integers, Singles
from fedhpo_gym.core.checks import as_integer
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.files import require_bytes
from fedhpo_gym.stored import codec
from fedhpo_gym.stored.codec import Coder, Decoder, Encoder, lanes_for
from fedhpo_gym.stored.neighbours import Cells, NeighbourValues, Path, Prediction, choose_paths

Values = NDArray[np.int32]

WHICH = ("current", "best")
_SLOPE = 0.8
"""What a hit more adds to macro-F1, as a share of what it adds to the accuracy."""
ORDER = ("loss", "accuracy", "f1")
"""Hits come before the macro-F1 that depends on them."""
_MOST_CODES = 1 << 16


@dataclass(frozen=True)
class CurveLayout:
    """What a card says of curves."""

    shape: tuple[int, ...]  # axes of the cells: those of `best_round`
    axis: int  # which of them is that of the rounds
    axes: tuple[int, ...]  # those along which neighbouring cells may be alike
    rounds: tuple[int, ...]  # the stored rounds
    samples: NDArray[np.int64]  # (seeds, clients, splits)
    splits: tuple[str, ...]  # names of the splits
    metrics: tuple[str, ...]  # names of the metrics

    def __post_init__(self) -> None:
        for names in (self.splits, self.metrics):
            if len({*names}) < len(names):
                raise ValueError(f"splits and metrics must differ, got {names}")

    @property
    def packed(self) -> list[str]:
        """Metrics that are packed; hits of huge clients are not."""
        return [m for m in ORDER if m in self.metrics and self.limits(m).max() <= _MOST_CODES]

    @property
    def names(self) -> set[str]:
        """Names of the arrays that are packed."""
        return {f"{w}_{s}_{m}" for w in WHICH for s in self.splits for m in self.packed}

    @property
    def by_column(self) -> NDArray[np.int64]:
        """Samples as (seeds, columns)."""
        return self.samples.transpose(0, 2, 1).reshape(len(self.samples), -1)

    def dtypes(self, metric: str) -> dict[str, np.dtype[np.unsignedinteger]]:
        """Return the type of a metric's codes, by split."""
        return {s: codec.dtype(metric, self.samples[:, :, i]) for i, s in enumerate(self.splits)}

    def limits(self, metric: str) -> Integers:
        """Return (columns,) how many codes there are."""
        sizes = [1 << 8 * dtype.itemsize for dtype in self.dtypes(metric).values()]
        return np.repeat(np.array(sizes, np.int64), self.samples.shape[1])

    def following(self, best_round: NDArray[np.integer]) -> tuple[Bools, Bools]:
        """Return for every cell whether its best model is that of the round before, or its own."""
        best = np.moveaxis(best_round, self.axis, 0)
        same = np.zeros(best.shape, np.bool_)
        same[1:] = best[1:] == best[:-1]
        own = best == np.array(self.rounds).reshape(-1, *[1] * (best.ndim - 1))
        own &= ~same
        return np.moveaxis(same, 0, self.axis).ravel(), np.moveaxis(own, 0, self.axis).ravel()


class Model:
    """Codes the curves of a layout."""

    def __init__(
        self,
        layout: CurveLayout,
        paths: Sequence[Path],
        coder: Coder,
        seeds: Integers,
        listed: Codebook | None,
    ) -> None:
        self._layout, self._coder = layout, coder
        self._cells = Cells(layout.shape, paths)
        self._seeds, self._listed = seeds, listed
        per_hit = _SLOPE * codec.F1_STEPS / np.maximum(layout.by_column, 1)
        self._slopes = per_hit.astype(np.float32)

    def run(
        self, values: Mapping[tuple[str, str], Values], following: tuple[Bools, Bools] | None
    ) -> dict[tuple[str, str], Values]:
        """Code all (cells, columns) values, zeros in a decoder, and return them."""
        done: dict[tuple[str, str], Values] = {}
        for which in WHICH:
            surprise = np.zeros((self._cells.number, self._layout.by_column.shape[1]), np.int32)
            for metric in self._layout.packed:
                best = which == "best"
                group = _Group(
                    self._layout.limits(metric).astype(np.int32),
                    values[which, metric],
                    done.get((which, "accuracy")) if metric == "f1" and self._listed else None,
                    done["current", metric].astype(np.float32) if best else None,
                    following if best else None,
                )
                done[which, metric] = self._group(group, surprise)
        return done

    def _group(self, group: _Group, surprise: NDArray[np.int32]) -> Values:
        cells, columns = group.values.shape
        known = NeighbourValues(cells, columns, len(self._cells.paths) + (group.guess is not None))
        for at in self._cells.pieces(group.values.shape[1]):
            left = self._follow(group, known, at)
            if left.size:
                guess = None if group.guess is None else group.guess.take(left, axis=0)
                prediction = Prediction(self._cells, known, left, guess)
                if self._listed is None or group.hits is None:
                    self._number(group, prediction, left, surprise)
                else:
                    lists = self._listed.find(self._seeds[left], group.hits.take(left, axis=0))
                    self._place(self._listed, lists, group, prediction, left, surprise)
        return known.values[:-1].astype(np.int32)

    def _follow(self, group: _Group, known: NeighbourValues, at: Integers) -> Integers:
        """Fill in what is not coded, and return the other cells."""
        if group.following is None or group.guess is None:
            return at
        same, own = (one[at] for one in group.following)
        known.values[at[same]] = known.values[at[same] - self._cells.strides[self._layout.axis]]
        known.values[at[own]] = group.guess[at[own]]
        return at[~(same | own)]

    def _number(
        self, group: _Group, prediction: Prediction, at: Integers, surprise: NDArray[np.int32]
    ) -> None:
        """Code numbers of `at` as differences from their predictions."""
        top = group.limits - 1
        expected = np.clip(np.rint(prediction.values).astype(np.int32), 0, top)
        half = group.limits // 2
        missed = ((group.values.take(at, axis=0) - expected + half) & top) - half
        missed = self._coder.code(prediction.contexts.ravel(), missed.ravel())
        missed = missed.reshape(expected.shape)
        surprise[at] = missed
        prediction.learn((expected + missed) & top, missed)

    def _place(
        self,
        listed: Codebook,
        lists: NDArray[np.int32],
        group: _Group,
        prediction: Prediction,
        at: Integers,
        surprise: NDArray[np.int32],
    ) -> None:
        """Code macro-F1 as places in a list; unforeseen hits say that it moved, too."""
        moved = surprise.take(at, axis=0) * self._slopes.take(self._seeds[at], axis=0)
        moved += prediction.values
        expected = listed.place(lists, np.rint(moved, out=moved).astype(np.int32))
        missed = listed.place(lists, group.values.take(at, axis=0)) - expected
        choice = listed.sizes.take(lists) > 1
        missed[~choice] = 0
        missed[choice] = self._coder.code(prediction.contexts[choice], missed[choice])
        prediction.learn(listed.value(lists, expected + missed), missed)


@dataclass(frozen=True)
class _Group:
    """The curves of one metric."""

    limits: NDArray[np.int32]  # (columns,) how many codes there are
    values: Values  # (cells, columns) codes
    hits: Values | None  # the same of the accuracy, where macro-F1 is in lists
    guess: Singles | None  # those of the current model, for the best one
    following: tuple[Bools, Bools] | None  # which best models are not coded


MOST_LISTS = 1 << 14
"""With more lists than that, macro-F1 is coded as the number it is."""
_CODES = 1 << 8
COUNTS, VALUES = "f1_counts", "f1_values"


class Codebook:
    """Lists of macro-F1 codes, of (lists,) `sizes`, and the nearest entry of each to any code."""

    def __init__(self, samples: NDArray[np.int64], members: Mapping[str, NDArray[Any]]) -> None:
        """Take the lists, with `samples` (seeds, columns)."""
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
        """Return (n, columns) numbers of lists, for `seeds` (n,) and `hits` (n, columns)."""
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
    """Return the members that list what occurs: `samples` (seeds, columns), `seeds` (cells,)."""
    occurs = np.zeros((lists_for(samples), _CODES), np.bool_)
    for hits, codes in pairs:
        occurs[_first(samples)[seeds] + hits, codes] = True
    counts = occurs.sum(axis=1).astype(np.uint8)
    return {COUNTS: counts, VALUES: np.nonzero(occurs)[1].astype(np.uint8)}


def _nearest(occurs: Bools) -> NDArray[np.uint8]:
    """Return the place of the entry nearest to every code, the smaller one of two."""
    codes = np.arange(_CODES, dtype=np.int16)
    below = np.maximum.accumulate(np.where(occurs, codes, np.int16(-1 << 13)), axis=1)
    above = np.where(occurs, codes, np.int16(1 << 13))[:, ::-1]
    above = np.minimum.accumulate(above, axis=1)[:, ::-1]
    place = np.cumsum(occurs, axis=1, dtype=np.int16) - 1
    place += codes - below > above - codes
    return np.clip(place, 0, _CODES - 1).astype(np.uint8)


ENTRY = "codec"
"""Entry of a card that says how its curves are packed."""
CODEC = "neighbours-rans-1"
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
        if said["name"] != CODEC:
            raise ValueError(f"its curves are packed by {said['name']!r:.80}, known is {CODEC!r}")
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
        return {"name": CODEC, "description": _DESCRIPTION, **vars(self)}

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
    paths = choose_paths(values[WHICH[0], layout.packed[0]], layout.shape, layout.axes)
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
        most = np.iinfo(dtype).max
        if (
            array is None
            or array.shape != shape
            or array.dtype.kind != "u"
            or int(array.max(initial=0)) > most
        ):
            found = "nothing" if array is None else f"{array.dtype} of shape {array.shape}"
            raise InvalidArgumentError(
                f"array {name!r} must hold codes that fit {dtype}, of shape {shape}, got {found}; "
                "encode it with `fedhpo_gym.stored.codec`"
            )
        parts.append(array.reshape(-1, clients))
    return np.concatenate(parts, axis=1).astype(np.int32)


def _follows(
    layout: CurveLayout, values: Mapping[tuple[str, str], Values], following: tuple[Bools, Bools]
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
