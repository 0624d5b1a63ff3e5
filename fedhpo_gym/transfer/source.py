"""What a set of tuned tasks is to HPO-B's interface, and the tasks of FedHPO-B as one."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.checks import as_reals, shown
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.stored.meta_data import MODEL_SUFFICES, MetaData, known_spaces, open_meta_data

SEEDS: Final = ("test0", "test1", "test2", "test3", "test4")
"""HPO-B's names of the initial rows of a run."""
Reals = NDArray[np.floating]


class Response(Protocol):
    """A model of a task: (n, F) points in [0, 1] -> (n,) responses; higher is better."""

    y_min: float  # the response that counts as 0
    y_max: float  # the response that counts as 1

    def __call__(self, x: ArrayLike, /) -> Reals: ...


@runtime_checkable
class MetaSource(Protocol):
    """Where evaluations of tuned tasks come from.

    A split is "train", "train-augmented", "validation" or "test". All tables of a search space
    have the same columns.
    """

    def search_spaces(self, split: str) -> Sequence[str]:
        """Return the ids of the search spaces of a split."""

    def datasets(self, space: str, split: str) -> Sequence[str]:
        """Return the ids of the data sets of a search space, none where a split lacks it."""

    def table(self, space: str, dataset: str, split: str) -> tuple[Reals, Reals]:
        """Return (n, F) configurations in [0, 1] and their (n,) responses; higher is better."""

    def initial(self, space: str, dataset: str) -> Mapping[str, Sequence[int]]:
        """Return the rows that runs begin with, by seed of `SEEDS`."""

    def surrogate(self, space: str, dataset: str) -> Response | None:
        """Return the model of a task, if there is one."""

    def decode(self, space: str, x: ArrayLike) -> Mapping[str, Any]:
        """Return what an (F,) configuration in [0, 1] means, in natural units, by name."""


Tables = MutableMapping[str, MutableMapping[str, dict[str, Any]]]
"""{search space: {data set: {"X": n lists of F values, "y": n lists of one}}}, as HPO-B's."""


AUGMENTED = "train-augmented"
"""A split of ours, too: each training task at the lower client sample rate is one more."""
LOWER = "@lower-rate"


class OwnTasks:
    """Search spaces "LR", "Joint" and "Private": responses are scores at full fidelity.

    A configuration is what `SearchSpace.features` says of it, a response the share of the labels'
    entropy that its model explains (`MetaData.scores`).
    """

    def search_spaces(self, split: str) -> Sequence[str]:
        """Return those whose results are on this machine.

        Raises:
            MissingDataError: the numbers are in a distribution that is not installed.
        """
        del split
        spaces = known_spaces()
        for space in spaces:
            open_meta_data(space).require_installed()
        return spaces

    def datasets(self, space: str, split: str) -> Sequence[str]:
        """Return the names of the tasks of a split."""
        data = open_meta_data(space)
        names = [data.names[i] for i in data.where(split.removesuffix("-augmented"))]
        return [*names, *(f"{name}{LOWER}" for name in names)] if split == AUGMENTED else names

    def table(self, space: str, dataset: str, split: str) -> tuple[Reals, Reals]:
        require_known("data set", dataset, self.datasets(space, split))
        data = open_meta_data(space)
        index, rate = data.index(dataset.removesuffix(LOWER)), 0 if LOWER in dataset else -1
        return data.features[index], data.scores[index, :, rate, -1]

    def initial(self, space: str, dataset: str) -> Mapping[str, Sequence[int]]:
        data = open_meta_data(space)
        designs = data.arrays["initial"][data.index(dataset.removesuffix(LOWER))]
        return {seed: design.tolist() for seed, design in zip(SEEDS, designs, strict=True)}

    def surrogate(self, space: str, dataset: str) -> OwnSurrogate | None:
        """Return what the surrogate of a space says of a task; None where it ranks it badly.

        It knows nothing of the lower client sample rate.
        """
        data = open_meta_data(space)
        if dataset.endswith(LOWER):
            return None
        index = data.index(dataset)
        return OwnSurrogate(data, index) if data.tau[index] >= MODEL_SUFFICES else None

    def decode(self, space: str, x: ArrayLike) -> Mapping[str, Any]:
        """Return the configuration of an (F,) point."""
        data = open_meta_data(space)
        width, point = data.features.shape[2], as_reals("x", x).astype(np.float64)
        if point.shape != (width,) or not (np.abs(point - 0.5) <= 0.5).all():
            raise InvalidArgumentError(
                f"`x` must be {width} numbers in [0, 1], got {shown(x)}; a category has one of "
                "them for each of its values"
            )
        return data.space.decode(data.space.from_features(point[None])[0])


class OwnSurrogate:
    """Responses of one task, as the model of its search space predicts them.

    Attributes:
        y_min: the lowest response that counts, 0.
        y_max: the highest that it predicts of any stored configuration.
    """

    def __init__(self, data: MetaData, task: int) -> None:
        self._data, self._task = data, task
        self.y_min, self.y_max = data.model_range(task)

    def __call__(self, x: ArrayLike, /) -> Reals:
        """Return the (n,) responses of (n, F) points."""
        points = np.atleast_2d(np.asarray(x, np.float64))
        return self._data.predicted_scores(self._task, self._data.space.from_features(points))
