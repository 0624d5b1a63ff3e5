"""What tables and samples have in common: a card, seeds, and lazily read arrays of codes."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.archive import DIGEST, StoredArrays, write_archive
from fedhpo_gym.checks import as_integer
from fedhpo_gym.errors import DamagedDataError, InvalidArgumentError, TooLargeError
from fedhpo_gym.evaluation.records import position
from fedhpo_gym.identity import Identity
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.tables import codec
from fedhpo_gym.tables.curves import Layout
from fedhpo_gym.tables.packed import ENTRY, WORDS, Packing, pack, unpack
from fedhpo_gym.typed import as_typed

WHICH = ("best", "current")
FORMAT = 2
"""The format of cards."""
FORMER = "former_sha256"
"""Entry of a card: checksums that stood for the same numbers before they were packed."""


class StoredCurves(ABC):
    """Learning curves of many courses, as codes.

    Attributes:
        card: everything but the numbers.
        identity: the variant of a problem that they belong to.
        name: stem of its files.
        space: the configurations.
        fidelity_space: the stored rounds and the client sample rates.
        rates: client sample rates.
        seeds: seeds of the repetitions.
        rounds: rounds whose results are stored.
        num_samples: (seeds, clients, splits) samples.
        splits: parts of the data, in the order of the axes that have them.
        metrics: names of what was measured, in the order of the axes that have them.
        sha256: checksum of the arrays.
        digest: checksum of everything that decides a number, in the card and in the arrays.
        former: checksums that older records, and surrogates fitted on it, may name it by.
        axis: which axis of the curves counts rounds.
    """

    axis: ClassVar[int]

    def __init__(self, content: dict[str, Any], arrays: StoredArrays) -> None:
        """Take what the cards of tables and samples share.

        Args:
            content: content of the card.
            arrays: its arrays.
        """
        self._arrays = arrays
        self.card: Mapping[str, Any] = MappingProxyType(content)
        self.identity = Identity.from_card(content)
        self.name = self.identity.name
        self.space = SearchSpace.from_dict(content["space"])
        self.fidelity_space = SearchSpace.from_dict(content["fidelity_space"])
        self.rounds = tuple(int(r) for r in self.fidelity_space["round"].grid)
        self.rates = tuple(float(r) for r in self.fidelity_space["client_sample_rate"].grid)
        self.splits: tuple[str, ...] = tuple(as_typed("splits", content["splits"], Sequence[str]))
        self.metrics: tuple[str, ...] = tuple(
            as_typed("metrics", content["metrics"], Sequence[str])
        )
        self.seeds, self.num_samples = seeds_and_samples(content, len(self.splits))
        self.sha256: str = content["sha256"]
        self.digest: str = content[DIGEST]
        self.former: tuple[str, ...] = (
            self.sha256,
            *as_typed(FORMER, content.get(FORMER, []), Sequence[str]),
        )
        self._repair: str = content["build_command"]

    def require_installed(self) -> None:
        """Check that the arrays are on this machine, see `StoredArrays.require_installed`."""
        self._arrays.require_installed()

    @abstractmethod
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of all arrays, as the card calls for them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all arrays."""
        return tuple(self._shapes())

    def _layout(self) -> Layout:
        """Return what the card says of the curves."""
        return layout_of(self.card, self._shapes()["best_round"], self.axis)

    @abstractmethod
    def _cell_seeds(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
        """Return the position of every cell's seed among the seeds."""

    def _packing(self) -> Packing:
        """Return how the curves are packed."""
        return Packing.from_card(self.card[ENTRY], self._layout())

    def _curve_shapes(self, courses: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of all curves, and of the best rounds.

        Args:
            courses: axes of courses and rounds.
        """
        clients = self.num_samples.shape[1]
        kinds = itertools.product(WHICH, self.splits, self.metrics)
        curves = {"_".join(kind): (*courses, clients) for kind in kinds}
        return {**curves, "best_round": courses}

    @cached_property
    def _codes(self) -> Mapping[str, NDArray[Any]]:
        """All arrays, unpacked after the file and what it declares were verified."""
        shapes, packing, layout = self._shapes(), self._packing(), self._layout()
        own = {name: shape for name, shape in shapes.items() if name not in layout.names}
        arrays = self._arrays.read(self.sha256, self._repair, own | packing.shapes(layout))
        try:
            _require_codes(arrays)
            seeds = self._cell_seeds(arrays)
            return unpack(arrays, layout, seeds, packing, self._arrays.path)
        except TooLargeError:
            raise
        except ValueError as error:
            raise DamagedDataError(
                f"{self._arrays.path}: {error}; delete it and run `{self._repair}`"
            ) from error

    def codes(self, name: str) -> NDArray[Any]:
        """Return a stored array as it is.

        Raises:
            DamagedDataError: the file does not have its checksum; names the repair command.
            InvalidArgumentError: there is no such array.
        """
        if name not in self._codes:
            raise InvalidArgumentError(f"no array {name!r}; there are {sorted(self._codes)}")
        return self._codes[name]

    def split_samples(self, split: str) -> NDArray[np.int64]:
        """Return (seeds, clients) samples of a split.

        Raises:
            UnknownNameError: there is none of this name.
        """
        return self.num_samples[:, :, position("split", split, self.splits)]

    def decoded(
        self, which: str, split: str, metric: str, samples: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return one metric of all courses; `samples` must be broadcastable to its codes."""
        return codec.decode(metric, self.codes(f"{which}_{split}_{metric}"), samples)


def _require_codes(arrays: Mapping[str, NDArray[Any]]) -> None:
    for name in ("best_round", "diverged_at"):
        if arrays[name].dtype.kind != "u":
            raise ValueError(f"{name!r} must hold codes, got {arrays[name].dtype}")


def layout_of(content: Mapping[str, Any], shape: tuple[int, ...], axis: int) -> Layout:
    """Return what a card says of its curves.

    Args:
        content: content of the card.
        shape: axes of the cells: those of `best_round`.
        axis: which of them is that of the rounds. If it is the first, neighbours along all others
            are alike, except seeds, which are the last.
    """
    rounds = SearchSpace.from_dict(content["fidelity_space"])["round"].grid
    return Layout(
        shape,
        axis,
        (axis,) if axis else tuple(range(len(shape) - 1)),
        tuple(int(r) for r in rounds),
        np.array(content["num_samples"], np.int64),
        tuple(content["splits"]),
        tuple(content["metrics"]),
    )


def write_curves(
    folder: Path,
    stem: str,
    card: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    axis: int,
    seeds: NDArray[np.int64],
) -> Path:
    """Write packed arrays, then their card; until the card is there, nothing is.

    The same content gives the same bytes: members carry no time stamp.

    Args:
        folder: where both files go.
        stem: name of the card without its ending.
        card: what it says, besides its format and how the curves are packed.
        arrays: all arrays.
        axis: which axis of the curves counts rounds, see `layout_of`.
        seeds: (cells,) position of every cell's seed.

    Returns:
        Path of the card.

    Raises:
        InvalidArgumentError: an array is missing, or has not the type or shape of its codes.
    """
    layout = layout_of(card, arrays["best_round"].shape, axis)
    members, packing = pack(arrays, layout, seeds)
    said = {**card, "format": FORMAT, ENTRY: packing.to_card()}
    return write_archive(folder, stem, said, members, {WORDS})


def seeds_and_samples(
    content: Mapping[str, Any], splits: int
) -> tuple[tuple[int, ...], NDArray[np.int64]]:
    """Return the seeds on a card, and the (seeds, clients, splits) samples.

    Args:
        content: content of the card.
        splits: how many splits there are.

    Raises:
        ValueError: they are no integers, or do not fit together.
    """
    seeds = tuple(content["seeds"])
    if not seeds or any(as_integer(seed) is None for seed in seeds) or len({*seeds}) < len(seeds):
        raise ValueError(f"`seeds` must be integers that differ, got {seeds!r}")
    samples = np.array(content["num_samples"])
    if samples.dtype.kind != "i" or samples.ndim != 3 or samples.min(initial=0) < 0:
        raise ValueError("`num_samples` must be counts with the axes seeds, clients, splits")
    if not samples.size or samples.shape[::2] != (len(seeds), splits):
        raise ValueError(
            f"`num_samples` must have {len(seeds)} seeds and {splits} splits, got the shape "
            f"{samples.shape}"
        )
    return seeds, samples.astype(np.int64)
