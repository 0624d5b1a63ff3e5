"""Sources of tasks tuned before: our own, and the files of HPO-B, read as data.

Layouts and formulas of the files are those of HPO-B (Pineda Arango et al., 2021). An archive is
searched once for where its data sets lie, and each is decoded when it is asked for. Its surrogates
are boosted trees in XGBoost's JSON, added up with numpy, in single precision and in XGBoost's
order, so that responses are its own, bit for bit.
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
"""HPO-B's names of the initial rows of a run."""


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

    def surrogate(self, space: str, dataset: str) -> "OwnSurrogate | None":
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
        width, point = data.features.shape[2], coerce_reals("x", x).astype(np.float64)
        if point.shape != (width,) or not (np.abs(point - 0.5) <= 0.5).all():
            raise InvalidArgumentError(
                f"`x` must be {width} numbers in [0, 1], got {short_repr(x)}; a category has one "
                "of them for each of its values"
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


AGAIN: Final = "unpack the archives of https://github.com/sebastianpinedaar/hpo-data again"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name a file that is missing, or that is not what it should be."""
    try:
        yield
    except InvalidArgumentError as error:
        raise DamagedDataError(f"{path} is no file of HPO-B ({error}); {AGAIN}") from error
    except FedHPOError:
        raise
    except OSError as error:
        raise MissingDataError(f"{path} cannot be read ({error}); {AGAIN}") from error
    except FOREIGN_ERRORS as error:
        words = f"{type(error).__name__}: {error}"
        raise DamagedDataError(f"{path} is no file of HPO-B ({words}); {AGAIN}") from error


class Trees(NamedTuple):
    """The nodes of all trees of a model, one after another; N nodes, T trees."""

    left: Integers  # (N,) node to go to where the feature is below `value`; -1 at a leaf
    right: Integers  # (N,) and elsewhere
    feature: Integers  # (N,)
    value: Singles  # (N,) threshold of a split, response of a leaf
    missing_left: Bools  # (N,) where to go without a feature
    roots: Integers  # (T,)
    base: np.float32
    features: int


class BoostedTrees:
    """Boosted regression trees in XGBoost's JSON, read when they are first asked.

    Attributes:
        y_min: the response that counts as 0.
        y_max: the response that counts as 1.
    """

    def __init__(self, path: Path, y_min: float, y_max: float) -> None:
        self._path, self.y_min, self.y_max = path, y_min, y_max

    @cached_property
    def trees(self) -> Trees:
        """The model.

        Raises:
            DamagedDataError: the file holds no trees for squared errors.
        """
        with reading(self._path):
            return _trees(read_json(self._path)["learner"])

    def __call__(self, x: ArrayLike) -> Singles:
        """Return the (n,) responses at (n, F) points; NaN is a value that is missing."""
        trees, points = self.trees, coerce_reals("x", x).astype(np.float32)
        if points.ndim != 2 or points.shape[1] != trees.features:
            raise InvalidArgumentError(
                f"`x` must have rows of {trees.features} values, got an array of shape "
                f"{points.shape}"
            )
        rows = np.arange(len(points))[:, None]
        node = np.tile(trees.roots, (len(points), 1))
        while (is_inner := trees.left[node] >= 0).any():
            known = points[rows, trees.feature[node]]
            is_left = np.where(np.isnan(known), trees.missing_left[node], known < trees.value[node])
            node = np.where(is_inner, np.where(is_left, trees.left[node], trees.right[node]), node)
        start = np.full((len(points), 1), trees.base)
        return np.cumsum(np.hstack([start, trees.value[node]]), axis=1, dtype=np.float32)[:, -1]


def _trees(learner: Mapping[str, Any]) -> Trees:
    booster, settings = learner["gradient_booster"], learner["learner_model_param"]
    kind = (learner["objective"]["name"], booster["name"], settings["num_class"])
    if kind != ("reg:squarederror", "gbtree", "0") or settings.get("num_target", "1") != "1":
        raise ValueError(f"it is a model of another kind, {kind}")
    features, count = int(settings["num_feature"]), 0
    parts, roots = [], []
    for tree in booster["model"]["trees"]:
        parts.append(_tree(tree, features, count))
        roots.append(count)
        count += len(parts[-1][0])
    left, right, feature, value, missing_left = map(np.concatenate, zip(*parts, strict=True))
    base = np.float32(settings["base_score"].strip("[]"))
    if not np.isfinite(base):
        raise ValueError(f"its base_score is {base}")
    return Trees(left, right, feature, value, missing_left, np.array(roots), base, features)


def _tree(tree: Mapping[str, Any], features: int, first: int) -> tuple[NDArray[Any], ...]:
    """Return the nodes of a tree, numbered from the first; none is reached in two ways."""
    left, right, feature = (
        np.array(tree[name], np.int64)
        for name in ("left_children", "right_children", "split_indices")
    )
    value = np.array(tree["split_conditions"], np.float32)
    missing_left = np.array(tree["default_left"], np.bool_)
    is_inner = left >= 0
    children = np.concatenate([left[is_inner], right[is_inner]])
    is_tree = (
        len({len(one) for one in (left, right, feature, value, missing_left)}) == 1
        and len(np.unique(children)) == len(children)
        and bool(((children > 0) & (children < len(left))).all())
        and bool(((feature >= 0) & (feature < features)).all())
        and bool(np.isfinite(value).all())
    )
    if not len(left) or not is_tree or any(tree.get("split_type", ())):
        raise ValueError("one of its trees is none of numeric splits")
    return np.where(is_inner, left + first, -1), right + first, feature, value, missing_left


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
"""What HPO-B adds to a value before it takes the natural logarithm."""
NO_VALUE: Final = "INVALID"
"""HPO-B's category of a hyperparameter that was not set."""
_QUOTE, _OPEN, _CLOSE = b'"{}'
_CHUNK, _ENTRY, _LONGEST_NAME = 1 << 24, 128, 200

_DESCRIPTOR: Final[Mapping[str, Any]] = {
    "variables_order": Sequence[str],
    "variables_to_apply_log": Sequence[str],
    "variables": Mapping[str, Mapping[str, Any]],
}
Places = dict[str, dict[str, tuple[int, int]]]
"""Where the text of each data set begins and ends in an archive, by search space."""


class HPOBFiles:
    """HPO-B's files in two folders, as a source of meta-data.

    Args:
        folder: holds the archives, the initial rows and the descriptors.
        surrogates: holds the surrogates and their statistics; it may be missing.

    Raises:
        MissingDataError: `folder` is none; so does reading a file that is not there.
    """

    def __init__(self, folder: Path, surrogates: Path) -> None:
        if not folder.is_dir():
            raise MissingDataError(f"there is no folder {folder} with HPO-B's files; {AGAIN}")
        self._folder, self._surrogates = folder, surrogates
        self._places: dict[str, Places] = {}
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
        what = f"{path}, data set {dataset} of search space {space},"
        require_bytes(end - begin, what)
        with reading(path), path.open("rb") as handle:
            handle.seek(begin)
            entry = load_json(handle.read(end - begin), what)
            x = np.array(entry["X"], np.float64)
            y = np.array(entry["y"], np.float64).reshape(-1)
            if x.ndim != 2 or not x.size or len(x) != len(y):
                raise ValueError(f"data set {dataset} has X {x.shape} and y {y.shape}")
            if not (np.isfinite(x).all() and np.isfinite(y).all()):
                raise ValueError(f"data set {dataset} has values that are not finite")
        return x, y

    def initial(self, space: str, dataset: str) -> Mapping[str, Sequence[int]]:
        """Return the rows that runs begin with, by seed; none where HPO-B names none."""
        path = self._folder / INITIAL
        with reading(path):
            known = self._text(path).get(space, {}).get(dataset, {})
            return {seed: [_row(row) for row in rows] for seed, rows in known.items()}

    def surrogate(self, space: str, dataset: str) -> BoostedTrees | None:
        """Return the model of a task, or None where its file or its statistics are missing."""
        name = f"surrogate-{space}-{dataset}"
        path, statistics = self._surrogates / f"{name}.json", self._surrogates / STATISTICS
        if path.parent != self._surrogates or not (path.is_file() and statistics.is_file()):
            return None
        with reading(statistics):
            ends = self._text(statistics).get(name)
            if ends is None:
                return None
            low, high = float(ends["y_min"]), float(ends["y_max"])
            if not -inf < low <= high < inf:
                raise ValueError(f"y_min {low} and y_max {high} of {name} are no range")
            return BoostedTrees(path, low, high)

    def decode(self, space: str, x: ArrayLike) -> dict[str, float | str | None]:
        """Return what an (F,) configuration in [0, 1] means, in natural units, by name.

        A scaled value u of a range is min + u (max - min), and exp of it less 1e-4 where the
        descriptor lists a logarithm. Of one-hot columns the largest counts. None is a
        hyperparameter that was not set. Where only that is known of one, it is its `.na`.

        Raises:
            UnknownNameError: no descriptor has this search space.
        """
        path = self._folder / DESCRIPTORS
        known = self._text(path)
        require_known("search space", space, known)
        with reading(path):
            order, logged, variables = (
                coerce(name, known[space][name], hint) for name, hint in _DESCRIPTOR.items()
            )
        point = coerce_reals("x", x)
        if point.shape != (len(order),):
            raise InvalidArgumentError(
                f"`x` must have {len(order)} values, those of {', '.join(order)}, got an array of "
                f"shape {point.shape}"
            )
        at = dict(zip(order, point.tolist(), strict=True))
        with reading(path):
            return {
                name: _natural(name, about, at, name in logged)
                for name, about in variables.items()
                if not (name.endswith(".na") and name.removesuffix(".na") in variables)
            }

    def _split(self, split: str) -> Places:
        require_known("split", split, ARCHIVES)
        if split not in self._places:
            with reading(self._folder / ARCHIVES[split]):
                self._places[split] = _places(self._folder / ARCHIVES[split])
        return self._places[split]

    def _text(self, path: Path) -> dict[str, Any]:
        """Return what a small file says, which is kept."""
        if path not in self._texts:
            with reading(path):
                self._texts[path] = dict(read_json(path))
        return self._texts[path]


def _row(value: object) -> int:
    row = as_integer(value)
    if row is None or row < 0:
        raise ValueError(f"{value!r:.80} is no row")
    return row


def _places(path: Path) -> Places:
    """Return where the data sets of an archive lie, from its quotes and braces alone."""
    content = np.memmap(path, np.uint8, "r")
    found: Places = {}
    names = ["", "", "", ""]
    depth, begin, quote, entries = 0, 0, -1, 0
    for place, mark in _marks(content):
        if mark == _QUOTE and quote < 0:
            quote = place
        elif mark == _QUOTE:
            names[depth] = _name(content[quote + 1 : place])
            quote, entries = -1, entries + 1
            require_bytes(_ENTRY * entries, f"the names in {path}")
        elif quote >= 0:
            continue
        elif mark == _OPEN:
            depth, begin = depth + 1, place
            if depth > 3:
                raise ValueError("it is nested deeper than its data sets")
            if depth == 2:
                found[names[1]] = {}
        else:
            if depth == 3:
                found[names[1]][names[2]] = (begin, place + 1)
            depth -= 1
    if depth or quote >= 0 or not found:
        raise ValueError("its braces do not close")
    return found


def _marks(content: NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Yield the places of quotes and braces, and which of them is there."""
    for begin in range(0, len(content), _CHUNK):
        part = content[begin : begin + _CHUNK]
        places = np.flatnonzero((part == _QUOTE) | (part == _OPEN) | (part == _CLOSE))
        yield from zip((begin + places).tolist(), part[places].tolist(), strict=True)


def _name(text: NDArray[np.uint8]) -> str:
    """Return the id that a short text between quotes is."""
    if len(text) > _LONGEST_NAME:
        raise ValueError(f"a name has {len(text)} characters")
    return str(json.loads(b'"%b"' % text.tobytes()))


def _natural(
    name: str, about: Mapping[str, Any], at: Mapping[str, float], is_logged: bool
) -> float | str | None:
    """Return the value of a hyperparameter, given the scaled values of all columns."""
    if "categories" in about:
        columns = {str(one): at.get(f"{name}.ohe._{one}", 0.0) for one in about["categories"]}
        chosen = max(columns, key=lambda one: columns[one])
        return None if chosen == NO_VALUE or columns[chosen] <= 0 else chosen
    if at.get(f"{name}.na", 0.0) > 0.5:
        return None
    value = float(about["min"]) + at[name] * (float(about["max"]) - float(about["min"]))
    return exp(value) - LOG_SHIFT if is_logged else value
