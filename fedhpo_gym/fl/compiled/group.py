"""Courses of one federation and model shape: their state, and one round of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.seeding import stream
from fedhpo_gym.fl import records
from fedhpo_gym.fl.algorithms import Algorithm, Context
from fedhpo_gym.fl.algorithms.base import VARIATE
from fedhpo_gym.fl.compiled import draws, training
from fedhpo_gym.fl.compiled.problem import Problem
from fedhpo_gym.fl.compiled.settings import Chosen
from fedhpo_gym.fl.compiled.training import Items
from fedhpo_gym.fl.engine import Group
from fedhpo_gym.fl.minibatches import poisson_clients
from fedhpo_gym.fl.packing import Course
from fedhpo_gym.fl.records import CourseState, Feedback

Numbers = NDArray[np.float32]
_ALL = slice(None)
_NOBODY = np.empty((0, 0), dtype=np.float32)


class CourseGroup(Group):
    """See `Group`. What a course computes depends on nothing beside it."""

    seconds: NDArray[np.float64] | None = None

    def __init__(
        self,
        positions: Sequence[int],
        courses: Sequence[Course],
        problem: Problem,
        algorithm: Algorithm,
        horizon: int,
    ) -> None:
        """Initialise every course from its seed."""
        self.positions = np.array(positions)
        self.problem = problem
        self._algorithm = algorithm
        self._horizon = horizon
        self._layout = problem.layout
        self._words = draws.entropy(problem.federation.seed, "minibatches", 2)
        self._clients = problem.federation.num_clients
        model, names = problem.model, [part.name for part in self._layout.parts]
        self._personal_names = algorithm.personal(names, model.norms) | model.personal
        kept = frozenset(names) if algorithm.keeps_copy else self._personal_names
        spans = [part.span for part in self._layout.parts if part.name in kept]
        self._columns = np.concatenate([np.r_[span] for span in spans] or [np.empty(0, int)])
        self._untrained = model.buffers | self._personal_names
        shape = len(courses)
        self._finished = np.zeros(shape, dtype=np.int64)
        self.diverged_at = np.zeros(shape, dtype=np.int64)
        self._numbers = np.repeat(problem.initial[None], shape, axis=0)
        self._personal = np.empty((shape, self._clients, len(self._columns)), dtype=np.float32)
        self._personal[:] = problem.initial[self._columns]
        kept_variates = self._clients if algorithm.keeps_variates else 0
        self._variates = np.zeros((shape, kept_variates, self._layout.size), dtype=np.float32)
        self.configure(courses)
        self._server: dict[str, Any] = {}
        self._server = self._initial_server()

    def configure(self, courses: Sequence[Course]) -> None:
        """See `Group.configure`."""
        self._chosen = Chosen(
            courses,
            self.problem.num_samples,
            self._algorithm,
            self._horizon,
            self.problem.federation.seed,
            self.problem.model.min_rows,
        )
        self._everybody: tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]] | None
        self._everybody = None
        if (self._chosen.num_sampled >= self._clients).all():
            everybody = np.ones((len(courses), self._clients), dtype=np.bool_)
            course, client = np.nonzero(everybody)
            self._everybody = everybody, course.copy(), client.copy()

    def restart(self, row: int) -> None:
        """Set a course back to round 0."""
        self._finished[row] = self.diverged_at[row] = 0
        self._numbers[row] = self.problem.initial
        self._personal[row] = self.problem.initial[self._columns]
        self._variates[row] = 0.0
        for name, value in self._initial_server().items():
            self._server[name][:, row] = value[:, row]

    def step(self, feedback: Feedback | None, index: int, metrics: bool) -> None:
        """See `Group.step`."""
        self._chosen.begin_round(self._finished)
        items = self._items()
        before = self._trained(self._numbers)
        context = self._context()
        sent = self._algorithm.broadcast(before, context)
        start = self._numbers if sent is before else self._written(self._numbers, sent)
        average = np.zeros_like(self._numbers)
        reports = {n: v.copy() for n, v in self._algorithm.reports(before, context).items()}
        changes: list[tuple[Items, Mapping[str, Any]]] = []
        kept = feedback is not None or self._algorithm.sends_updates
        share, weight = self._shares(items)
        buffers = self._layout.trained < self._layout.size and self._algorithm.counts_equally
        running = np.zeros_like(average) if buffers else average
        portions, mean = list(self._portions(items)), self._no_updates()
        cut = self._cut(items, portions) if feedback is not None else []
        self._add_updates(items, cut, start, weight, mean)
        for some in portions:
            part, local, received = self._trained_portion(items, some, start, kept=kept)
            counts = weight[some]
            if feedback is not None:
                if some not in cut:
                    training.add_updates(part, counts, received, local, mean)
                self._observe(feedback, index, part, mean, received, local, metrics)
            uploaded, said = self._upload(part, received, local)
            training.add_up(part, counts, uploaded, average)
            if buffers:
                training.add_up(part, share[some], uploaded, running)
            for name, total in reports.items():
                rows = _rows(total)
                training.add_up(part, counts, _rows(said[name]), rows)
                total[...] = np.moveaxis(rows.reshape(np.moveaxis(total, 1, 0).shape), 0, 1)
            if self._algorithm.keeps_variates:
                changes.append((part, said))
        if buffers:
            nobody = np.bincount(items.course, minlength=len(running)) == 0
            running[nobody] = start[nobody]
            average[:, self._layout.trained :] = running[:, self._layout.trained :]
        self._finished += 1
        self._commit(start, average, reports)
        for part, said in changes:
            self._change_variates(part, said)

    def _trained_portion(
        self, items: Items, some: slice, start: Numbers, *, kept: bool
    ) -> tuple[Items, Numbers, Numbers]:
        """Return some items, what they made of what they received, and the latter if it is kept."""
        part = items if some == _ALL else Items(*(values[some] for values in items))
        local = start[part.course]
        if not self._algorithm.keeps_copy:
            local[:, self._columns] = self._personal[part.course, part.client]
        received = local.copy() if kept else local
        self._train(part, local)
        return part, local, received

    def _cut(self, items: Items, portions: Sequence[slice]) -> list[slice]:
        """Return the portions with a course that lies in others, too."""
        counts = np.bincount(items.course, minlength=len(self.positions))
        own = [np.bincount(items.course[some], minlength=len(counts)) for some in portions]
        return [p for p, n in zip(portions, own, strict=True) if ((n > 0) & (n < counts)).any()]

    def _add_updates(
        self,
        items: Items,
        portions: Sequence[slice],
        start: Numbers,
        weight: Numbers,
        mean: NDArray[np.float64],
    ) -> None:
        """Add up updates of clients that do not fit into memory together, and forget them.

        They train again for all else: a cosine with the mean is known when all have trained.
        """
        personal = self._personal.copy()
        for some in portions:
            part, local, received = self._trained_portion(items, some, start, kept=True)
            training.add_updates(part, weight[some], received, local, mean)
        self._personal = personal

    def _no_updates(self) -> NDArray[np.float64]:
        return np.zeros((len(self.positions), self._layout.trained))

    def _change_variates(self, items: Items, sent: Mapping[str, Any]) -> None:
        """Add to the variates of clients what they sent; courses that diverged keep theirs."""
        change = np.zeros((len(items.course), self._layout.size), dtype=np.float32)
        names = [part.name for part in self._layout.parts]
        own = {n: sent[VARIATE + n] for n in names if VARIATE + n in sent}
        self._layout.write(change, own)
        change[self.diverged_at[items.course] > 0] = 0.0
        self._variates[items.course, items.client] += change

    def sampled(self, ahead: int = 0) -> NDArray[np.bool_]:
        """See `Group.sampled`."""
        found = np.zeros((len(self.positions), self._clients), dtype=np.bool_)
        if self._everybody is not None:
            return self._everybody[0]
        for row, clients in enumerate(self._participants(ahead)):
            found[row, clients] = True
        return found

    def _participants(self, ahead: int = 0) -> Iterator[NDArray[np.int64]]:
        """Yield who trains in a round of each course, in no order."""
        seed, orders = self.problem.federation.seed, {}
        for row, finished in enumerate((self._finished + ahead).tolist()):
            if self._algorithm.poisson:
                number = int(self._chosen.num_sampled[row])
                yield poisson_clients((seed, finished), number, self._clients)
                continue
            if finished not in orders:
                orders[finished] = stream(seed, "clients", finished).permutation(self._clients)
            yield orders[finished][: self._chosen.num_sampled[row]]

    def measure(self) -> Numbers:
        """See `Group.measure`."""
        clients = np.arange(self._clients)
        if not len(self._columns):
            return self.problem.measure(self._numbers, np.tile(clients, (len(self._numbers), 1)))
        found = []
        for own, personal in zip(self._numbers, self._personal, strict=True):
            models = np.repeat(own[None], self._clients, axis=0)
            models[:, self._columns] = personal
            found.append(self.problem.measure(models, clients[:, None])[:, 0])
        return np.stack(found)

    def freeze(self, diverged: NDArray[np.bool_]) -> None:
        """See `Group.freeze`."""
        new = diverged & (self.diverged_at == 0)
        self.diverged_at[new] = self._finished[new]

    def get(self, row: int) -> CourseState:
        """See `Group.get`."""
        views = self._layout.views(self._numbers[row : row + 1])
        kept = np.repeat(self._numbers[row : row + 1], self._clients, axis=0)
        kept[:, self._columns] = self._personal[row]
        names = [p.name for p in self._layout.parts if np.isin(p.offset, self._columns)]
        own = self._layout.views(kept)
        return CourseState(
            {name: value[:, 0].copy() for name, value in views.items()},
            {name: value[:, row].copy() for name, value in self._server.items()},
            {name: own[name].copy() for name in names},
            int(self._finished[row]),
            int(self.diverged_at[row]),
            variates=self._copies_of_variates(row),
        )

    def _copies_of_variates(self, row: int) -> dict[str, Any]:
        if not self._algorithm.keeps_variates:
            return {}
        return {n: v.copy() for n, v in self._trained(self._variates[row]).items()}

    def put(self, row: int, state: CourseState) -> None:
        """Set the state of one course."""
        own = self._numbers[row : row + 1]
        self._layout.write(own, {n: v[:, None] for n, v in state.parameters.items()})
        for name, value in state.server.items():
            self._server[name][:, row] = value
        if state.personal:
            kept = np.repeat(own, self._clients, axis=0)
            self._layout.write(kept, state.personal)
            self._personal[row] = kept[:, self._columns]
        if state.variates:
            self._layout.write(self._variates[row], state.variates)
        self._finished[row], self.diverged_at[row] = state.round, state.diverged_at

    def _items(self) -> Items:
        if self._everybody is None:
            drawn = [np.sort(clients) for clients in self._participants()]
            client = np.concatenate(drawn)
            course = np.repeat(np.arange(len(drawn)), [len(clients) for clients in drawn])
        else:
            _, course, client = self._everybody
        return Items(course, client, self._finished[course])

    def _shares(self, items: Items) -> tuple[Numbers, Numbers]:
        """Return the shares that items have in the samples of their course, and what they count."""
        samples = self.problem.num_samples[items.client]
        total = np.bincount(items.course, samples, minlength=len(self.positions))
        share = (samples / np.maximum(total, 1)[items.course]).astype(np.float32)
        if not self._algorithm.counts_equally:
            return share, share
        return share, (1.0 / self._chosen.num_sampled[items.course]).astype(np.float32)

    def _portions(self, items: Items) -> Iterator[slice]:
        """Yield items that fit into memory together; courses stay together.

        How a course is split that is too large does not depend on the others.
        """
        limit = max(records.MAX_LOCAL_BYTES // (4 * self._layout.size), 1)
        if len(items.course) <= limit:
            if len(items.course):
                yield _ALL
            return
        counts = np.bincount(items.course, minlength=len(self.positions))
        first, used = 0, 0
        for count in counts.tolist():
            if used and used + count > limit:
                yield slice(first, first + used)
                first, used = first + used, 0
            used += count
            while used > limit:
                yield slice(first, first + limit)
                first, used = first + limit, used - limit
        if used:
            yield slice(first, first + used)

    def _train(self, items: Items, local: Numbers) -> None:
        """Train the (items, numbers) that clients received, in place."""
        pull = self._algorithm.pull(self._context(items))
        if self._algorithm.keeps_copy:
            own = local.copy()
            own[:, self._columns] = self._personal[items.course, items.client]
            self._run(items, own, pull, local)
            self._keep(items, own)
            self._run(items, local)
            return
        self._run(items, local, pull, local.copy() if pull is not None else _NOBODY)
        self._keep(items, local)

    def _run(
        self, items: Items, local: Numbers, pull: Any = None, anchor: Numbers = _NOBODY
    ) -> None:
        chosen = self._chosen
        training.train(
            self.problem.data,
            self.problem.train_rows,
            self._words,
            chosen.local if pull is None else chosen.pulled(pull, items),
            items,
            np.argsort(items.client, kind="stable"),
            self.diverged_at == 0,
            local,
            anchor if pull is not None else _NOBODY,
            self._shift(items),
            self.problem.model.memory(chosen.rows),
        )

    def _shift(self, items: Items) -> Numbers:
        """Return what is added to gradients, (items, numbers)."""
        if not self._algorithm.keeps_variates:
            return _NOBODY
        shift = np.zeros((len(items.course), self._layout.size), dtype=np.float32)
        self._layout.write(shift, self._algorithm.correction(self._context(items)))
        return shift

    def _keep(self, items: Items, own: Numbers) -> None:
        """Keep what stays with the clients; one that diverged keeps its last finite model."""
        if not len(self._columns):
            return
        kept = np.ascontiguousarray(own[:, self._columns])
        finite = _finite(kept)
        self._personal[items.course[finite], items.client[finite]] = kept[finite]

    def _upload(
        self, items: Items, received: Numbers, local: Numbers
    ) -> tuple[Numbers, Mapping[str, Any]]:
        """Return what clients send: (items, numbers), and what else by name."""
        if self._algorithm.sends_updates:
            trained = self._layout.trained
            local[:, :trained] -= received[:, :trained]
        own = self._trained(local)
        sent = self._algorithm.upload(own, self._context(items))
        return local if sent is own else self._written(local, sent), sent

    def _observe(
        self,
        feedback: Feedback,
        index: int,
        items: Items,
        mean: NDArray[np.float64],
        received: Numbers,
        local: Numbers,
        metrics: bool,
    ) -> None:
        """Note what clients report of a round; `mean` is the (courses, trained) mean update."""
        at = self.positions[items.course], index, items.client
        found = np.empty((len(local), 2), dtype=np.float32)
        training.compare(items, received, local, mean, records.MAX_NORM, found)
        feedback.sampled[at] = True
        feedback.update_norm[at], feedback.alignment[at] = found[:, 0], found[:, 1]
        if metrics:
            client = items.client[:, None]
            feedback.before[at] = self.problem.measure(received, client)[:, 0]
            feedback.after[at] = self.problem.measure(local, client)[:, 0]

    def _commit(
        self, start: Numbers, average: Numbers, reports: Mapping[str, Any] | None = None
    ) -> None:
        """Finish a round; a course that met a non-finite number keeps its last finite state."""
        means = {**self._trained(average), **(reports or {})}
        updated, state = self._algorithm.server_update(
            self._trained(start), means, self._server, self._context()
        )
        if self._personal_names:
            kept = self._layout.views(start)
            self._layout.write(average, {name: kept[name] for name in self._personal_names})
        if updated is not means:
            self._layout.write(average, updated)
        finite = _finite(average)
        for value in state.values():
            finite &= np.isfinite(value).all(axis=tuple(a for a in range(value.ndim) if a != 1))
        if not finite.all():
            self.freeze(~finite)
        if stopped := np.flatnonzero(self.diverged_at).tolist():
            average[stopped] = self._numbers[stopped]
            state = {name: value.copy() for name, value in state.items()}
            for name, value in state.items():
                value[:, stopped] = self._server[name][:, stopped]
        self._numbers, self._server = average, dict(state)

    def _initial_server(self) -> dict[str, Any]:
        initial = np.repeat(self.problem.initial[None], len(self.positions), axis=0)
        return dict(self._algorithm.init_state(self._trained(initial), self._context()))

    def _trained(self, numbers: Numbers) -> dict[str, Any]:
        """Return views of the parameters that the server's optimiser updates."""
        return dict(self._layout.views(numbers, self._untrained))

    def _written(self, numbers: Numbers, values: Mapping[str, Any]) -> Numbers:
        """Return a copy of (items, numbers) with some parameters replaced."""
        numbers = numbers.copy()
        self._layout.write(numbers, values)
        return numbers

    def _context(self, items: Items | None = None) -> Context:
        def variates() -> dict[str, Any]:
            if items is None:
                return {}
            return self._trained(self._variates[items.course, items.client])

        return self._chosen.context(items, self._finished, self._server, variates)


def _rows(values: Any) -> Numbers:
    """Return a copy of (own, items, ..) values as (items, numbers)."""
    return np.array(np.moveaxis(values, 1, 0).reshape(values.shape[1], -1), order="C")


def _finite(numbers: Numbers) -> NDArray[np.bool_]:
    """Return (n,): whether all of (n, numbers) are finite."""
    found = np.empty(len(numbers), dtype=np.bool_)
    training.finite(numbers, found)
    return found
