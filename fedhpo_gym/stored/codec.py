"""How metrics are stored: rounded once, in one or two bytes, and then entropy coded.

A loss keeps the sign-free upper half of its float32: 8 bits of exponent and 8 of mantissa, a
relative error of at most 2^-9. An accuracy is the exact number of hits. A macro-F1 is rounded to
steps of 1/250.

The entropy coder is interleaved rANS (Duda, "Asymmetric numeral systems", 2013, arXiv:1311.2540):
each *lane* has a state of 32 bits, and all share one stream of 16-bit words. How often a token
occurs in a context is learned while coding, so that a stream holds no tables.
"""

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import unknown_name

Codes = NDArray[np.unsignedinteger]

F1_STEPS = 250

DESCRIPTION = {
    "loss": "upper half of a float32 without its sign: value = (code << 15) read as float32",
    "accuracy": "number of hits: value = code / num_samples",
    "f1": f"value = code / {F1_STEPS}",
}


def dtype(metric: str, num_samples: NDArray[np.integer]) -> np.dtype[np.unsignedinteger]:
    """Return the smallest type that holds the codes of a metric."""
    if metric == "loss":
        return np.dtype(np.uint16)
    if metric == "accuracy":
        return np.min_scalar_type(int(np.max(num_samples)))
    _require_f1(metric)
    return np.dtype(np.uint8)


def encode(metric: str, values: NDArray[np.floating], num_samples: NDArray[np.integer]) -> Codes:
    """Return the codes of metric values."""
    if metric == "loss":
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
        top = np.uint64(np.float32(np.inf).view(np.uint32) >> 15) - np.uint64(1)
        rounded = (bits + np.uint64(1 << 14)) >> np.uint64(15)
        return np.asarray(np.minimum(rounded, top), dtype=np.uint16)
    if metric == "accuracy":
        return np.asarray(np.rint(values * num_samples)).astype(dtype(metric, num_samples))
    _require_f1(metric)
    return np.asarray(np.rint(values * F1_STEPS)).astype(np.uint8)


def decode(metric: str, codes: Codes, num_samples: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return the float32 values of codes; `encode(decode(codes)) == codes`."""
    if metric == "loss":
        return (codes.astype(np.uint32) << np.uint32(15)).view(np.float32)
    if metric == "accuracy":
        return np.asarray(codes / np.maximum(num_samples, 1), dtype=np.float32)
    _require_f1(metric)
    return (codes / np.float32(F1_STEPS)).astype(np.float32)


def _require_f1(metric: str) -> None:
    """Refuse what is neither a loss nor an accuracy nor a macro-F1."""
    if metric != "f1":
        raise unknown_name("stored metric", metric, DESCRIPTION)


Numbers = NDArray[np.int32]
Contexts = NDArray[np.uint8]

MOST = (1 << 15) - 1
"""Numbers lie between -MOST - 1 and MOST."""
CONTEXTS = 32
_TOKENS = 64
_PLAIN = 16
"""Numbers below it, their signs folded in, are tokens of their own."""
_BITS = 12
_LOW = 1 << 16
_LIMIT = 1 << 13
"""When a context has seen so many tokens, all its counts are halved: the newest count most."""
_PRIOR = 1 << 10
"""How much weight the first guess has; a token that was seen counts 16."""
_MOST_LANES = 1 << 13
_FEWEST_PER_LANE = 1 << 10


def _split() -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int32]]:
    """Return the token of every folded number, and bits and first folded number of every token."""
    folded = np.arange(2 * (MOST + 1))
    octave = np.frexp(np.maximum(folded, _PLAIN).astype(np.float64))[1] - 1
    token = _PLAIN + 4 * (octave - 4) + ((folded >> (octave - 2)) & 3)
    token = np.where(folded < _PLAIN, folded, token)
    first = np.searchsorted(token, np.arange(_TOKENS)).astype(np.int32)
    bits = np.where(np.arange(_TOKENS) < _PLAIN, 0, np.arange(_TOKENS) // 4 - 2)
    return token.astype(np.uint8), bits.astype(np.uint8), first


_TOKEN, _EXTRA, _FIRST = _split()


class Frequencies:
    """How often tokens are expected in every context, learned from those that were coded."""

    def __init__(self) -> None:
        # Before anything was seen, context c is for numbers of 2^(c / 2 - 5).
        size = _FIRST / 2.0
        scale = 4.0 ** (np.arange(CONTEXTS) // 2 - 5)[:, None] + 0.1
        expected = (1 << _EXTRA.astype(np.int64)) * scale / (scale + size * size)
        share = expected / expected.cumsum(axis=1)[:, -1:]
        self._counts = 1 + np.floor(share * _PRIOR).astype(np.int64)
        self._update()

    def _update(self) -> None:
        sums = self._counts.cumsum(axis=1)
        free = (1 << _BITS) - _TOKENS  # each token keeps one, however rare it is
        ends = sums * free // sums[:, -1:] + np.arange(1, _TOKENS + 1)
        widths = np.diff(ends, axis=1, prepend=0)
        self.widths = widths.astype(np.uint32).ravel()
        self.starts = (ends - widths).astype(np.uint32).ravel()

    def look_up(self) -> NDArray[np.uint16]:
        """Return which token, of which context, every slot belongs to."""
        return np.repeat(np.arange(self.widths.size, dtype=np.uint16), self.widths)

    def learn(self, entries: NDArray[np.integer]) -> None:
        """Count tokens: each a context times 64, plus the token."""
        self._counts += 16 * np.bincount(entries, minlength=CONTEXTS * _TOKENS).reshape(
            CONTEXTS, _TOKENS
        )
        while (full := self._counts.sum(axis=1) > 16 * _LIMIT).any():
            self._counts[full] = (self._counts[full] + 1) // 2
        self._update()


class Encoder:
    """Codes numbers into words; they are made when all numbers are there."""

    def __init__(self) -> None:
        self._frequencies = Frequencies()
        self._steps: list[tuple[NDArray[np.uint32], ...]] = []

    @property
    def count(self) -> int:
        """How many numbers were coded."""
        return sum(step[0].size for step in self._steps)

    def code(self, contexts: Contexts, numbers: Numbers | None) -> Numbers:
        """Code numbers, each in its context, and return them."""
        if numbers is None:
            raise TypeError("an encoder needs the numbers")
        folded = (numbers << 1) ^ (numbers >> 31)
        tokens = _TOKEN[folded]
        entries = contexts.astype(np.int64) * _TOKENS + tokens
        model = self._frequencies
        rest = (folded - _FIRST[tokens]).astype(np.uint32)
        self._steps.append((model.widths[entries], model.starts[entries], _EXTRA[tokens], rest))
        model.learn(entries)
        return numbers

    def close(self) -> NDArray[np.uint16]:
        """Return the words: the states of the lanes, then what they read."""
        lanes = lanes_for(self.count)
        state = np.full(lanes, _LOW, np.uint64)
        written: list[NDArray[np.uint16]] = []
        for step in reversed(self._steps):
            for start in reversed(range(0, step[0].size, lanes)):
                width, first, bits, rest = (part[start : start + lanes] for part in step)
                x = state[: width.size]
                x = _make_room(x, np.uint64(1 << 32) >> bits.astype(np.uint64), written)
                x = (x << bits.astype(np.uint64)) | rest
                wide = width.astype(np.uint64)
                x = _make_room(x, wide << np.uint64(32 - _BITS), written)
                state[: width.size] = ((x // wide) << np.uint64(_BITS)) + x % wide + first
        states = state.astype("<u4").view("<u2")
        return np.concatenate([states, *reversed(written)]).astype(np.uint16)


def _make_room(
    state: NDArray[np.uint64], limit: NDArray[np.uint64], written: list[NDArray[np.uint16]]
) -> NDArray[np.uint64]:
    full = state >= limit
    written.append((state[full] & np.uint64(_LOW - 1)).astype(np.uint16))
    return np.where(full, state >> np.uint64(16), state)


def lanes_for(count: int) -> int:
    """Return how many lanes share the work of coding so many numbers."""
    return min(max(count // _FEWEST_PER_LANE, 1), _MOST_LANES)


class Decoder:
    """Reads numbers back from words."""

    def __init__(self, words: NDArray[np.uint16], lanes: int) -> None:
        if words.size < 2 * lanes:
            raise ValueError("the coded numbers end too early")
        self._state = words[: 2 * lanes].astype("<u2").view("<u4").astype(np.uint32)
        self._words = words[2 * lanes :].astype(np.uint32)
        self._position = 0
        self._frequencies = Frequencies()

    def code(self, contexts: Contexts, numbers: Numbers | None) -> Numbers:
        """Read the next numbers, one for each context; `numbers` is not looked at."""
        table = self._frequencies.look_up()
        entries = np.empty(contexts.size, np.uint16)
        rests = np.empty(contexts.size, np.int32)
        for start in range(0, contexts.size, self._state.size):
            part = slice(start, start + self._state.size)
            entries[part], rests[part] = self._take(contexts[part], table)
        self._frequencies.learn(entries)
        folded = _FIRST.take(entries % _TOKENS) + rests
        return (folded >> 1) ^ -(folded & 1)

    def _take(
        self, contexts: Contexts, table: NDArray[np.uint16]
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint32]]:
        x = self._state[: contexts.size]
        slot = x & np.uint32((1 << _BITS) - 1)
        entries = table[(contexts.astype(np.uint32) << np.uint32(_BITS)) + slot]
        model = self._frequencies
        x = model.widths[entries] * (x >> np.uint32(_BITS)) + slot - model.starts[entries]
        x = self._fill(x)
        bits = _EXTRA[entries % _TOKENS].astype(np.uint32)
        rest = x & ((np.uint32(1) << bits) - np.uint32(1))
        self._state[: contexts.size] = self._fill(x >> bits)
        return entries, rest

    def _fill(self, state: NDArray[np.uint32]) -> NDArray[np.uint32]:
        low = np.flatnonzero(state < _LOW)
        end = self._position + low.size
        if end > self._words.size:
            raise ValueError("the coded numbers end too early")
        state[low] = (state[low] << np.uint32(16)) | self._words[self._position : end]
        self._position = end
        return state

    def close(self) -> None:
        """Check that all words were read and every lane is where its encoder began."""
        if self._position != self._words.size or (self._state != _LOW).any():
            raise ValueError("the coded numbers do not end where they must")


Coder = Encoder | Decoder
"""What both directions share is `code`: a model calls it and cannot tell them apart."""
