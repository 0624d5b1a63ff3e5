"""One sample: a card (JSON) and arrays of codes (npz) of courses anywhere in a space.

`configuration` (courses, hyperparameters; the position of a category, NaN where a dimension is not
active), `client_sample_rate`, `seed` (position among the seeds) and `point` (number in the design's
sequence) say what the courses are. Arrays named `<which>_<split>_<metric>` have the axes (courses,
rounds, clients); `best_round` and `diverged_at` lack the clients, the latter also the rounds. Codes
and their packing are those of a table.

Where courses were trained for different rounds, `last_round` (courses,) says how far each got. The
codes beyond repeat the last ones, so that they take no room; they are no data.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.archive import reading_card
from fedhpo_gym.core.checks import as_integer
from fedhpo_gym.core.errors import DamagedDataError
from fedhpo_gym.space import Value
from fedhpo_gym.stored.table import FORMAT, StoredCurves, write_curves

AXIS = 1
"""Rounds come second."""
LAST_ROUND = "last_round"
ENDS = "courses_by_last_round"
"""Entry of a card: how many courses end at which round, where not all end at the last."""
SUFFIX = ".sample"


class Sample(StoredCurves):
    """Learning curves of courses that fill a space evenly; not all need have all rounds."""

    axis = AXIS

    def __init__(self, card: Path, command: str = "fedhpo-gym build ID --sample N") -> None:
        repair = f"run `{command}`"
        with reading_card(card, "sample", FORMAT, repair) as (content, arrays):
            super().__init__(content, arrays)
            self._count: int = content["courses"]
            if as_integer(self._count) is None or self._count < 1:
                raise ValueError(f"`courses` must be a positive integer, got {self._count!r}")
            self._ragged = ENDS in content
            self._packing()

    def __len__(self) -> int:
        """Return the number of courses."""
        return self._count

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        one = (self._count,)
        return {
            **self._curve_shapes((*one, len(self.rounds))),
            "configuration": (*one, len(self.space)),
            **dict.fromkeys(("client_sample_rate", "seed", "point", "diverged_at"), one),
            **({LAST_ROUND: one} if self._ragged else {}),
        }

    def _cell_seeds(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
        positions = arrays["seed"]
        if positions.dtype.kind not in "iu" or not np.isin(positions, range(len(self.seeds))).all():
            raise ValueError(f"'seed' must hold positions among {len(self.seeds)} seeds")
        return np.repeat(positions, len(self.rounds))

    def configurations(self) -> list[dict[str, Value]]:
        """Return the configuration of every course."""
        rows = self.codes("configuration").tolist()
        names = self.space.names
        return [self.space.from_numbers(dict(zip(names, row, strict=True))) for row in rows]

    @cached_property
    def trained(self) -> NDArray[np.bool_]:
        """(courses, rounds) whether a course was trained for a round."""
        rounds = np.array(self.rounds)
        if not self._ragged:
            return np.ones((len(self), len(rounds)), np.bool_)
        last = self.codes(LAST_ROUND)
        if not np.isin(last, rounds).all():
            raise DamagedDataError(
                f"{self._arrays.path}: {LAST_ROUND!r} must hold stored rounds; delete it and run "
                f"`{self._repair}`"
            )
        return np.asarray(rounds <= last[:, None])

    def values(self, which: str, split: str, metric: str) -> NDArray[np.float32]:
        """Return one metric of all courses: (courses, rounds, clients) float32."""
        samples = self._course_samples(split)
        found = self.decoded(which, split, metric, samples[:, None])
        if not self._ragged:
            return found
        return np.where(self.trained[..., None], found, np.float32(np.nan))

    def _course_samples(self, split: str) -> NDArray[np.int64]:
        """Return (courses, clients) samples of a split, as the seed of each course deals them."""
        return np.asarray(self.split_samples(split)[self.codes("seed")])

    def objective(self, split: str = "val", metric: str = "loss") -> NDArray[np.float64]:
        """Return f of every course: (courses, rounds), weighted over clients; NaN as `values`."""
        samples = self._course_samples(split)
        weights = samples / samples.sum(axis=1, keepdims=True)
        values = self.values("best", split, metric)
        return np.asarray(np.einsum("crk,ck->cr", values, weights), dtype=np.float64)


def write_sample(folder: Path, card: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write the arrays of a sample, then its card, and return the path of the card."""
    seeds = np.repeat(arrays["seed"], arrays["best_round"].shape[AXIS])
    return write_curves(folder, f"{card['name']}{SUFFIX}", card, arrays, AXIS, seeds)
