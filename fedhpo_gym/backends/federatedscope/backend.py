"""The backend that trains configurations with FederatedScope, in a separate process.

`make_backend("federatedscope", task)` opens `FederatedScope` for trial environments; `courses` uses
`RemoteCourse` for round environments. FederatedScope runs under its own interpreter, because it
pins versions of its dependencies. It trains on the federation of this package, which is handed over
as a file. Courses wait in the process between queries; their learning curves are stored here.
"""

import hashlib
import json
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.backends import training
from fedhpo_gym.backends.base import Backend
from fedhpo_gym.backends.federatedscope import configuration
from fedhpo_gym.backends.federatedscope.configuration import (
    first_metrics,
    require_layout,
    require_supported,
    sample_counts,
    whole,
)
from fedhpo_gym.backends.federatedscope.installation import find_installation
from fedhpo_gym.backends.federatedscope.process import Message, Peer, ProcessHandle, next_number
from fedhpo_gym.backends.training import task_federation
from fedhpo_gym.core.checks import Range, coerce, short_repr
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.core.files import new_file
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.graph_federations import GraphFederation
from fedhpo_gym.data.records import Features
from fedhpo_gym.evaluation.records import (
    ENTRIES,
    SPLITS,
    Entries,
    Evaluation,
    Evaluations,
    Fidelity,
    evaluation_from_curves,
)
from fedhpo_gym.fl.models.cnn import MEAN, STD
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import Task

Metrics = NDArray[np.float32]
Hear = Callable[[Message], None]


@dataclass(frozen=True)
class CourseRequest:
    """All that defines a course, from its first round on."""

    task: Task
    configuration: Mapping[str, Value]  # hyperparameters that it starts with
    client_sample_rate: float  # likewise
    seed: int  # of the federation, and of FederatedScope
    rounds: int  # of the whole course
    evaluated: Sequence[int] | None  # rounds that end with an evaluation; None: each stop
    watched: bool = False  # whether every round reports which clients trained, and how
    measured: bool = False  # whether this includes client metrics before and after local training
    # Entries by which FederatedScope loads other data; None for the federation of this package.
    own_data: Mapping[str, Any] | None = None

    def message(self, course_number: int, peer: Peer) -> Message:
        """Return the request that starts the course under a number."""
        layout = peer.versions.get("layout", "")
        configuration.require_layout(self.task, layout)
        own_data = self.own_data
        entries = configuration.course_entries(
            self.task, self.configuration, self.client_sample_rate, self.seed, layout, self.rounds
        )
        data = None if own_data is not None else str(hand_over(self.task, self.seed, peer.folder))
        return {
            "do": "start",
            "course": course_number,
            "entries": {
                **entries,
                **({"data.type": "fedhpo_gym"} if own_data is None else own_data),
            },
            "data": data,
            "evaluated": None if self.evaluated is None else list(self.evaluated),
            "watched": self.watched,
            "measured": self.measured,
            "lone_rows": self.task.model == "MLP",
        }


class RemoteCourse:
    """A course in FederatedScope's process, which waits there between calls."""

    def __init__(self, peer: Peer, request: CourseRequest, limit_s: float) -> None:
        self.rounds = 0  # that it has finished
        self._evaluated = request.evaluated
        self._peer, self._limit_s, self._number = peer, limit_s, next_number()
        peer.ask(request.message(self._number, peer), limit_s, hear_nothing)

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        return self._peer.alive

    def advance(self, rounds: int, hear: Hear, deadline: float | None = None) -> None:
        """Train until `rounds` rounds are finished; `hear` gets each message, in order."""
        request = {"do": "advance", "course": self._number, "rounds": rounds}
        remaining_s = self._limit_s if deadline is None else deadline - time.monotonic()
        stops = {rounds} if self._evaluated is None else {*self._evaluated}
        due: deque[tuple[str, int]] = deque()  # every round, then the metrics where it stops
        for round_number in range(self.rounds + 1, rounds + 1):
            due.append(("trained", round_number))
            if round_number in stops:
                due.append(("round", round_number))

        def take(message: Message) -> None:
            what, round_number = due.popleft() if due else ("done", 0)
            if configuration.whole(message, what) != round_number:
                shown_value = short_repr(message[what])
                raise configuration.unreadable(what, f"must be {round_number}, got {shown_value}")
            hear(message)

        self._peer.ask(request, remaining_s, take)
        if due:
            what, round_number = due[0]
            raise configuration.unreadable(
                what, f"must be {round_number}, got the end of the answer"
            )
        self.rounds = rounds

    def evaluate(self) -> object:
        """Return the metrics of the current model, client by client, as JSON data."""
        return self._ask("evaluate")

    def configure(self, changes: Mapping[str, Any]) -> None:
        """Change hyperparameters from the next round on."""
        self._ask("configure", **changes)

    def cohorts(self, rounds: int) -> object:
        """Return the clients that will train in each of the next rounds, as JSON data."""
        return self._ask("cohorts", rounds=rounds)

    def drop(self) -> None:
        """End it, if its process still runs."""
        if self.alive:
            with suppress(FedHPOError):
                self._ask("drop")

    def _ask(self, what: str, **words: Any) -> Any:
        request = {"do": what, "course": self._number, **words}
        return self._peer.ask(request, self._limit_s, hear_nothing)


class Curve:
    """The learning curve of a course, filled from its messages."""

    def __init__(self, num_samples: NDArray[np.integer]) -> None:
        self.rounds: list[int] = []  # after which the model was evaluated
        self.metrics: list[Metrics] = []  # (clients, splits, metrics) of each
        self.diverged_at = 0  # the round in which it left the finite numbers; 0 for never
        self.num_samples = num_samples  # (clients, splits), the samples behind each metric

    def hear(self, message: Message) -> None:
        """Read the metrics of a message; messages without metrics are ignored."""
        if "round" not in message:
            return
        metrics = configuration.client_metrics(message.get("clients"), self.num_samples)
        self.take(configuration.whole(message, "round"), metrics)

    def take(self, finished: int, metrics: Metrics) -> None:
        """Add the metrics after a round, unless these or earlier ones are not finite."""
        if self.diverged_at or not configuration.is_finite(metrics):
            self.diverged_at = self.diverged_at or finished
            return
        self.rounds.append(finished)
        self.metrics.append(metrics)

    def at(self, rounds: Sequence[int]) -> Metrics:
        """Return (rounds, clients, splits, metrics); after divergence, the last finite metrics."""
        index = np.searchsorted(self.rounds, rounds, "right") - 1
        return np.stack([self.metrics[i] for i in index.tolist()])


def hear_nothing(_message: Message) -> None:
    """Ignore messages, as of rounds that are trained again."""


def hand_over(task: Task, seed: int, folder: Path) -> Path:
    """Write the federation of a task under one seed into a folder, unless the file exists."""
    path = folder / f"{task.table_name}-{task.alpha:g}-{task.preprocessing}-seed{seed}.npz"
    if not path.exists():
        arrays = arrays_of(task_federation(task, seed))
        with new_file(path) as handle:
            np.savez(handle, **arrays)  # type: ignore[arg-type]  # no array is called allow_pickle
    return path


Arrays = dict[str, NDArray[Any]]


def arrays_of(federation: Federation) -> Arrays:
    """Return the samples of each client by split, or one graph per client; clients count from 1."""
    arrays: Arrays = {"num_clients": np.array(federation.num_clients)}
    if isinstance(federation, GraphFederation):
        for client, splits in enumerate(federation.clients):
            nodes, edges = federation.client_nodes(client), federation.client_edges(client)
            arrays |= graph_arrays(federation, client + 1, nodes, edges, splits)
        return arrays
    for client_number, client_rows in enumerate(federation.clients, start=1):
        for split, rows in zip(SPLITS, client_rows, strict=True):
            arrays[f"x_{client_number}_{split}"] = network_inputs(federation.features[rows])
            arrays[f"y_{client_number}_{split}"] = federation.labels[rows]
    return arrays


def network_inputs(features: Features) -> NDArray[np.float32]:
    """Return samples as input of a network: images are normalised, with channels first."""
    values = np.asarray(features)
    if values.dtype != np.uint8:
        return values.astype(np.float32)
    images = values[:, None] if values.ndim == 3 else values.transpose(0, 3, 1, 2)  # (n, c, h, w)
    pixels = images.astype(np.float32) / np.float32(255.0)
    return np.ascontiguousarray((pixels - np.float32(MEAN)) / np.float32(STD))


def graph_arrays(
    federation: GraphFederation,
    part_number: int,
    nodes: NDArray[np.int64],
    edges: NDArray[np.int64],
    splits: Sequence[NDArray[np.int64]],
) -> Arrays:
    """Return the arrays of a part of the graph: `nodes` (n,) in rising order, `edges` (2, m)."""
    ends = np.searchsorted(nodes, edges)  # (2, m) positions in `nodes`
    arrays: Arrays = {
        f"x_{part_number}": np.asarray(federation.features[nodes], dtype=np.float32),
        f"y_{part_number}": federation.labels[nodes],
        f"edges_{part_number}": np.hstack([ends, ends[::-1]]),
    }
    for split, rows in zip(SPLITS, splits, strict=True):
        arrays[f"{split}_{part_number}"] = np.isin(nodes, rows)
    return arrays


REVISION = 1
"""Raised when this bridge, not FederatedScope, changes the numbers."""
LIMIT_S = 3600.0
"""Real seconds that one course may take for the rounds of one query."""
MAX_LIVE = 32
"""Courses that wait in FederatedScope's process, to be continued."""
MAX_NUMBERS = 2**27
"""Parameters of all models of these courses."""
MAX_CURVES = 2**26
"""Numbers in all stored curves, with or without a course that waits."""

Key = tuple[object, ...]


@dataclass
class _CachedCourse:
    """The curve of a course, and the course itself while it waits in the process."""

    request: CourseRequest
    curve: Curve
    course: RemoteCourse | None
    rounds: int

    def end(self) -> None:
        """End the course; its curve stays."""
        if self.course is not None:
            self.course.drop()
            self.course = None


class FederatedScope(Backend):
    """Trains courses with FederatedScope, in a separate interpreter, on the same federation.

    Fewer rounds are read off the curve of a course, and more rounds continue it. A course starts
    again if its process ended, or if it was dropped because of `MAX_LIVE` or `MAX_NUMBERS`.
    """

    name = "federatedscope"

    def __init__(
        self,
        task: Task,
        seed: int | None = None,
        source: str | None = None,
        interpreter: str | None = None,
        time_limit_s: float = LIMIT_S,
        own_data: Mapping[str, Any] | None = None,
    ) -> None:
        require_supported(task)
        installation = find_installation(source, interpreter)
        super().__init__(task, seed, task.space, task.asked_fidelity_space())
        self._arguments = (source, interpreter, time_limit_s, own_data)
        self._limit_s = checked_limit(time_limit_s)
        self._own_data = _checked_data(own_data)
        self._samples: NDArray[np.int64] | None = None
        if own_data is None:
            federations = [training.task_federation(task, s) for s in self.seeds]
            self._samples = np.stack([federation.num_samples for federation in federations])
        self._lease = ProcessHandle(installation)
        self._kept: OrderedDict[Key, _CachedCourse] = OrderedDict()
        require_layout(task, self._lease.peer().versions.get("layout", ""))

    def __reduce__(self) -> tuple[Any, ...]:
        kind, arguments = super().__reduce__()
        return kind, (*arguments, *self._arguments)

    @property
    def fingerprint(self) -> str:
        versions = self._lease.peer().versions
        names = [versions.get(name, "") for name in ("federatedscope", "torch", "numpy")]
        own_data = json.dumps(self._own_data, sort_keys=True)
        data = training.data_fingerprint(self.task) if self._own_data is None else own_data
        text = f"{data} {self.task.table_name} FederatedScope {' '.join(names)} {REVISION}"
        return f"federatedscope-sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def versions(self) -> dict[str, str]:
        """Versions of FederatedScope, its layout of keys, Python, torch and numpy."""
        return dict(self._lease.peer().versions)

    def describe(self) -> dict[str, object]:
        return described(self._lease.peer())

    def close(self) -> None:
        """Release the process; it ends with the last environment that uses it."""
        for cached in self._kept.values():
            cached.end()
        self._lease.close()

    def look_up(self, columns: Mapping[str, NDArray[Any]], reads: Entries = ENTRIES) -> Evaluations:
        return Evaluations.stack([self._answer(*query) for query in self.queries(columns)])

    def _answer(self, configuration: Mapping[str, Value], fidelity: Fidelity) -> Evaluation:
        trained = [self._trained(configuration, fidelity, seed) for seed in self.seeds]
        rounds = [r for r in self.task.evaluated_rounds if r <= fidelity.round]
        metrics = np.stack([cached.curve.at(rounds) for cached in trained])
        diverged = np.array([cached.curve.diverged_at for cached in trained], dtype=np.int64)
        assert self._samples is not None  # noqa: S101 - `_new` sets them
        arrays = (metrics, np.array(rounds), diverged)
        return evaluation_from_curves(*arrays, self._samples.copy(), self.seeds, fidelity)

    def _trained(
        self, configuration: Mapping[str, Value], fidelity: Fidelity, seed: int
    ) -> _CachedCourse:
        """Return a course after it has trained the requested rounds."""
        key: Key = (*configuration.values(), fidelity.client_sample_rate, seed)
        cached = self._kept.get(key)
        stands = cached is not None and cached.course is not None and cached.course.alive
        if cached is None or not (
            cached.rounds >= fidelity.round or cached.curve.diverged_at or stands
        ):
            cached = self._kept[key] = self._new(configuration, fidelity, seed)
        self._kept.move_to_end(key)
        if cached.rounds < fidelity.round and not cached.curve.diverged_at:
            assert cached.course is not None  # noqa: S101 - it continues
            self._train(cached, cached.course, fidelity.round, seed)
            if cached.curve.diverged_at:
                self._take_first(cached)
        self._forget(configuration)
        return cached

    def _train(self, cached: _CachedCourse, course: RemoteCourse, rounds: int, seed: int) -> None:
        deadline = time.monotonic() + self._limit_s
        title = f"FederatedScope {self.task.name} seed {seed}"
        with tqdm(
            total=rounds, initial=cached.rounds, desc=title, unit="round", leave=False, disable=None
        ) as bar:

            def hear(message: Message) -> None:
                cached.curve.hear(message)
                if "trained" in message:
                    bar.update(whole(message, "trained") - bar.n)

            # Training stops at every evaluated round, so that a course that diverges ends early.
            for stop in [r for r in self.task.evaluated_rounds if cached.rounds < r <= rounds]:
                course.advance(stop, hear, deadline)
                cached.rounds = stop
                if cached.curve.diverged_at:  # later rounds are not used
                    break

    def _new(
        self, configuration: Mapping[str, Value], fidelity: Fidelity, seed: int
    ) -> _CachedCourse:
        request = CourseRequest(
            task=self.task,
            configuration=configuration,
            client_sample_rate=fidelity.client_sample_rate,
            seed=seed,
            rounds=self.task.max_round,
            evaluated=self.task.evaluated_rounds,
            own_data=self._own_data,
        )
        course = RemoteCourse(self._lease.peer(), request, self._limit_s)
        if self._samples is None:
            counts = sample_counts(course.evaluate(), self.task.num_clients)
            self._samples = np.stack([counts] * len(self.seeds))
        return _CachedCourse(request, Curve(self._samples[self.seeds.index(seed)]), course, 0)

    def _take_first(self, cached: _CachedCourse) -> None:
        """End a course that diverged; without a finite round, its curve is the untrained model."""
        cached.end()
        if cached.curve.rounds:
            return
        fresh = RemoteCourse(self._lease.peer(), cached.request, self._limit_s)
        metrics = first_metrics(fresh.evaluate(), cached.curve.num_samples)
        fresh.drop()
        cached.curve.rounds.append(0)
        cached.curve.metrics.append(metrics)

    def _forget(self, configuration: Mapping[str, Value]) -> None:
        """End courses above the limits, oldest first, and then drop their curves."""
        models = 2 if self.task.algorithm != "fedopt" else 1 + self.task.num_clients
        size = models * self.task.parameters_of(configuration)
        most = max(1, min(MAX_LIVE, MAX_NUMBERS // size))
        live = [cached for cached in self._kept.values() if cached.course is not None]
        for cached in live[: max(len(live) - most, 0)]:
            cached.end()
        numbers = sum(sum(m.size for m in cached.curve.metrics) for cached in self._kept.values())
        while numbers > MAX_CURVES and len(self._kept) > len(self.seeds):
            _, cached = self._kept.popitem(last=False)
            numbers -= sum(m.size for m in cached.curve.metrics)
            cached.end()


def described(peer: Peer) -> dict[str, object]:
    """Return version, interpreter and working folder of a process, as in `info`."""
    where = peer.installation
    return {
        "federatedscope": {
            "version": peer.versions.get("federatedscope", ""),
            "torch": peer.versions.get("torch", ""),
            "source": str(where.source),
            "interpreter": str(where.interpreter),
            "folder": str(peer.folder),
        }
    }


def checked_limit(value: object) -> float:
    """Return a time limit."""
    return float(coerce("time_limit_s", value, Annotated[float, Range(0, ends="()")]))


def _checked_data(entries: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if entries is None:
        return None
    checked = dict(coerce("own_data", entries, Mapping[str, Any]))
    if "data.type" not in checked or not all(key.startswith("data.") for key in checked):
        raise InvalidArgumentError(
            "`own_data` must hold entries `data.*` of FederatedScope's configuration, `data.type` "
            f"among them, got {short_repr(checked)}"
        )
    return checked
