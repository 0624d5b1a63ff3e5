"""Sources of meta-data for `HPOBHandler`: FedHPO-B of this package, and the files of HPO-B.

Formats and formulas of the files are those of HPO-B (Pineda Arango et al., 2021). An archive is
scanned once for the positions of its data sets, and each data set is decoded at its first use. The
surrogates are boosted trees in XGBoost's JSON. They are summed with numpy in single precision and
in the order of XGBoost, so that responses equal those of XGBoost bit for bit.
"""

import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from math import exp, inf
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.arrays import Bools, Floats, Integers, Reals, Singles
from fedhpo_gym.core.checks import FOREIGN_ERRORS, as_integer, coerce, coerce_reals, short_repr
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    require_known,
)
from fedhpo_gym.core.files import load_json, read_json, require_bytes
from fedhpo_gym.stored.meta_data import MODEL_SUFFICES, MetaData, known_spaces, open_meta_data

SEEDS: Final = ("test0", "test1", "test2", "test3", "test4")
"""HPO-B's names of sets of initial rows."""


class Response(Protocol):
    """A model of a task that maps (n, F) points in [0, 1] to (n,) responses; higher is better."""

    y_min: float  # the response that is normalised to 0
    y_max: float  # the response that is normalised to 1

    def __call__(self, x: ArrayLike, /) -> Reals: ...


@runtime_checkable
class MetaSource(Protocol):
    """A source of evaluations of tuned tasks.

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
        """Return the initial rows of runs, by seed of `SEEDS`."""

    def surrogate(self, space: str, dataset: str) -> Response | None:
        """Return the model of a task, or None."""

    def decode(self, space: str, x: ArrayLike) -> Mapping[str, Any]:
        """Return an (F,) configuration in [0, 1] in natural units, by name."""


Tables = MutableMapping[str, MutableMapping[str, dict[str, Any]]]
"""{search space: {data set: {"X": n lists of F values, "y": n lists of one}}}, as HPO-B's."""


AUGMENTED = "train-augmented"
"""The split of FedHPO-B that adds each training task at the lower client sample rate."""
LOWER_RATE_SUFFIX = "@lower-rate"


class FedHPOBTasks:
    """Search spaces "LR", "Joint" and "Private" of FedHPO-B, with scores at full fidelity.

    A configuration is encoded by `SearchSpace.features`. A response is the share of the entropy of
    labels that a model explains (`MetaData.scores`).
    """

    def search_spaces(self, split: str) -> Sequence[str]:
        """Return the search spaces with results on this machine.

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
        return (
            [*names, *(f"{name}{LOWER_RATE_SUFFIX}" for name in names)]
            if split == AUGMENTED
            else names
        )

    def table(self, space: str, dataset: str, split: str) -> tuple[Reals, Reals]:
        require_known("data set", dataset, self.datasets(space, split))
        data = open_meta_data(space)
        index, rate = (
            data.index(dataset.removesuffix(LOWER_RATE_SUFFIX)),
            0 if LOWER_RATE_SUFFIX in dataset else -1,
        )
        return data.features[index], data.scores[index, :, rate, -1]

    def initial(self, space: str, dataset: str) -> Mapping[str, Sequence[int]]:
        data = open_meta_data(space)
        designs = data.arrays["initial"][data.index(dataset.removesuffix(LOWER_RATE_SUFFIX))]
        return {seed: design.tolist() for seed, design in zip(SEEDS, designs, strict=True)}

    def surrogate(self, space: str, dataset: str) -> "FedHPOBSurrogate | None":
        """Return the surrogate of a space for a task; None if its ranking of the task is poor.

        There are no surrogates for the lower client sample rate.
        """
        data = open_meta_data(space)
        if dataset.endswith(LOWER_RATE_SUFFIX):
            return None
        index = data.index(dataset)
        return FedHPOBSurrogate(data, index) if data.tau[index] >= MODEL_SUFFICES else None

    def decode(self, space: str, x: ArrayLike) -> Mapping[str, Any]:
        """Return the configuration of an (F,) point."""
        data = open_meta_data(space)
        width, point = data.features.shape[2], coerce_reals("x", x).astype(np.float64)
        if point.shape != (width,) or not (np.abs(point - 0.5) <= 0.5).all():
            raise InvalidArgumentError(
                f"`x` must be {width} numbers in [0, 1], got {short_repr(x)}; a category has one "
                "of them for each of its values"
            )
        return data.space.decode(data.space.from_features(point[None])[0])


class FedHPOBSurrogate:
    """Responses of one task, predicted by the model of its search space.

    Attributes:
        y_min: the lowest response, 0.
        y_max: the highest predicted response of a stored configuration.
    """

    def __init__(self, data: MetaData, task: int) -> None:
        self._data, self._task = data, task
        self.y_min, self.y_max = data.model_range(task)

    def __call__(self, x: ArrayLike, /) -> Reals:
        """Return the (n,) responses of (n, F) points."""
        points = np.atleast_2d(np.asarray(x, np.float64))
        return self._data.predicted_scores(self._task, self._data.space.from_features(points))


REPAIR: Final = "unpack the archives of https://github.com/sebastianpinedaar/hpo-data again"


@contextmanager
def reporting_hpob_damage(path: Path) -> Iterator[None]:
    """Raise errors with the path of a file that is missing or damaged."""
    try:
        yield
    except InvalidArgumentError as error:
        raise DamagedDataError(f"{path} is no file of HPO-B ({error}); {REPAIR}") from error
    except FedHPOError:
        raise
    except OSError as error:
        raise MissingDataError(f"{path} cannot be read ({error}); {REPAIR}") from error
    except FOREIGN_ERRORS as error:
        reason = f"{type(error).__name__}: {error}"
        raise DamagedDataError(f"{path} is no file of HPO-B ({reason}); {REPAIR}") from error


class Trees(NamedTuple):
    """The N nodes of all T trees of a model, in order."""

    left: Integers  # (N,) next node if the feature is below `value`; -1 for a leaf
    right: Integers  # (N,) next node otherwise
    feature: Integers  # (N,)
    value: Singles  # (N,) threshold of a split, response of a leaf
    missing_left: Bools  # (N,) whether a missing feature leads to the left
    roots: Integers  # (T,)
    base: np.float32
    features: int


class BoostedTrees:
    """Boosted regression trees in XGBoost's JSON, read at their first use.

    Attributes:
        y_min: the response that is normalised to 0.
        y_max: the response that is normalised to 1.
    """

    def __init__(self, path: Path, y_min: float, y_max: float) -> None:
        self._path, self.y_min, self.y_max = path, y_min, y_max

    @cached_property
    def trees(self) -> Trees:
        """The model.

        Raises:
            DamagedDataError: the file holds no trees for squared errors.
        """
        with reporting_hpob_damage(self._path):
            return _read_trees(read_json(self._path)["learner"])

    def __call__(self, x: ArrayLike) -> Singles:
        """Return the responses at (n, F) points, where NaN is a missing value: (n,)."""
        trees, points = self.trees, coerce_reals("x", x).astype(np.float32)
        if points.ndim != 2 or points.shape[1] != trees.features:
            raise InvalidArgumentError(
                f"`x` must have rows of {trees.features} values, got an array of shape "
                f"{points.shape}"
            )
        rows = np.arange(len(points))[:, None]
        node = np.tile(trees.roots, (len(points), 1))
        while (is_inner := trees.left[node] >= 0).any():
            values = points[rows, trees.feature[node]]
            is_left = np.where(
                np.isnan(values), trees.missing_left[node], values < trees.value[node]
            )
            node = np.where(is_inner, np.where(is_left, trees.left[node], trees.right[node]), node)
        start = np.full((len(points), 1), trees.base)
        return np.cumsum(np.hstack([start, trees.value[node]]), axis=1, dtype=np.float32)[:, -1]


def _read_trees(learner: Mapping[str, Any]) -> Trees:
    booster, settings = learner["gradient_booster"], learner["learner_model_param"]
    kind = (learner["objective"]["name"], booster["name"], settings["num_class"])
    if kind != ("reg:squarederror", "gbtree", "0") or settings.get("num_target", "1") != "1":
        raise ValueError(f"it is a model of another kind, {kind}")
    features, count = int(settings["num_feature"]), 0
    trees, roots = [], []
    for tree in booster["model"]["trees"]:
        trees.append(_read_tree(tree, features, count))
        roots.append(count)
        count += len(trees[-1][0])
    left_children, right_children, feature, value, missing_left = map(
        np.concatenate, zip(*trees, strict=True)
    )
    base = np.float32(settings["base_score"].strip("[]"))
    if not np.isfinite(base):
        raise ValueError(f"its base_score is {base}")
    return Trees(
        left_children, right_children, feature, value, missing_left, np.array(roots), base, features
    )


def _read_tree(tree: Mapping[str, Any], features: int, offset: int) -> tuple[NDArray[Any], ...]:
    """Return the nodes of a tree, numbered from `offset`, after checking that it is a tree."""
    left_children, right_children, feature = (
        np.array(tree[name], np.int64)
        for name in ("left_children", "right_children", "split_indices")
    )
    value = np.array(tree["split_conditions"], np.float32)
    missing_left = np.array(tree["default_left"], np.bool_)
    is_inner = left_children >= 0
    children = np.concatenate([left_children[is_inner], right_children[is_inner]])
    is_tree = (
        len({len(array) for array in (left_children, right_children, feature, value, missing_left)})
        == 1
        and len(np.unique(children)) == len(children)
        and bool(((children > 0) & (children < len(left_children))).all())
        and bool(((feature >= 0) & (feature < features)).all())
        and bool(np.isfinite(value).all())
    )
    if not len(left_children) or not is_tree or any(tree.get("split_type", ())):
        raise ValueError("one of its trees is none of numeric splits")
    return (
        np.where(is_inner, left_children + offset, -1),
        right_children + offset,
        feature,
        value,
        missing_left,
    )


ARCHIVES: Final[Mapping[str, str]] = {
    "train": "meta-train-dataset.json",
    "train-augmented": "meta-train-dataset-augmented.json",
    "validation": "meta-validation-dataset.json",
    "test": "meta-test-dataset.json",
}
INITIAL, DESCRIPTORS, STATISTICS = (
    *("bo-initializations.json", "meta-dataset-descriptors.json", "summary-stats.json"),
)
LOG_SHIFT: Final = 1e-4
"""Value that HPO-B adds before taking the natural logarithm."""
NO_VALUE: Final = "INVALID"
"""HPO-B's category of a hyperparameter that was not set."""
_QUOTE, _OPEN, _CLOSE = b'"{}'
_CHUNK, _ENTRY, _MAX_NAME_LENGTH = 1 << 24, 128, 200

_DESCRIPTOR: Final[Mapping[str, Any]] = {
    "variables_order": Sequence[str],
    "variables_to_apply_log": Sequence[str],
    "variables": Mapping[str, Mapping[str, Any]],
}
Positions = dict[str, dict[str, tuple[int, int]]]
"""Begin and end of the text of each data set in an archive, by search space."""


class HPOBFiles:
    """HPO-B's files in two folders, as a source of meta-data.

    Args:
        folder: folder of the archives, the initial rows and the descriptors.
        surrogates: folder of the surrogates and their statistics; it may be missing.

    Raises:
        MissingDataError: there is no such folder. Methods raise it for missing files.
    """

    def __init__(self, folder: Path, surrogates: Path) -> None:
        if not folder.is_dir():
            raise MissingDataError(f"there is no folder {folder} with HPO-B's files; {REPAIR}")
        self._folder, self._surrogates = folder, surrogates
        self._places: dict[str, Positions] = {}
        self._texts: dict[Path, dict[str, Any]] = {}

    def search_spaces(self, split: str) -> Sequence[str]:
        """Return the ids of the search spaces of a split, in the order of its archive."""
        return tuple(self._split(split))

    def datasets(self, space: str, split: str) -> Sequence[str]:
        """Return the ids of the data sets of a search space, none where a split lacks it."""
        return tuple(self._split(split).get(space, ()))

    def table(self, space: str, dataset: str, split: str) -> tuple[Floats, Floats]:
        """Return (n, F) configurations in [0, 1] and their (n,) responses; higher is better."""
        require_known("search space", space, self._split(split))
        require_known("data set", dataset, self._split(split)[space])
        path = self._folder / ARCHIVES[split]
        begin, end = self._split(split)[space][dataset]
        label = f"{path}, data set {dataset} of search space {space},"
        require_bytes(end - begin, label)
        with reporting_hpob_damage(path), path.open("rb") as handle:
            handle.seek(begin)
            entry = load_json(handle.read(end - begin), label)
            x = np.array(entry["X"], np.float64)
            y = np.array(entry["y"], np.float64).reshape(-1)
            if x.ndim != 2 or not x.size or len(x) != len(y):
                raise ValueError(f"data set {dataset} has X {x.shape} and y {y.shape}")
            if not (np.isfinite(x).all() and np.isfinite(y).all()):
                raise ValueError(f"data set {dataset} has values that are not finite")
        return x, y

    def initial(self, space: str, dataset: str) -> Mapping[str, Sequence[int]]:
        """Return the initial rows of runs, by seed; empty if HPO-B has none."""
        path = self._folder / INITIAL
        with reporting_hpob_damage(path):
            initial_rows = self._text(path).get(space, {}).get(dataset, {})
            return {
                seed: [_require_row(row) for row in rows] for seed, rows in initial_rows.items()
            }

    def surrogate(self, space: str, dataset: str) -> BoostedTrees | None:
        """Return the model of a task, or None if its file or its statistics are missing."""
        name = f"surrogate-{space}-{dataset}"
        path, statistics = self._surrogates / f"{name}.json", self._surrogates / STATISTICS
        if path.parent != self._surrogates or not (path.is_file() and statistics.is_file()):
            return None
        with reporting_hpob_damage(statistics):
            ends = self._text(statistics).get(name)
            if ends is None:
                return None
            low, high = float(ends["y_min"]), float(ends["y_max"])
            if not -inf < low <= high < inf:
                raise ValueError(f"y_min {low} and y_max {high} of {name} are no range")
            return BoostedTrees(path, low, high)

    def decode(self, space: str, x: ArrayLike) -> dict[str, float | str | None]:
        """Return an (F,) configuration in [0, 1] in natural units, by name.

        A scaled value u of a range is min + u (max - min). If the descriptor lists a logarithm, the
        value is the exponential of this, minus 1e-4. The largest of one-hot columns determines a
        category. None means that a hyperparameter was not set. A hyperparameter with only a `.na`
        column is returned under that name.

        Raises:
            UnknownNameError: no descriptor has this search space.
        """
        path = self._folder / DESCRIPTORS
        descriptors = self._text(path)
        require_known("search space", space, descriptors)
        with reporting_hpob_damage(path):
            order, logged, variables = (
                coerce(name, descriptors[space][name], hint) for name, hint in _DESCRIPTOR.items()
            )
        point = coerce_reals("x", x)
        if point.shape != (len(order),):
            raise InvalidArgumentError(
                f"`x` must have {len(order)} values, those of {', '.join(order)}, got an array of "
                f"shape {point.shape}"
            )
        scaled = dict(zip(order, point.tolist(), strict=True))
        with reporting_hpob_damage(path):
            return {
                name: _natural_value(name, descriptor, scaled, name in logged)
                for name, descriptor in variables.items()
                if not (name.endswith(".na") and name.removesuffix(".na") in variables)
            }

    def _split(self, split: str) -> Positions:
        require_known("split", split, ARCHIVES)
        if split not in self._places:
            with reporting_hpob_damage(self._folder / ARCHIVES[split]):
                self._places[split] = _locate_datasets(self._folder / ARCHIVES[split])
        return self._places[split]

    def _text(self, path: Path) -> dict[str, Any]:
        """Return the content of a small JSON file, which is cached."""
        if path not in self._texts:
            with reporting_hpob_damage(path):
                self._texts[path] = dict(read_json(path))
        return self._texts[path]


def _require_row(value: object) -> int:
    row = as_integer(value)
    if row is None or row < 0:
        raise ValueError(f"{value!r:.80} is no row")
    return row


def _locate_datasets(path: Path) -> Positions:
    """Return the positions of the data sets of an archive, using only its quotes and braces."""
    content = np.memmap(path, np.uint8, "r")
    positions: Positions = {}
    names = ["", "", "", ""]
    depth, begin, quote, entries = 0, 0, -1, 0
    for position, mark in _find_marks(content):
        if mark == _QUOTE and quote < 0:
            quote = position
        elif mark == _QUOTE:
            names[depth] = _decode_name(content[quote + 1 : position])
            quote, entries = -1, entries + 1
            require_bytes(_ENTRY * entries, f"the names in {path}")
        elif quote >= 0:
            continue
        elif mark == _OPEN:
            depth, begin = depth + 1, position
            if depth > 3:
                raise ValueError("it is nested deeper than its data sets")
            if depth == 2:
                positions[names[1]] = {}
        else:
            if depth == 3:
                positions[names[1]][names[2]] = (begin, position + 1)
            depth -= 1
    if depth or quote >= 0 or not positions:
        raise ValueError("its braces do not close")
    return positions


def _find_marks(content: NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Yield the positions of quotes and braces, each with its character code."""
    for begin in range(0, len(content), _CHUNK):
        chunk = content[begin : begin + _CHUNK]
        positions = np.flatnonzero((chunk == _QUOTE) | (chunk == _OPEN) | (chunk == _CLOSE))
        yield from zip((begin + positions).tolist(), chunk[positions].tolist(), strict=True)


def _decode_name(text: NDArray[np.uint8]) -> str:
    """Return the id in a short text between quotes."""
    if len(text) > _MAX_NAME_LENGTH:
        raise ValueError(f"a name has {len(text)} characters")
    return str(json.loads(b'"%b"' % text.tobytes()))


def _natural_value(
    name: str, descriptor: Mapping[str, Any], scaled: Mapping[str, float], is_logged: bool
) -> float | str | None:
    """Return the value of a hyperparameter from the scaled values of all columns."""
    if "categories" in descriptor:
        columns = {
            str(name_of_category): scaled.get(f"{name}.ohe._{name_of_category}", 0.0)
            for name_of_category in descriptor["categories"]
        }
        category = max(columns, key=lambda name_of_category: columns[name_of_category])
        return None if category == NO_VALUE or columns[category] <= 0 else category
    if scaled.get(f"{name}.na", 0.0) > 0.5:
        return None
    value = float(descriptor["min"]) + scaled[name] * (
        float(descriptor["max"]) - float(descriptor["min"])
    )
    return exp(value) - LOG_SHIFT if is_logged else value
