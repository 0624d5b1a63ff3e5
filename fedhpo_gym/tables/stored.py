"""What tables and samples have in common: a card, seeds, and lazily read arrays of codes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.archive import StoredArrays
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import position
from fedhpo_gym.identity import Identity
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.tables import codec

WHICH = ("best", "current")


class StoredCurves:
    """Learning curves of many courses, as codes.

    Attributes:
        card: everything but the numbers.
        identity: the variant of a problem that they belong to.
        name: stem of its files.
        space: the configurations.
        seeds: seeds of the repetitions.
        num_samples: (seeds, clients, splits) samples.
        splits: parts of the data, in the order of the axes that have them.
        metrics: names of what was measured, in the order of the axes that have them.
        sha256: checksum of the arrays.
    """

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
        self.seeds: tuple[int, ...] = tuple(content["seeds"])
        self.num_samples = np.array(content["num_samples"], dtype=np.int64)
        self.splits: tuple[str, ...] = tuple(content["splits"])
        self.metrics: tuple[str, ...] = tuple(content["metrics"])
        self.sha256: str = content["sha256"]
        self._repair: str = content["build_command"]

    @cached_property
    def _codes(self) -> Mapping[str, NDArray[Any]]:
        """All arrays, decompressed after the checksum of the file was verified."""
        return self._arrays.read(self.sha256, self._repair)

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
