"""Stored curves without what follows from the rest: format 2 of tables and samples.

Losses, hits and macro-F1 are predicted from neighbours (`neighbours.py`), and what predictions miss
is entropy coded (`rans.py`). Two things are not coded at all. The best model so far is that of the
round before, or the current one, unless it was found in a round that is not stored. And how many
hits there are leaves few values of macro-F1: which ones occur is listed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.tables import codec
from fedhpo_gym.tables.neighbours import Cells, Known, Path, Prediction, choose_paths
from fedhpo_gym.tables.rans import Coder, Decoder, Encoder, Integers, lanes_for
from fedhpo_gym.tables.shares import Listed

WHICH = ("best", "current")
NAME = "neighbours-rans-1"
DESCRIPTION = (
    "curves are predicted from neighbouring cells and rounds, and the residuals are entropy coded "
    "(rANS, adaptive); the best model so far is derived from best_round; macro-F1 is a number in a "
    "list of those that occur with as many hits. fedhpo_gym.tables reads it with numpy alone"
)
WORDS = "words"
_ORDER = ("loss", "accuracy", "f1")
"""Hits come before the macro-F1 that depends on them."""


@dataclass(frozen=True)
class Layout:
    """What a card says of the curves.

    Attributes:
        shape: axes of the cells: those of `best_round`.
        axis: which of them is that of the rounds.
        axes: those along which neighbouring cells are alike.
        rounds: the stored rounds.
        seeds: (cells,) position of every cell's seed.
        samples: (seeds, clients, splits).
        splits: names of the splits.
        metrics: names of the metrics.
    """

    shape: tuple[int, ...]
    axis: int
    axes: tuple[int, ...]
    rounds: tuple[int, ...]
    seeds: Integers
    samples: NDArray[np.int64]
    splits: tuple[str, ...]
    metrics: tuple[str, ...]

    @property
    def packed(self) -> list[str]:
        """Metrics that are packed; those of huge clients are not."""
        return [m for m in _ORDER if m in self.metrics and self.limits(m).max() <= 1 << 16]

    def limits(self, metric: str) -> Integers:
        """Return how many codes every column has."""
        sizes = [codec.dtype(metric, self.samples[:, :, s]) for s in range(len(self.splits))]
        limits = [1 << 8 * size.itemsize for size in sizes]
        return np.repeat(np.array(limits, np.int64), self.samples.shape[1])

    def columns(self, which: str, metric: str) -> list[str]:
        """Return the names of the arrays that are the columns of a group, a split each."""
        return [f"{which}_{split}_{metric}" for split in self.splits]

    @property
    def names(self) -> list[str]:
        """All arrays that are packed."""
        return [n for w in WHICH for m in self.packed for n in self.columns(w, m)]


class Model:
    """Codes all curves in one order; it is the same model for both directions."""

    def __init__(
        self,
        layout: Layout,
        coder: Coder,
        best_round: NDArray[np.integer],
        paths: Sequence[Path],
        derived: bool,
    ) -> None:
        self._layout, self._coder = layout, coder
        self._cells = Cells(layout.shape, [*paths, (layout.axis,)] if not paths else paths)
        self._same, self._now = following(layout, best_round)
        if not derived:
            self._same[:], self._now[:] = False, False

    def run(
        self, values: Mapping[tuple[str, str], NDArray[np.int32]], listed: Listed | None
    ) -> None:
        """Code every group; a decoder fills the arrays."""
        for which in reversed(WHICH):
            surprise: NDArray[np.int16] | None = None
            for metric in self._layout.packed:
                one = values[which, metric]
                other = values["current", metric] if which == "best" else None
                hits = values.get((which, "accuracy")) if metric == "f1" else None
                use = listed if hits is not None else None
                surprise = self._group(one, other, self._layout.limits(metric), use, hits, surprise)
