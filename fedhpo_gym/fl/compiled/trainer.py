"""The trainer of compiled models: it prepares arrays for the kernels in `training`.

`engine` creates `CompiledTrainers` for models that numba compiles, such as LR and MLP. A `Group`
calls its trainers through the interface in `fl/trainer.py`. Parameters of courses are one float32
array (rows, numbers), in the layout of the model. Compiled code releases the GIL, so that groups
train in threads; the number of threads changes no result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms import Algorithm
from fedhpo_gym.algorithms.base import Parameters, fit
from fedhpo_gym.core.arrays import Singles
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.evaluation.records import METRICS, SPLITS
from fedhpo_gym.fl import course as courses
from fedhpo_gym.fl.compiled import rng, training
from fedhpo_gym.fl.compiled.arithmetic import BLOCK, power
from fedhpo_gym.fl.compiled.training import Rows, Settings
from fedhpo_gym.fl.hyperparameters import Hyperparameters
from fedhpo_gym.fl.models.model import CompiledModel, ParameterLayout, flat_rows
from fedhpo_gym.fl.participants import ClientBatch, StreamNames
from fedhpo_gym.fl.trainer import LocalObjective, LocalResult, Trainer, Trainers

_NOBODY = np.empty((0, 0), dtype=np.float32)


class CompiledTrainer(Trainer):
    """Trains courses of one federation and model shape, client after client."""

    model: CompiledModel
    longest_first: ClassVar[bool] = False
    joins_rounds: ClassVar[bool] = True

    def __init__(self, federation: Federation, model: CompiledModel, algorithm: Algorithm) -> None:
        self._layout = layout = model.layout
        super().__init__(federation, model, algorithm, [array.name for array in layout.parts])
        self.min_rows, self._memory = model.min_rows, cache(model.memory)
        # Rows are copied into the order in which they are read, client by client.
        order, first = flat_rows(
            [rows for client_rows in federation.clients for rows in client_rows]
        )
        self._labels = federation.labels[order].astype(np.int64)
        features = federation.features.take(order, axis=0)
        self._data = model.data(replace(federation, features=features, labels=self._labels))
        self.data_bytes = sum(np.asarray(array).nbytes for array in self._data)
        groups = np.split(np.arange(len(order)), first[1:-1])
        self._rows = Rows(*flat_rows(groups))
        self._train_rows = Rows(*flat_rows(groups[:: len(SPLITS)]))
        self._words = rng.entropy(federation.seed, "minibatches", 2)
        self._kept_columns = self._columns(self.kept)
        self._personal_columns = self._columns(self.personal)
        parts, offset = [], 0
        for array in layout.parts:
            if array.name in self.kept:
                parts.append(replace(array, offset=offset))
                offset = parts[-1].span.stop
        self._kept_layout = ParameterLayout(tuple(parts), offset)
        drawn = model.init(stream(federation.seed, "init"))
        self._initial = np.zeros((1, layout.size), dtype=np.float32)
        layout.write(self._initial, {name: value[:, None] for name, value in drawn.items()})

    def _columns(self, names: Collection[str]) -> NDArray[np.int64]:
        """Return the columns of some parameters in (rows, numbers)."""
        spans = [np.r_[part.span] for part in self._layout.parts if part.name in names]
        return np.concatenate([*spans, np.empty(0, dtype=np.int64)]).astype(np.int64)

    def array(self, values: NDArray[Any]) -> Singles:
        with np.errstate(over="ignore"):  # too large a rate becomes infinite: the course diverges
            return np.asarray(values, dtype=np.float32)

    def power(self, base: Any, exponent: Any) -> Any:
        """Raise numbers to powers, rounded equally on every CPU."""
        pairs = np.broadcast_arrays(base, exponent)
        powers = [power(float(b), float(e)) for b, e in zip(*(p.flat for p in pairs), strict=True)]
        return np.reshape(powers, pairs[0].shape)

    def norm(self, values: Parameters) -> Singles:
        """Sum in double precision, in the order of parameters."""
        total = np.zeros(next(iter(values.values())).shape[1])
        for value in values.values():
            training.add_squares(_rows_of(value), total)
        return self.array(np.sqrt(total))

    def initial(self, rows: int) -> Singles:
        return np.repeat(self._initial, rows, axis=0)

    def zeros(self, rows: int) -> Singles:
        return np.zeros((rows, self._layout.size), dtype=np.float32)

    def views(self, values: Singles, without: Collection[str] = ()) -> Parameters:
        return dict(self._layout.views(values, without))

    def kept_of(self, values: Singles) -> Singles:
        return values[:, self._kept_columns]

    def kept_views(self, values: Singles) -> Parameters:
        return dict(self._kept_layout.views(values))

    def with_kept(self, values: Singles, personal: Singles) -> Singles:
        values = values.copy()
        values[:, self._kept_columns] = personal
        return values

    def with_personal(self, average: Singles, start: Singles) -> Singles:
        if len(self._personal_columns):
            average[:, self._personal_columns] = start[:, self._personal_columns]
        return average

    def replaced(self, values: Singles, new: Parameters) -> Singles:
        values = values.copy()
        self._layout.write(values, new)
        return values

    def take(self, values: Singles, rows: NDArray[np.int64]) -> Singles:
        return values[rows]

    def put(self, values: Singles, rows: NDArray[np.int64], new: Singles) -> None:
        values[rows] = new

    def concatenated(self, values: Sequence[Singles]) -> Singles:
        return np.concatenate(values)

    def where(self, live: NDArray[np.bool_], new: Singles, old: Singles) -> Singles:
        return np.where(live[:, None], new, old)

    def choose(self, live: NDArray[np.bool_], new: Any, old: Any) -> Any:
        return np.where(fit(live, new), new, old)

    def finite(self, values: Singles, more: Iterable[Any] = ()) -> NDArray[np.bool_]:
        flags = np.empty(len(values), dtype=np.bool_)
        training.finite(values, flags)
        for value in more:
            flags &= np.isfinite(value).all(axis=tuple(a for a in range(value.ndim) if a != 1))
        return flags

    @property
    def row_bytes(self) -> int:
        return 4 * self._layout.size

    def receive(
        self, start: Singles, items: ClientBatch, purpose: str, without: Collection[str] = ()
    ) -> Singles:
        return start[items.course]

    def run(
        self,
        local: Singles,
        items: ClientBatch,
        settings: Hyperparameters,
        names: StreamNames,
        terms: LocalObjective,
    ) -> None:
        added = _NOBODY
        if terms.shift:
            added = self.zeros(len(items))
            self._layout.write(added, terms.shift)
        training.train(
            self._data,
            self._train_rows,
            self._words,
            _chosen(settings, items, terms.pull),
            training.CompiledBatch(
                items.course, items.client, np.array(names.rounds)[items.batch_key]
            ),
            np.argsort(items.client, kind="stable"),
            ~settings.stopped,
            _NOBODY,
            local,
            _NOBODY if terms.pull is None or terms.anchor is None else terms.anchor,
            np.arange(len(items)),
            added,
            self._memory(int(items.width.max())),
        )

    def advance(
        self,
        start: Singles,
        items: ClientBatch,
        round_of_item: NDArray[np.int64],
        settings: Hyperparameters,
        pull: Any,
        course: tuple[NDArray[np.int64], NDArray[np.int64]],
        evaluated: NDArray[np.bool_],
        compared: Singles,
    ) -> Singles:
        finished, diverged_at = course
        first = round_of_item.searchsorted(np.arange(len(evaluated) + 1))
        clients = self.federation.num_clients
        order = (round_of_item * clients + items.client).argsort(kind="stable")
        plan = training.RoundPlan(
            first, order - first[round_of_item], self._weight(items), items.weight, evaluated,
            pull is not None,
        )  # fmt: skip
        groups = np.empty((len(start), clients * len(SPLITS) * int(evaluated.any())), np.int64)
        groups[:] = np.arange(groups.shape[1])
        # (evaluated rounds, courses, clients x splits, metrics)
        out = np.empty((np.count_nonzero(evaluated), *groups.shape, len(METRICS)), np.float32)
        training.advance(
            self._data,
            self._train_rows,
            self._words,
            _chosen(settings, items, pull),
            training.CompiledBatch(
                items.course, items.client, finished[items.course] + round_of_item
            ),
            plan,
            self._rows,
            self._labels,
            groups,
            finished,
            diverged_at,
            start,
            (self._memory(int(items.width.max())), self._memory(BLOCK)),
            courses.MAX_NORM,
            compared,
            out,
        )
        clients = groups.shape[1] // len(SPLITS)
        return out.reshape(len(out), len(start), clients, len(SPLITS), len(METRICS))

    def updates(self, local: Singles, received: Singles) -> Singles:
        trained = self._layout.trained
        local[:, :trained] -= received[:, :trained]
        return local

    def add(
        self,
        average: Singles,
        reports: Parameters,
        sent: Singles,
        all_sent: Parameters,
        result: LocalResult,
    ) -> None:
        items, size = result.items, self._layout.size
        weight = self._weight(items)
        trained = self._layout.trained if self.equally else size
        training.add_up(items.course, weight, sent, average, 0, trained)
        if trained < size:
            training.add_up(items.course, items.weight, sent, average, trained, size)
        for name, total in reports.items():
            rows = _rows_of(total)
            training.add_up(items.course, weight, _rows_of(all_sent[name]), rows, 0, rows.shape[1])
            total[...] = np.moveaxis(rows.reshape(np.moveaxis(total, 1, 0).shape), 0, 1)

    def _weight(self, items: ClientBatch) -> Singles:
        return items.counted_equally.weight if self.equally else items.weight

    def no_updates(self, rows: int) -> NDArray[np.float64]:
        return np.zeros((rows, self._layout.trained))

    def add_updates(
        self, items: ClientBatch, received: Singles, local: Singles, mean: NDArray[np.float64]
    ) -> None:
        indices = np.arange(len(items))
        weight, end = self._weight(items), self._layout.trained
        training.add_updates(items.course, weight, received, indices, local, mean, 0, end)

    def compare(
        self, items: ClientBatch, received: Singles, local: Singles, mean: NDArray[np.float64]
    ) -> tuple[Singles, Singles]:
        comparison, sums = np.empty((len(local), 2), dtype=np.float32), np.zeros((len(local), 2))
        indices, end = np.arange(len(items)), self._layout.trained
        training.add_products(items.course, received, indices, local, mean, 0, end, sums)
        training.compare(items.course, sums, mean, courses.MAX_NORM, comparison)
        return comparison[:, 0], comparison[:, 1]

    def measure(self, values: Singles, client: int | None = None) -> Singles:
        clients = np.arange(self.federation.num_clients) if client is None else np.array([client])
        return self._measured(values, np.tile(clients, (len(values), 1)))

    def measure_own(self, values: Singles, client: NDArray[np.int64]) -> Singles:
        return self._measured(values, client[:, None])[:, 0]

    def _measured(self, models: Singles, clients: NDArray[np.int64]) -> Singles:
        """Return (models, clients, splits, metrics) of models on the data of (models, clients)."""
        count, width = clients.shape
        # (models, clients x splits): group client * splits + split
        groups = (clients[:, :, None] * len(SPLITS) + np.arange(len(SPLITS))).reshape(count, -1)
        out = np.empty((*groups.shape, len(METRICS)), dtype=np.float32)
        memory = self._memory(BLOCK)
        training.measure(self._data, self._rows, self._labels, groups, models, memory, out)
        return out.reshape(count, width, len(SPLITS), len(METRICS))


def _chosen(settings: Hyperparameters, items: ClientBatch, pull: Any) -> Settings:
    rows, none = settings.rows(items), np.zeros(len(items), dtype=np.float32)
    return Settings(
        settings.rate[rows],
        settings.decay[rows],
        none if pull is None else pull,
        none if settings.momentum is None else settings.momentum[rows],
        items.batch_size,
        items.epochs,
    )


def _rows_of(values: Any) -> Singles:
    """Return a copy of (k, items, ..) values as (items, numbers)."""
    return np.array(np.moveaxis(values, 1, 0).reshape(values.shape[1], -1), order="C")


class CompiledTrainers(Trainers):
    """Trains courses with compiled code; groups are spread over threads."""

    def __init__(
        self, model: type[CompiledModel], algorithm: Algorithm, device: str, precision: str
    ) -> None:
        model.refuse_precision(precision)
        if device != "cpu":
            raise InvalidArgumentError(
                f"`device` must be 'cpu' for {model.__name__}, got {device!r}: such small models "
                "are compiled for the CPU only"
            )
        self._model = model
        self._algorithm = algorithm

    def trainer(
        self, federation: Federation, architecture: Iterable[tuple[str, float]]
    ) -> CompiledTrainer:
        shape = dict(architecture)
        return CompiledTrainer(
            federation, self._model.for_federation(federation, **shape), self._algorithm
        )

    def room(self, courses: int) -> int:
        """Return the number of courses per group, one group for each thread."""
        return max(-(-courses // threads()), 1)

    def for_each(self, groups: Sequence[Any], work: Callable[[Any], None]) -> None:

        @np.errstate(over="ignore", invalid="ignore")  # the course is then marked as diverged
        def quiet(group: Any) -> None:
            work(group)

        num_threads = min(threads(), len(groups))
        if num_threads <= 1:
            for group in groups:
                quiet(group)
            return
        with ThreadPoolExecutor(num_threads) as pool:
            for _ in pool.map(quiet, groups):
                pass


def threads() -> int:
    """Return the number of threads: `OMP_NUM_THREADS`, or the number of available CPUs."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if setting.isdigit() and int(setting) > 0:
        return int(setting)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
