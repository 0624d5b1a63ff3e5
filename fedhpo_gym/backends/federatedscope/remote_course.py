"""A course of a task in FederatedScope's process, seen from here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.federatedscope import configuration
from fedhpo_gym.backends.federatedscope.process import Message, Peer, next_number
from fedhpo_gym.backends.training import task_federation
from fedhpo_gym.core.checks import shown
from fedhpo_gym.core.errors import FedHPOError
from fedhpo_gym.core.files import new_file
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.graph_federations import GraphFederation
from fedhpo_gym.data.records import Features
from fedhpo_gym.evaluation.records import SPLITS
from fedhpo_gym.fl.models.cnn import MEAN, STD
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import Task

Metrics = NDArray[np.float32]
Hear = Callable[[Message], None]


@dataclass(frozen=True)
class CourseRequest:
    """What a course is, from its first round on."""

    task: Task
    configuration: Mapping[str, Value]  # hyperparameters that it starts with
    client_sample_rate: float  # likewise
    seed: int  # of the federation, and FederatedScope's own
    rounds: int  # of the whole course
    evaluated: Sequence[int] | None  # rounds that end with one; None: where it stands still
    watched: bool = False  # whether it tells of every round who trained, and how
    measured: bool = False  # whether this tells what local training did to the clients' own metrics
    # entries by which FederatedScope loads data of its own; None for ours.
    own_data: Mapping[str, Any] | None = None

    def message(self, number: int, peer: Peer) -> Message:
        """Return the request of a course of this number."""
        layout = peer.versions.get("layout", "")
        configuration.require_layout(self.task, layout)
        own = self.own_data
        entries = configuration.course_entries(
            self.task, self.configuration, self.client_sample_rate, self.seed, layout, self.rounds
        )
        data = None if own is not None else str(hand_over(self.task, self.seed, peer.folder))
        return {
            "do": "start",
            "course": number,
            "entries": {**entries, **({"data.type": "fedhpo_gym"} if own is None else own)},
            "data": data,
            "evaluated": None if self.evaluated is None else list(self.evaluated),
            "watched": self.watched,
            "measured": self.measured,
            "lone_rows": self.task.model == "MLP",
        }


class RemoteCourse:
    """A course that stands still in FederatedScope's process between its rounds."""

    def __init__(self, peer: Peer, request: CourseRequest, limit_s: float) -> None:
        self.rounds = 0  # that it has finished
        self._evaluated = request.evaluated
        self._peer, self._limit_s, self._number = peer, limit_s, next_number()
        peer.ask(request.message(self._number, peer), limit_s, hear_nothing)

    @property
    def alive(self) -> bool:
        """Whether its process is still there."""
        return self._peer.alive

    def advance(self, rounds: int, hear: Hear, deadline: float | None = None) -> None:
        """Train until so many rounds are finished."""
        request = {"do": "advance", "course": self._number, "rounds": rounds}
        left = self._limit_s if deadline is None else deadline - time.monotonic()
        stops = {rounds} if self._evaluated is None else {*self._evaluated}
        due: deque[tuple[str, int]] = deque()  # every round, then the metrics where it stops
        for number in range(self.rounds + 1, rounds + 1):
            due.append(("trained", number))
            if number in stops:
                due.append(("round", number))

        def take(message: Message) -> None:
            what, number = due.popleft() if due else ("done", 0)
            if configuration.whole(message, what) != number:
                found = shown(message[what])
                raise configuration.unreadable(what, f"must be {number}, got {found}")
            hear(message)

        self._peer.ask(request, left, take)
        if due:
            what, number = due[0]
            raise configuration.unreadable(what, f"must be {number}, got the end of the answer")
        self.rounds = rounds

    def evaluate(self) -> object:
        """Return what the model is like now, client by client."""
        return self._ask("evaluate")

    def configure(self, changes: Mapping[str, Any]) -> None:
        """Change hyperparameters from the next round on."""
        self._ask("configure", **changes)

    def cohorts(self, rounds: int) -> object:
        """Return who will train in each of the next rounds."""
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
    """The learning curve of a course, as it is heard."""

    def __init__(self, num_samples: NDArray[np.integer]) -> None:
        self.rounds: list[int] = []  # after which the model was evaluated
        self.metrics: list[Metrics] = []  # (clients, splits, metrics) of each
        self.diverged_at = 0  # the round in which it left the finite numbers; 0 for never
        self.num_samples = num_samples  # (clients, splits), the samples behind each metric

    def hear(self, message: Message) -> None:
        """Take in what was said of a round; other messages are not for a curve."""
        if "round" not in message:
            return
        found = configuration.client_metrics(message.get("clients"), self.num_samples)
        self.take(configuration.whole(message, "round"), found)

    def take(self, finished: int, found: Metrics) -> None:
        """Add the metrics after a round; from the first that are not finite on, none count."""
        if self.diverged_at or not configuration.is_finite(found):
            self.diverged_at = self.diverged_at or finished
            return
        self.rounds.append(finished)
        self.metrics.append(found)

    def at(self, rounds: Sequence[int]) -> Metrics:
        """Return (rounds, clients, splits, metrics): the last finite ones where it diverged."""
        index = np.searchsorted(self.rounds, rounds, "right") - 1
        return np.stack([self.metrics[i] for i in index.tolist()])


def hear_nothing(_message: Message) -> None:
    """Hear nothing, as of what is trained again and was heard before."""


def hand_over(task: Task, seed: int, folder: Path) -> Path:
    """Write the federation of a task under one seed into a folder, unless it is there."""
    path = folder / f"{task.table_name}-{task.alpha:g}-{task.preprocessing}-seed{seed}.npz"
    if not path.exists():
        arrays = arrays_of(task_federation(task, seed))
        with new_file(path) as handle:
            np.savez(handle, **arrays)  # type: ignore[arg-type]  # no array is called allow_pickle
    return path


Arrays = dict[str, NDArray[Any]]


def arrays_of(federation: Federation) -> Arrays:
    """Return the samples of every client, numbered from 1, by split; or one graph per client."""
    arrays: Arrays = {"num_clients": np.array(federation.num_clients)}
    if isinstance(federation, GraphFederation):
        for client, splits in enumerate(federation.clients):
            nodes, edges = federation.client_nodes(client), federation.client_edges(client)
            arrays |= graph_arrays(federation, client + 1, nodes, edges, splits)
        return arrays
    for number, client_rows in enumerate(federation.clients, start=1):
        for split, rows in zip(SPLITS, client_rows, strict=True):
            arrays[f"x_{number}_{split}"] = network_inputs(federation.features[rows])
            arrays[f"y_{number}_{split}"] = federation.labels[rows]
    return arrays


def network_inputs(features: Features) -> NDArray[np.float32]:
    """Return samples as a network reads them: normalised images with channels first."""
    values = np.asarray(features)
    if values.dtype != np.uint8:
        return values.astype(np.float32)
    images = values[:, None] if values.ndim == 3 else values.transpose(0, 3, 1, 2)
    pixels = images.astype(np.float32) / np.float32(255.0)
    return np.ascontiguousarray((pixels - np.float32(MEAN)) / np.float32(STD))


def graph_arrays(
    federation: GraphFederation,
    number: int,
    nodes: NDArray[np.int64],
    edges: NDArray[np.int64],
    splits: Sequence[NDArray[np.int64]],
) -> Arrays:
    """Return the arrays of a part of the graph, under a number, with `nodes` (n,)."""
    ends = np.searchsorted(nodes, edges)
    arrays: Arrays = {
        f"x_{number}": np.asarray(federation.features[nodes], dtype=np.float32),
        f"y_{number}": federation.labels[nodes],
        f"edges_{number}": np.hstack([ends, ends[::-1]]),
    }
    for split, rows in zip(SPLITS, splits, strict=True):
        arrays[f"{split}_{number}"] = np.isin(nodes, rows)
    return arrays
