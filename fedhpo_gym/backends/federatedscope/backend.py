"""Real training with FederatedScope."""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.backends import training
from fedhpo_gym.backends.base import Backend
from fedhpo_gym.backends.federatedscope.configuration import (
    first_metrics,
    require_layout,
    require_supported,
    sample_counts,
    whole,
)
from fedhpo_gym.backends.federatedscope.installation import find
from fedhpo_gym.backends.federatedscope.process import Lease, Message, Peer
from fedhpo_gym.backends.federatedscope.remote_course import CourseRequest, Curve, RemoteCourse
from fedhpo_gym.core.checks import Range, as_typed, shown
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import (
    ENTRIES,
    Entries,
    Evaluation,
    Evaluations,
    Fidelity,
    evaluation_of,
)
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import Task

REVISION = 1
"""Raised when numbers change that this bridge, and not FederatedScope, decides."""
LIMIT_S = 3600.0
"""Real seconds that one course may take for the rounds of one query."""
MAX_LIVE = 32
"""Courses that stand still in FederatedScope's process, to go on where they stand."""
MAX_NUMBERS = 2**27
"""Parameters of all models of these courses."""
MAX_CURVES = 2**26
"""Numbers of the curves that are kept, whatever becomes of their courses."""

Key = tuple[object, ...]


@dataclass
class _CachedCourse:
    """What is known of a course: its curve, and the course itself while it stands still."""

    request: CourseRequest
    curve: Curve
    course: RemoteCourse | None
    rounds: int

    def end(self) -> None:
        """Let the course go; what was heard of it stays."""
        if self.course is not None:
            self.course.drop()
            self.course = None


class FederatedScope(Backend):
    """Trains courses with FederatedScope, in an interpreter of its own, on our very federation.

    Fewer rounds are read off a course's curve, and more continue where it stands; it starts over
    where its process had to end, or room was needed.
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
        installation = find(source, interpreter)
        super().__init__(task, seed, task.space, task.asked_fidelity_space())
        self._arguments = (source, interpreter, time_limit_s, own_data)
        self._limit_s = checked_limit(time_limit_s)
        self._own_data = _checked_data(own_data)
        self._samples: NDArray[np.int64] | None = None
        if own_data is None:
            federations = [training.task_federation(task, s) for s in self.seeds]
            self._samples = np.stack([one.num_samples for one in federations])
        self._lease = Lease(installation)
        self._kept: OrderedDict[Key, _CachedCourse] = OrderedDict()
        require_layout(task, self._peer.versions.get("layout", ""))

    def __reduce__(self) -> tuple[Any, ...]:
        kind, arguments = super().__reduce__()
        return kind, (*arguments, *self._arguments)

    @property
    def fingerprint(self) -> str:
        known = self._peer.versions
        words = [known.get(name, "") for name in ("federatedscope", "torch", "numpy")]
        own = json.dumps(self._own_data, sort_keys=True)
        data = training.data_fingerprint(self.task) if self._own_data is None else own
        text = f"{data} {self.task.table_name} FederatedScope {' '.join(words)} {REVISION}"
        return f"federatedscope-sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def versions(self) -> dict[str, str]:
        """Versions of FederatedScope, its layout of keys, Python, torch and numpy."""
        return dict(self._peer.versions)

    def describe(self) -> dict[str, object]:
        return described(self._peer)

    def close(self) -> None:
        """Give the process back; it ends with the last environment that uses it."""
        for kept in self._kept.values():
            kept.end()
        self._lease.close()

    @property
    def _peer(self) -> Peer:
        return self._lease.peer()

    def look_up(self, columns: Mapping[str, NDArray[Any]], reads: Entries = ENTRIES) -> Evaluations:
        return Evaluations.stack([self._answer(*query) for query in self.queries(columns)])

    def _answer(self, configuration: Mapping[str, Value], fidelity: Fidelity) -> Evaluation:
        kept = [self._trained(configuration, fidelity, seed) for seed in self.seeds]
        rounds = [r for r in self.task.evaluated_rounds if r <= fidelity.round]
        metrics = np.stack([one.curve.at(rounds) for one in kept])
        diverged = np.array([one.curve.diverged_at for one in kept], dtype=np.int64)
        assert self._samples is not None  # noqa: S101 - a course that has trained told them
        known = (metrics, np.array(rounds), diverged)
        return evaluation_of(*known, self._samples.copy(), self.seeds, fidelity)

    def _trained(
        self, configuration: Mapping[str, Value], fidelity: Fidelity, seed: int
    ) -> _CachedCourse:
        """Return what is known of a course once it has taken the rounds asked for."""
        key: Key = (*configuration.values(), fidelity.client_sample_rate, seed)
        kept = self._kept.get(key)
        stands = kept is not None and kept.course is not None and kept.course.alive
        if kept is None or not (kept.rounds >= fidelity.round or kept.curve.diverged_at or stands):
            kept = self._kept[key] = self._new(configuration, fidelity, seed)
        self._kept.move_to_end(key)
        if kept.rounds < fidelity.round and not kept.curve.diverged_at:
            assert kept.course is not None  # noqa: S101 - it goes on
            self._train(kept, kept.course, fidelity.round, seed)
            if kept.curve.diverged_at:
                self._take_first(kept)
        self._forget(configuration)
        return kept

    def _train(self, kept: _CachedCourse, course: RemoteCourse, rounds: int, seed: int) -> None:
        deadline = time.monotonic() + self._limit_s
        title = f"FederatedScope {self.task.name} seed {seed}"
        with tqdm(
            total=rounds, initial=kept.rounds, desc=title, unit="round", leave=False, disable=None
        ) as bar:

            def hear(message: Message) -> None:
                kept.curve.hear(message)
                if "trained" in message:
                    bar.update(whole(message, "trained") - bar.n)

            # It stands still on its way, so that one that diverges ends there.
            for stop in [r for r in self.task.evaluated_rounds if kept.rounds < r <= rounds]:
                course.advance(stop, hear, deadline)
                kept.rounds = stop
                if kept.curve.diverged_at:  # what follows counts for nothing
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
        course = RemoteCourse(self._peer, request, self._limit_s)
        if self._samples is None:
            counts = sample_counts(course.evaluate(), self.task.num_clients)
            self._samples = np.stack([counts] * len(self.seeds))
        return _CachedCourse(request, Curve(self._samples[self.seeds.index(seed)]), course, 0)

    def _take_first(self, kept: _CachedCourse) -> None:
        """End a course that diverged; its last finite model may be the one that it began with."""
        kept.end()
        if kept.curve.rounds:
            return
        fresh = RemoteCourse(self._peer, kept.request, self._limit_s)
        found = first_metrics(fresh.evaluate(), kept.curve.num_samples)
        fresh.drop()
        kept.curve.rounds.append(0)
        kept.curve.metrics.append(found)

    def _forget(self, configuration: Mapping[str, Value]) -> None:
        """Let the courses go that there is no room for, the oldest first, and then their curves."""
        models = 2 if self.task.algorithm != "fedopt" else 1 + self.task.num_clients
        size = models * self.task.parameters_of(configuration)
        most = max(1, min(MAX_LIVE, MAX_NUMBERS // size))
        live = [kept for kept in self._kept.values() if kept.course is not None]
        for kept in live[: max(len(live) - most, 0)]:
            kept.end()
        numbers = sum(sum(m.size for m in kept.curve.metrics) for kept in self._kept.values())
        while numbers > MAX_CURVES and len(self._kept) > len(self.seeds):
            _, kept = self._kept.popitem(last=False)
            numbers -= sum(m.size for m in kept.curve.metrics)
            kept.end()


def described(peer: Peer) -> dict[str, object]:
    """Return version, interpreter and working folder of a process, as `info` says them."""
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
    return float(as_typed("time_limit_s", value, Annotated[float, Range(0, ends="()")]))


def _checked_data(entries: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if entries is None:
        return None
    given = dict(as_typed("own_data", entries, Mapping[str, Any]))
    if "data.type" not in given or not all(key.startswith("data.") for key in given):
        raise InvalidArgumentError(
            "`own_data` must hold entries `data.*` of FederatedScope's configuration, `data.type` "
            f"among them, got {shown(given)}"
        )
    return given
