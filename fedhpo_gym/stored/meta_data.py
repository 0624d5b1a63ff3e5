"""Results of FedHPO-B: pools of configurations of many tasks of one search space.

A card (JSON) says what the tasks are, and arrays what came of every configuration: `shared` (S, d)
and `own` (T, P - S, d) configurations as numbers, NaN where a dimension is inactive; `order` (T, P)
which of these, shared ones first, has a place in the pool of a task; `values` (T, P, A, R, Q) at
every client sample rate and round; `repeats` (T, seeds - 1, ...) of every tenth under further
seeds; `costs` (T, P, A, R, 3); `features` (T, F) of federations; `initial` (T, 5, 5) places of five
initial designs.

The surrogate of a search space is one ensemble of networks for all of its tasks. A network reads a
configuration and which task is asked, and answers scores: how a configuration ranks in the task by
every objective, as quantiles of a normal distribution. A task's own quantiles turn scores into
values, so that tasks of any scale, and trials that diverged, share one model.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.archive import checked_card
from fedhpo_gym.core.arrays import Floats, Singles
from fedhpo_gym.core.checks import coerce_reals, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, require_known
from fedhpo_gym.evaluation.records import SourceTask
from fedhpo_gym.space import SearchSpace, Value
from fedhpo_gym.stored.catalogue import find_stored, open_card
from fedhpo_gym.stored.surrogate_models import (
    HIDDEN_BITS,
    MAX_HIDDEN,
    MAX_WEIGHT,
    MAX_WIDTH,
    ROW_BITS,
    WEIGHT_BITS,
    Exact,
    on_grid,
)
from fedhpo_gym.tasks import Task, decisive_names, work_of
from fedhpo_gym.tasks.meta import META_SPACES, META_SPLITS, meta_tasks

LOWEST, STEP, KNOTS = -2.5, 0.125, 41
"""Scores at which quantiles are known: from `LOWEST` on, so far apart, and how many."""
CHUNK: Final = 1024
"""Rows whose hidden values are held at once."""


def smooth_gate(sums: NDArray[Any]) -> NDArray[Any]:
    """Return x (1 + x / sqrt(1 + x^2)) / 2: smooth, and made of steps that are rounded exactly."""
    return np.asarray(sums * (1.0 + sums / np.sqrt(1.0 + sums * sums)) * 0.5)


class MetaSurrogate:
    """Predicts what a task measures of any configuration, with equal bits in any batch.

    Arrays, of E networks, T tasks, F features, Q objectives: `task_weight` (E, T, H); `weight_i`
    (E, inputs, outputs) and `bias_i` (E, outputs) of layers i = 0, 1, ..., the first from F, the
    last to Q; `quantiles` (T, Q, `KNOTS`), 0 or more, which do not fall.
    """

    @validate_call
    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        count = sum(name.startswith("weight_") for name in arrays)
        layers = [f"{kind}_{layer}" for layer in range(count) for kind in ("weight", "bias")]
        names = ["task_weight", "quantiles", *layers]
        if count < 2 or any(name not in arrays for name in names):
            raise InvalidArgumentError(
                "`arrays` of the surrogate of a search space must have task_weight, quantiles and "
                f"weight_0, bias_0, weight_1, ..., got {sorted(arrays)}"
            )
        self.arrays = {name: coerce_reals(name, arrays[name]) for name in names}
        if not all(np.isfinite(array).all() for array in self.arrays.values()):
            raise InvalidArgumentError("`arrays` of a surrogate must be finite numbers")
        grids = {name: on_grid(self.arrays[name], WEIGHT_BITS, MAX_WEIGHT) for name in names}
        self._weights = [grids[f"weight_{layer}"] for layer in range(count)]
        self._biases = [grids[f"bias_{layer}"] for layer in range(count)]
        self._quantiles = self.arrays["quantiles"].astype(np.float64)
        self._check(grids["task_weight"])
        self._bounded = 1.0 / (1.0 + self._quantiles)
        self._offsets = grids["task_weight"] + self._biases[0][:, None]

    def _check(self, of_tasks: Exact) -> None:
        weights = self._weights
        if of_tasks.ndim != 3 or any(weight.ndim != 3 for weight in weights):
            raise InvalidArgumentError("the layers of a surrogate have wrong axes")
        networks, tasks, _ = of_tasks.shape
        ends = [weight.shape[2] for weight in weights]
        fits = [one.shape[:2] for one in weights[1:]] == [(networks, end) for end in ends[:-1]]
        biases = [bias.shape for bias in self._biases] == [(networks, end) for end in ends]
        tables = self._quantiles.shape == (tasks, ends[-1], KNOTS)
        first = of_tasks.shape[2] == ends[0] and len(weights[0]) == networks
        if not (fits and biases and tables and first and of_tasks.size and weights[-1].size):
            raise InvalidArgumentError("the arrays of a surrogate do not fit together")
        if max(weight.shape[1] for weight in weights) > MAX_WIDTH:
            raise InvalidArgumentError(f"a layer of a network must not exceed {MAX_WIDTH} inputs")
        if (np.diff(self._quantiles, prepend=0.0) < 0).any():
            raise InvalidArgumentError("`quantiles` of a surrogate must be 0 or more, and not fall")

    @property
    def num_tasks(self) -> int:
        """How many tasks it knows."""
        return len(self._quantiles)

    @property
    def num_features(self) -> int:
        """How many features a configuration has."""
        return int(self._weights[0].shape[1])

    def predict(self, tasks: ArrayLike, features: ArrayLike) -> Exact:
        """Return (n, Q) values of (n, F) features in one task, or in (n,) tasks, by position."""
        rows = coerce_reals("features", features)
        if rows.ndim != 2 or rows.shape[1] != self.num_features or not np.isfinite(rows).all():
            raise InvalidArgumentError(
                f"`features` must be rows of {self.num_features} finite numbers, got an array of "
                f"shape {rows.shape}"
            )
        task_indices = np.asarray(tasks)
        if (
            task_indices.dtype.kind not in "iu"
            or task_indices.shape not in ((), (len(rows),))
            or (
                task_indices.size
                and not (task_indices.min() >= 0 and task_indices.max() < self.num_tasks)
            )
        ):
            raise InvalidArgumentError(
                f"`tasks` must be a position below {self.num_tasks}, or one for each of "
                f"{len(rows)} rows, got {tasks!r:.80}"
            )
        each = np.broadcast_to(task_indices, len(rows)).astype(np.intp)
        values = np.empty((len(rows), self._quantiles.shape[1]))
        for start in range(0, len(rows), CHUNK):
            portion = slice(start, start + CHUNK)
            values[portion] = self._values(
                each[portion], self._scores(each[portion], rows[portion])
            )
        return values

    def _scores(self, tasks: NDArray[np.intp], rows: NDArray[np.floating]) -> Exact:
        """Return (n, Q) means over networks; all sums are exact, in any order."""
        hidden = on_grid(2.0 * rows.astype(np.float64) - 1.0, ROW_BITS, 1.0)
        sums = hidden @ self._weights[0]
        sums += self._offsets[:, tasks]
        for weight, bias in zip(self._weights[1:], self._biases[1:], strict=True):
            hidden = on_grid(smooth_gate(sums), HIDDEN_BITS, MAX_HIDDEN)
            sums = hidden @ weight
            sums += bias[:, None]
        return np.asarray(sums.sum(axis=0) / len(sums))

    def _values(self, tasks: NDArray[np.intp], scores: Exact) -> Exact:
        """Return the quantiles at scores, never below 0.

        1 / (1 + v) is on a straight line between two of them, and below the lowest: what lies
        between a trial that works and one that diverged is not half as bad as the latter.
        """
        position = np.minimum((scores - LOWEST) / STEP, KNOTS - 1.0)
        index = np.clip(np.floor(position), 0, KNOTS - 2).astype(np.intp)
        at = tasks[:, None], np.arange(scores.shape[1])
        low, high = self._bounded[*at, index], self._bounded[*at, index + 1]
        values = 1.0 / np.maximum(low + (high - low) * (position - index), 1e-39) - 1.0
        return np.clip(values, 0.0, self._quantiles[*at, index + 1])


FORMAT: Final = 1
SUFFIX: Final = ".meta"
LOSS: Final = "val_loss"
COSTS: Final = ("time_s", "upload_bytes", "download_bytes")
"""What a trial costs, the last of its values."""
REPEATED: Final = 10
"""One in so many configurations is trained under all seeds."""
DESIGNS, DESIGN_SIZE = 5, 5
"""Initial designs of a task, and trials of each."""
MODEL: Final = "model_"
"""How names of arrays begin that are the surrogate's."""
MODEL_SUFFICES: Final = 0.6
"""Rank correlation (Kendall's tau) from which on the surrogate answers for a task."""


class MetaData:
    """All tasks of one search space, read when they are needed.

    Attributes:
        space: the configurations.
        rounds: (R,) and `rates` (A,) at which they were evaluated, ascending.
        objectives: names of the Q + 3 values of an evaluation, costs last.
        names: (T,) tasks, and `splits` (T,) which of `META_SPLITS` each is in.
        surveys: (T,) whose data each task is made of: no two splits share one.
    """

    def __init__(self, card: Path) -> None:
        name = card.name.partition(".")[0]
        self._repair = f"fedhpo-gym meta-data {name.rpartition('-')[2]}"
        with checked_card(card, "meta-data", FORMAT, f"run `{self._repair}`") as (content, arrays):
            self.card: Mapping[str, Any] = content
            self._arrays = arrays
            self.space = SearchSpace.from_dict(content["search_space"])
            self.rounds: tuple[int, ...] = tuple(content["rounds"])
            self.rates: tuple[float, ...] = tuple(content["client_sample_rates"])
            self.objectives: tuple[str, ...] = tuple(content["measured"])
            tasks: list[Mapping[str, Any]] = content["tasks"]
            self.names: tuple[str, ...] = tuple(task["name"] for task in tasks)
            self.splits: tuple[str, ...] = tuple(task["split"] for task in tasks)
            self.surveys: tuple[str, ...] = tuple(task["survey"] for task in tasks)
            self.label_entropy = np.array([float(task["label_entropy"]) for task in tasks])
            self._shared, self._pool = int(content["shared"]), int(content["pool"])
            self._model: Mapping[str, list[int]] = content.get("model_arrays", {})

    @property
    def fingerprint(self) -> str:
        """Digest of all that decides a number."""
        return f"meta-sha256:{self.card['card_sha256']}"

    def where(self, split: str) -> tuple[int, ...]:
        """Return the positions of the tasks of a split."""
        require_known("split", split, META_SPLITS)
        return tuple(i for i, task_split in enumerate(self.splits) if task_split == split)

    def index(self, name: str) -> int:
        """Return the position of a task."""
        require_known("task", name, self.names)
        return self.names.index(name)

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays, checked, with the pool of a task in its order."""
        tasks, pool, shared, width = len(self.names), self._pool, self._shared, len(self.space)
        at = (len(self.rates), len(self.rounds))
        measured, again = len(self.objectives) - 3, -(-pool // REPEATED)
        shapes = {
            "shared": (shared, width),
            "own": (tasks, pool - shared, width),
            "order": (tasks, pool),
            "values": (tasks, pool, *at, measured),
            "costs": (tasks, pool, *at, 3),
            "repeats": (tasks, len(self.card["seeds"]) - 1, again, *at, measured),
            "features": (tasks, len(self.card["features"])),
            "initial": (tasks, DESIGNS, DESIGN_SIZE),
            **{MODEL + name: tuple(shape) for name, shape in self._model.items()},
        }
        return self._arrays.read(self.card["sha256"], self._repair, shapes)

    def require_installed(self) -> None:
        """Check that the arrays are on this machine."""
        self._arrays.require_installed()

    @cached_property
    def numbers(self) -> Floats:
        """(T, P, d) configurations, the position of a category for it; NaN where inactive."""
        shared, per_task, order = (self.arrays[name] for name in ("shared", "own", "order"))
        everywhere = np.broadcast_to(shared, (len(per_task), *shared.shape))
        pools = np.concatenate([everywhere, per_task], axis=1)
        return np.take_along_axis(pools, order[..., None].astype(int), axis=1)

    @cached_property
    def actions(self) -> Singles:
        """(T, P, d) coordinates of all configurations."""
        flat = self.numbers.reshape(-1, len(self.space))
        return encoded(self.space, flat).reshape(self.numbers.shape)

    @cached_property
    def features(self) -> Singles:
        """(T, P, F) what models learn from (`SearchSpace.features`)."""
        return np.stack([self.space.features(actions) for actions in self.actions]).astype(
            np.float32
        )

    @cached_property
    def values(self) -> Floats:
        """(T, P, A, R, Q + 3) values of `objectives`, in the order of the pools."""
        arrays = self.arrays
        stored = np.concatenate([arrays["values"].astype(np.float64), arrays["costs"]], axis=-1)
        order = arrays["order"].astype(int)[..., None, None, None]
        return np.take_along_axis(stored, order, axis=1)

    @cached_property
    def scores(self) -> Floats:
        """(T, P, A, R) scores: the share of the labels' entropy that a model explains, from 0 on.

        It is 1 - val_loss / entropy (McFadden's pseudo-R², 1974); 0 is what label frequencies
        reach, and what is worse.
        """
        losses = self.values[..., self.objectives.index(LOSS)]
        return explained_entropy(losses, self.label_entropy[:, None, None, None])

    def configuration(self, task: int, pool_index: int) -> dict[str, Value]:
        """Return a configuration of the pool of a task."""
        row = self.numbers[task, pool_index].tolist()
        return self.space.from_numbers(dict(zip(self.space.names, row, strict=True)))

    @property
    def tau(self) -> tuple[float, ...]:
        """(T,) rank correlations of the surrogate on held-out configurations; 0 without one."""
        return tuple(self.card.get("tau") or [0.0] * len(self.names))

    @cached_property
    def surrogate(self) -> MetaSurrogate:
        """The model that all tasks share, at full fidelity."""
        if not self._model:
            raise MissingDataError(
                f"`continuous` must be False for {self.card['name']}, which has no surrogate here; "
                f"fit one with `{self._repair}`"
            )
        arrays = self.arrays
        return MetaSurrogate({name: arrays[MODEL + name] for name in self._model})

    def model_range(self, task: int) -> tuple[float, float]:
        """Return 0, and the highest score predicted of any stored configuration."""
        return 0.0, float(self.card["model_highest"][task])

    def predicted_scores(self, task: int, actions: Singles) -> Floats:
        """Return the (n,) scores that the surrogate predicts of (n, d) actions."""
        tasks = np.full(len(actions), task)
        predicted = self.surrogate.predict(tasks, self.space.rounded_features(actions))
        return explained_entropy(
            predicted[:, self.objectives.index(LOSS)], self.label_entropy[tasks]
        )

    def answer(self, tasks: NDArray[np.intp], actions: Singles) -> tuple[Floats, Floats]:
        """Return (n, Q + 3) values, the surrogate's and the clock's, and (n, F) features."""
        features = self.space.rounded_features(actions)
        values = np.empty((len(tasks), len(self.objectives)))
        values[:, :-3] = self.surrogate.predict(tasks, features)
        task_by_name = {
            meta_task.name: meta_task.task
            for meta_task in meta_tasks(self.card["name"].rpartition("-")[2])
        }
        for task in np.unique(tasks).tolist():
            (rows,) = np.nonzero(tasks == task)
            configurations = self.space.configurations_of(self.space.decode_columns(actions[rows]))
            values[rows, -3:] = costs_of(task_by_name[self.names[task]], configurations)[:, -1, -1]
        return values, features

    def source_tasks(
        self, split: str = "train", without: Collection[str] = ()
    ) -> tuple[SourceTask, ...]:
        """Return the tasks of a split at full fidelity, less those of some surveys."""
        return tuple(
            SourceTask(
                self.names[i],
                self.actions[i],
                self.scores[i, :, -1, -1],
                self.arrays["features"][i],
            )
            for i in self.where(split)
            if self.surveys[i] not in without
        )


def explained_entropy(losses: Floats, entropy: Floats) -> Floats:
    """Return max(0, 1 - loss / entropy) of losses, elementwise."""
    return np.maximum(1.0 - np.minimum(losses / entropy, 1.0), 0.0)


def costs_of(task: Task, pool: Sequence[Mapping[str, Value]]) -> Floats:
    """Return (P, A, R, `COSTS`) of whole trials, by the clock of a task."""
    rates, rounds = task.fidelity_space["client_sample_rate"].grid, task.evaluated_rounds
    names = decisive_names(task)
    keys = [tuple(configuration.get(name) for name in names) for configuration in pool]
    costs_by_key = {
        key: [
            [
                getattr(task.system.cost(work_of(task, configuration, r, float(rate))), name)
                for name in COSTS
            ]
            for rate in rates
            for r in rounds
        ]
        for key, configuration in dict(zip(keys, pool, strict=True)).items()
    }
    costs = np.array([costs_by_key[key] for key in keys])
    return costs.reshape(len(pool), len(rates), len(rounds), len(COSTS))


def encoded(space: SearchSpace, rows: Floats) -> Singles:
    """Return the (n, d) coordinates of configurations as numbers, NaN where inactive."""
    middle = space.decode_columns(np.zeros((1, len(space))))
    columns = {}
    for d, column in zip(space.dimensions, rows.T, strict=True):
        is_active = np.isfinite(column)
        if d.kind == "category":
            values = np.array(d.grid)[np.where(is_active, column, 0).astype(int)]
        else:
            values = column.astype(int) if d.kind == "int" and is_active.all() else column
        columns[d.name] = np.where(is_active, values, middle[d.name])
    return space.encode_columns(columns)


def meta_data_stem(space: str) -> str:
    """Return how files of a search space are called."""
    return f"FedHPO-B-{space}"


@validate_call
def open_meta_data(space: str) -> MetaData:
    """Open the results of a search space: "LR", "Joint" or "Private".

    Raises:
        UnknownNameError: there is no such search space.
        MissingDataError: there is no card of it.
    """
    require_known("search space", space, META_SPACES)
    stem = meta_data_stem(space)
    how = f"there are no results of {stem}; compute them with `fedhpo-gym meta-data {space}`"
    return open_card(MetaData, stem, f"{SUFFIX}.json", how)


def known_spaces() -> tuple[str, ...]:
    """Return the search spaces that have a card here."""
    return tuple(
        name
        for name in META_SPACES
        if find_stored(meta_data_stem(name), f"{SUFFIX}.json") is not None
    )
