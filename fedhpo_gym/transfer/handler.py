"""The interface of HPO-B: methods written for it run unchanged on its tasks and on FedHPO-B.

It reimplements `hpob_handler.py` of HPO-B (Pineda Arango et al., 2021) with the same names, modes
and protocols. Four defects of the original are corrected by default; `HPOBHandler` lists them. The
handler reads tables and surrogates through a `MetaSource`, and only when they are needed.
"""

from collections.abc import Callable, Mapping, MutableMapping
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.arrays import Reals
from fedhpo_gym.core.checks import Axes, Range, as_integer, short_repr, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, require_known
from fedhpo_gym.core.plugins import LazyDict
from fedhpo_gym.transfer.source import SEEDS, FedHPOBTasks, HPOBFiles, MetaSource, Tables

FEDHPO_B: Final = "FedHPO-B"
"""Value of `root_dir` for the meta-data set of this package."""
Mode = Literal["v1", "v2", "v3", "v3-test", "v3-train-augmented"]
_TRAIN: Final[Mapping[str, str]] = {"v3": "train", "v3-train-augmented": "train-augmented"}
_MERGED: Final[Mapping[str, tuple[str, ...]]] = {
    "v1": ("train-augmented", "test", "validation"),
    "v2": ("train", "test", "validation"),
}
"""Splits on which a mode tests; other modes test on "test" only."""


class HPOBHandler:
    """Tasks of a meta-data set, and runs of methods on them.

    Defects of HPO-B are corrected unless `mended` is false:

    - `evaluate` ends when all rows are observed, and a task with equal responses is solved from the
      start. HPO-B continues, or divides by zero.
    - `evaluate_continuous` takes initial responses from the surrogate; HPO-B takes them from the
      table.
    - The last value of `evaluate_continuous` is of the last trial; HPO-B repeats the one before.
    - Points outside [0, 1] are clipped.

    Other differences do not change results: nothing is printed, data are read at their first use,
    and `surrogates_dir` needs no trailing slash.

    Args:
        root_dir: a folder with HPO-B's files, "FedHPO-B", or your own source.
        mode: "v3-test" has only the test tasks, "v3" all splits, "v3-train-augmented" all splits
            with the rare search spaces in training; "v1" (with the rare ones) and "v2" test on
            the tasks of all splits.
        surrogates_dir: a folder with HPO-B's surrogates, required by `evaluate_continuous`.
        mended: whether defects of HPO-B are corrected.

    Attributes:
        mode: as above.
        seeds: names of the five sets of initial rows.

    Raises:
        MissingDataError: a required file is missing.
        DamagedDataError: a file has another format.
        InvalidArgumentError: an argument breaks a rule, here and in the methods.
    """

    @validate_call
    def __init__(
        self,
        root_dir: str | Path | MetaSource = FEDHPO_B,
        mode: Mode = "v3-test",
        surrogates_dir: Path = Path("saved-surrogates"),
        mended: bool = True,
    ) -> None:
        self._source: MetaSource
        if not isinstance(root_dir, str | Path):
            self._source = root_dir
        elif str(root_dir) == FEDHPO_B:
            self._source = FedHPOBTasks()
        else:
            self._source = HPOBFiles(Path(root_dir), surrogates_dir)
        self.mode, self.seeds, self._mended = mode, list(SEEDS), mended
        self.get_search_spaces()  # so that missing files are reported at once

    @cached_property
    def meta_test_data(self) -> Tables:
        """The tasks on which methods are evaluated."""
        return self._tables(*_MERGED.get(self.mode, ("test",)))

    @cached_property
    def meta_train_data(self) -> Tables | None:
        """The tasks for meta-learning, or None in modes without training split."""
        return self._tables(_TRAIN[self.mode]) if self.mode in _TRAIN else None

    @cached_property
    def meta_validation_data(self) -> Tables | None:
        """The tasks for validation, or None in modes without validation split."""
        return self._tables("validation") if self.mode in _TRAIN else None

    @cached_property
    def bo_initializations(self) -> MutableMapping[str, MutableMapping[str, dict[str, list[int]]]]:
        """Initial rows of runs: {search space: {data set: {seed: five rows}}}."""

        def rows(space: str, dataset: str) -> dict[str, list[int]]:
            initial_rows = self._source.initial(space, dataset)
            return {seed: list(indices) for seed, indices in initial_rows.items()}

        def by_dataset(space: str) -> LazyDict[dict[str, list[int]]]:
            return LazyDict(
                {name: partial(rows, space, name) for name in self.meta_test_data[space]}
            )

        return LazyDict({space: partial(by_dataset, space) for space in self.meta_test_data})

    @cached_property
    def surrogates_stats(self) -> dict[str, dict[str, float]]:
        """The responses that are normalised to 0 and 1, for all test tasks with a surrogate."""
        tasks = [
            (space, dataset)
            for space, datasets in self.meta_test_data.items()
            for dataset in datasets
        ]
        surrogates = {
            f"surrogate-{s}-{dataset}": self._source.surrogate(s, dataset) for s, dataset in tasks
        }
        return {
            name: {"y_min": dataset.y_min, "y_max": dataset.y_max}
            for name, dataset in surrogates.items()
            if dataset is not None
        }

    @cached_property
    def search_space_dims(self) -> MutableMapping[str, int]:
        """Number of columns by search space."""

        def width(space: str) -> int:
            return len(next(iter(self.meta_test_data[space].values()))["X"][0])

        return LazyDict({space: partial(width, space) for space in self.meta_test_data})

    def _tables(self, *splits: str) -> Tables:
        """Return the tables of some splits; the first split determines the search spaces."""

        def entry(space: str, dataset: str, split: str) -> dict[str, Any]:
            x, y = self._source.table(space, dataset, split)
            return {"X": x.tolist(), "y": y.reshape(-1, 1).tolist()}

        def by_dataset(space: str) -> LazyDict[dict[str, Any]]:
            split_of = {name: s for s in splits for name in self._source.datasets(space, s)}
            return LazyDict({n: partial(entry, space, n, split) for n, split in split_of.items()})

        spaces = self._source.search_spaces(splits[0])
        return LazyDict({space: partial(by_dataset, space) for space in spaces})

    def get_search_spaces(self) -> list[str]:
        """Return the ids of the search spaces of the test tasks."""
        return list(self.meta_test_data)

    @validate_call
    def get_datasets(self, search_space: str) -> list[str]:
        """Return the ids of the data sets of the test tasks in a search space."""
        require_known("search space", search_space, self.meta_test_data)
        return list(self.meta_test_data[search_space])

    def get_seeds(self) -> list[str]:
        """Return the names of the initial rows."""
        return self.seeds

    @validate_call
    def get_search_space_dim(self, search_space: str) -> int:
        """Return the number of columns of a search space."""
        require_known("search space", search_space, self.search_space_dims)
        return self.search_space_dims[search_space]

    @validate_call
    def decode(self, search_space: str, x: ArrayLike) -> dict[str, Any]:
        """Return an (F,) configuration in [0, 1] in natural units; HPO-B lacks this method."""
        return dict(self._source.decode(search_space, x))

    @validate_call
    def normalize(
        self, y: Annotated[Reals, Axes()], y_min: float | None = None, y_max: float | None = None
    ) -> Reals:
        """Return (y - y_min) / (y_max - y_min), by default with the minimum and maximum of y."""
        if y_min is None:
            y_min, y_max = float(np.min(y)), float(np.max(y))
        elif y_max is None:
            raise InvalidArgumentError("`y_max` must be a number where `y_min` is, got None")
        if self._mended and y_min == y_max:
            return np.where(y >= y_max, 1.0, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return (y - y_min) / (y_max - y_min)

    @validate_call
    def evaluate(
        self,
        bo_method: Any = None,
        search_space_id: str | None = None,
        dataset_id: str | None = None,
        seed: str | None = None,
        n_trials: Annotated[int, Range(1)] = 10,
    ) -> list[float]:
        """Return the best response so far, in [0, 1], of the initial rows and after each trial.

        `bo_method.observe_and_suggest(X_obs=, y_obs=, X_pen=)` gets the (o, F) observed rows, their
        (o, 1) responses and the (p, F) pending rows, and returns the index of a pending row. After
        the best response of the task is reached, it fills the remaining of (n_trials + 1,) values.
        """
        suggest = _require_suggest(bo_method)
        x, y, observed = self._begin(search_space_id, dataset_id, seed)
        y = np.asarray(self.normalize(y), np.float64)
        pending = [row for row in range(len(x)) if row not in observed]
        best, history = float(y.max()), [float(y[observed].max())]
        while len(history) <= n_trials and (pending or not self._mended):
            suggestion = suggest(X_obs=x[observed], y_obs=y[observed], X_pen=x[pending])
            observed.append(pending.pop(_require_pending_index(suggestion, len(pending))))
            history.append(float(y[observed].max()))
            if history[-1] == best:
                break
        return history + [best] * (n_trials + 1 - len(history))

    @validate_call
    def evaluate_continuous(
        self,
        bo_method: Any = None,
        search_space_id: str | None = None,
        dataset_id: str | None = None,
        seed: str | None = None,
        n_trials: Annotated[int, Range(1)] = 10,
    ) -> list[float]:
        """Return the best response of the surrogate so far, as `evaluate` does for the table.

        `bo_method.observe_and_suggest(X_obs, y_obs)` gets (o, F) points and their (o, 1) responses,
        and returns a new point in [0, 1]^F, or several as rows.

        Raises:
            MissingDataError: the task has no surrogate.
        """
        suggest = _require_suggest(bo_method)
        x_all, y_all, rows = self._begin(search_space_id, dataset_id, seed)
        surrogate = self._source.surrogate(str(search_space_id), str(dataset_id))
        if surrogate is None:
            raise MissingDataError(
                f"there is no surrogate of data set {dataset_id} in search space "
                f"{search_space_id}; name the folder of surrogates as `surrogates_dir`"
            )
        x, y = x_all[rows], y_all[rows]
        if self._mended:
            y = surrogate(x).reshape(-1, 1).astype(np.float64)
        bounds = surrogate.y_min, surrogate.y_max
        history: list[float] = []
        while len(history) < n_trials and not (history and y.max() >= surrogate.y_max):
            scaled = np.clip(self.normalize(y, *bounds), 0.0, 1.0)
            history.append(float(scaled.max()))
            new = _require_points(suggest(x, scaled), x.shape[1])
            new = np.clip(new, 0.0, 1.0) if self._mended else new
            x, y = np.vstack([x, new]), np.vstack([y, surrogate(new).reshape(-1, 1)])
        final = float(np.clip(self.normalize(y, *bounds), 0.0, 1.0).max())
        history.append(final if self._mended else history[-1])
        return history + [1.0] * (n_trials + 1 - len(history))

    def _begin(
        self, space: str | None, dataset: str | None, seed: str | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], list[int]]:
        """Return the (n, F) table of a task, its (n, 1) responses, and the initial rows."""
        require_known("search space", str(space), self.meta_test_data)
        require_known("data set", str(dataset), self.meta_test_data[str(space)])
        initial = self.bo_initializations[str(space)][str(dataset)]
        require_known("seed", str(seed), initial)
        entry, rows = self.meta_test_data[str(space)][str(dataset)], list(initial[str(seed)])
        x, y = np.array(entry["X"], np.float64), np.array(entry["y"], np.float64)
        if not rows or len(set(rows)) < len(rows) or not 0 <= min(rows) <= max(rows) < len(x):
            raise InvalidArgumentError(
                f"`bo_initializations` must name different rows, below {len(x)} for data set "
                f"{dataset} in search space {space}, got {short_repr(rows)}"
            )
        return x, y.reshape(-1, 1), rows


def _require_suggest(bo_method: Any) -> Callable[..., Any]:
    suggest: Callable[..., Any] | None = getattr(bo_method, "observe_and_suggest", None)
    if suggest is None or not callable(suggest):
        raise InvalidArgumentError(
            f"`bo_method` must be an object with `observe_and_suggest`, got {short_repr(bo_method)}"
        )
    return suggest


def _require_pending_index(value: object, count: int) -> int:
    """Check the index of a pending row; negative ones count from the end, as in HPO-B."""
    index = as_integer(value)
    if index is None or not -count <= index < count:
        raise InvalidArgumentError(
            f"`observe_and_suggest` must return the index of one of {count} pending rows, an "
            f"integer, got {short_repr(value)}"
        )
    return index


def _require_points(value: Any, width: int) -> NDArray[np.float64]:
    """Return one or more points as rows, after checking them."""
    try:
        points = np.asarray(value, np.float64).reshape(-1, width)
    except (TypeError, ValueError):
        points = np.empty((0, width))
    if not len(points) or np.isnan(points).any():
        raise InvalidArgumentError(
            f"`observe_and_suggest` must return {width} numbers, or rows of as many, got "
            f"{short_repr(value)}"
        )
    return points
