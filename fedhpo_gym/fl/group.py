"""A group of courses with the same federation and model shape, and the rounds that they train.

`CourseBatch` creates groups and calls `run`; `AsynchronousGroup` extends `Group`. A round samples
clients, calls the hooks of the algorithm and lets a `Trainer` do the arithmetic, in numpy arrays or
torch tensors. An item is a (course, client) pair that trains in a round, and arrays by name have
the axes (k, rows, ...), with a row for each course or item. If an algorithm only averages, several
rounds are one call of compiled code. A course that diverges keeps its last finite state.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms.base import (
    VARIATE,
    Algorithm,
    Array,
    Context,
    Parameters,
    checked_update,
    copies,
    same_arrays,
    shapes_of,
    with_shapes,
)
from fedhpo_gym.algorithms.fedavg import FedAvg
from fedhpo_gym.core.arrays import Integers
from fedhpo_gym.core.checks import short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, require_known
from fedhpo_gym.evaluation.client_feedback import ClientFeedback
from fedhpo_gym.fl.course import MAX_LOCAL_BYTES, BatchKey, Course, CourseState
from fedhpo_gym.fl.hyperparameters import Hyperparameters
from fedhpo_gym.fl.participants import ClientBatch, ClientSampler, StreamNames
from fedhpo_gym.fl.trainer import LocalObjective, LocalResult, Trainer, Values

_MAX_JOINED = 2**12
"""Largest number of items in rounds that are one call."""
ALGORITHM_HOOKS = ("init_state", "broadcast", "reports", "correction", "upload", "server_update")
ALGORITHM_FLAGS = ("keeps_copy", "sends_updates", "keeps_variates", "poisson", "asynchronous")


def only_averages(algorithm: Algorithm) -> bool:
    """Return whether an algorithm equals `FedAvg`, except for a pull of local steps."""
    same = (getattr(type(algorithm), name) is getattr(FedAvg, name) for name in ALGORITHM_HOOKS)
    return all(same) and not any(getattr(algorithm, name) for name in ALGORITHM_FLAGS)


class Group:
    """Courses of one federation and model shape, which train together."""

    def __init__(
        self,
        positions: Sequence[int],
        courses: Sequence[Course],
        needed: Sequence[BatchKey],
        trainer: Trainer,
        algorithm: Algorithm,
        horizon: int,
    ) -> None:
        self.positions = np.array(positions)  # (courses,) positions in the batch
        self._trainer = trainer
        self._algorithm = algorithm
        self._horizon = horizon
        self._clients = trainer.federation.num_clients
        num_courses = len(courses)
        self._finished = np.zeros(num_courses, dtype=np.int64)
        # (courses,) round in which values became non-finite; 0 if none.
        self.diverged_at = np.zeros(num_courses, dtype=np.int64)
        self._parameters = trainer.initial(num_courses)
        everybody = np.repeat(np.arange(num_courses), self._clients)
        self._personal = trainer.take(trainer.kept_of(self._parameters), everybody)
        self._variates = trainer.zeros(len(everybody)) if algorithm.keeps_variates else None
        self._needs: list[BatchKey] = []
        self._roster: ClientSampler | None = None
        joins = trainer.joins_rounds and only_averages(algorithm) and not trainer.kept
        self._room = MAX_LOCAL_BYTES // (2 * trainer.row_bytes) if joins else 0
        self._pulls = type(algorithm).pull is not FedAvg.pull
        self.configure(courses, needed)
        self._server: Parameters = {}
        state = algorithm.init_state(copies(self._trained(self._parameters)), self._context())
        self._server = self._copied(self._per_course("init_state", state))

    def _hook(self, name: str) -> str:
        return f"`{name}` of {self._algorithm.name!r}"

    def _per_course(self, hook: str, returned: Parameters) -> Parameters:
        """Return the arrays of a hook after checking that their second axis is the courses."""
        if not isinstance(returned, Mapping):
            raise InvalidArgumentError(
                f"{self._hook(hook)} must return a mapping of arrays, got {short_repr(returned)}"
            )
        shapes = {}
        for name, value in returned.items():
            shape = tuple(getattr(value, "shape", ()))
            shapes[name] = (*(shape or (1,))[:1], len(self.positions), *shape[2:])
        return with_shapes(self._hook(hook), returned, shapes, "arrays")

    def _copied(self, state: Parameters) -> Parameters:
        """Copy the state, because a hook may return an array twice, or one of its arguments."""
        return {name: self._trainer.array(1.0 * value) for name, value in state.items()}

    def configure(self, courses: Sequence[Course], needed: Sequence[BatchKey]) -> None:
        """Set the hyperparameters of the courses from now on."""
        if list(needed) != self._needs:
            self._roster = None
        self._courses, self._needs = courses, list(needed)
        self._settings = Hyperparameters(courses, self._trainer, self._algorithm, self._horizon)
        self._begin_round()

    def _begin_round(self) -> None:
        self._settings.begin_round(self._finished, self.diverged_at > 0)

    @property
    def roster(self) -> ClientSampler:
        """The sampler of the clients in the next rounds."""
        if self._roster is None:
            self._roster = ClientSampler(
                self._needs,
                self._finished.tolist(),
                self._trainer.federation,
                poisson=self._algorithm.poisson,
                min_rows=self._trainer.min_rows,
                longest_first=self._trainer.longest_first,
            )
        return self._roster

    def restart(self, rows: Sequence[int]) -> None:
        """Set some courses back to round 0."""
        begun = type(self)(
            rows,
            [self._courses[row] for row in rows],
            [self._needs[row] for row in rows],
            self._trainer,
            self._algorithm,
            self._horizon,
        )
        for index, row in enumerate(rows):
            self.put(row, begun.get(index))

    def at_once(self, local_metrics: bool) -> int:
        """Return the number of rounds that one call of `run` may take; 0 if it must use `step`."""
        items = int(self.roster.num_sampled.sum())
        if items > self._room or local_metrics:
            return 0
        return 1 if self._settings.decays else max(_MAX_JOINED // max(items, 1), 1)

    def run(
        self,
        feedback: ClientFeedback | None,
        index: int,
        evaluated: NDArray[np.bool_],
        metrics: bool,
    ) -> Sequence[NDArray[np.float32]]:
        """Run some rounds; return (courses, clients, splits, metrics) of each evaluated round.

        Args:
            feedback: receives the reports of clients; None for none.
            index: index of the first round in the feedback.
            evaluated: (rounds,), at most `at_once`.
            metrics: whether clients also measure models before and after local training.
        """
        if not self.at_once(metrics and feedback is not None):
            self.step(feedback, index, metrics)
            return [self.measure()] if evaluated[0] else []
        self._begin_round()
        items, round_of_item = self.roster.ahead(len(evaluated))
        compared = np.empty((0 if feedback is None else len(items), 2), dtype=np.float32)
        pull = self._pull(items, self._context(items)) if self._pulls else None
        state = self._finished, self.diverged_at
        curves = self._trainer.advance(
            self._parameters, items, round_of_item, self._settings, pull, state, evaluated, compared
        )
        self.roster.elapsed += len(evaluated)
        if feedback is not None:
            at = self.positions[items.course], index + round_of_item, items.client
            feedback.sampled[at] = True
            feedback.update_norm[at], feedback.alignment[at] = compared.T
        return list(curves)

    def step(self, feedback: ClientFeedback | None, index: int, metrics: bool) -> None:
        """Run one communication round of every course."""
        trainer, algorithm, num_courses = self._trainer, self._algorithm, len(self.positions)
        self._begin_round()
        items = self.roster.items()
        before, context = self._trained(self._parameters), self._context()
        start = self._broadcast(before, context)
        average = trainer.zeros(num_courses)
        reports = copies(self._per_course("reports", algorithm.reports(copies(before), context)))
        changes: list[tuple[ClientBatch, Parameters]] = []
        keeps_received = feedback is not None or algorithm.sends_updates
        parts = trainer.portions(items, self.roster)
        mean = None if feedback is None else trainer.no_updates(num_courses)
        cut = [] if mean is None else self._add_cut(parts, start, mean)
        for portion in parts:
            result = self._train(portion, start, kept=keeps_received)
            if feedback is not None:
                if portion not in cut:
                    self._add_updates(result, start, mean)
                self._observe(result, start, mean, feedback, index, metrics)
            own, sent = self._upload(result, reports)
            trainer.add(average, reports, own, sent, result)
            if self._variates is not None:
                # Copies, because the next portion reuses the memory behind these views.
                changes.append((portion, copies({n: sent[VARIATE + n] for n in before})))
        if algorithm.poisson:
            nobody = np.bincount(items.course, minlength=num_courses) == 0
            means, former = trainer.views(average), trainer.views(self._parameters)
            # A cohort without clients leaves the model as it is: an update of 0.
            names = trainer.model.buffers if algorithm.sends_updates else means.keys()
            for name in names & means.keys():
                means[name][:, nobody] = former[name][:, nobody]
        self._end_round(average, reports)
        for portion, added in changes:
            self._change_variates(portion, added)

    def _broadcast(self, parameters: Parameters, context: Context) -> Values:
        """Return the parameters that clients receive, one row for each course."""
        if type(self._algorithm).broadcast is Algorithm.broadcast:
            return self._parameters
        sent = self._algorithm.broadcast(copies(parameters), context)
        sent = with_shapes(self._hook("broadcast"), sent, shapes_of(parameters))
        return self._trainer.replaced(self._parameters, sent)

    def _train(self, items: ClientBatch, start: Values, *, kept: bool) -> LocalResult:
        """Train a portion; with `kept`, the result holds the received parameters."""
        trainer, algorithm, names = self._trainer, self._algorithm, self._names(items)
        context = self._context(items)
        pull = self._pull(items, context)
        shared = trainer.shared(items, start)
        local = trainer.receive(start, items, "local", shared)
        received = None
        if kept or pull is not None or algorithm.keeps_copy:
            received = trainer.receive(start, items, "received", shared)
        if algorithm.keeps_copy:
            joined = self._with_own(local, items)
            trainer.run(joined, items, self._settings, names, LocalObjective(pull, received))
            self._keep(items, joined)
            terms = LocalObjective(shift=self._correction(local, context))
            trainer.run(local, items, self._settings, names, terms)
            return LocalResult(items, received, local, shared)
        if trainer.kept:
            local = self._with_own(local, items)
            received = None if received is None else self._with_own(received, items)
        terms = LocalObjective(pull, received, shared, self._correction(local, context))
        trainer.run(local, items, self._settings, names, terms)
        self._keep(items, local)
        return LocalResult(items, received, local, shared)

    def _pull(self, items: ClientBatch, context: Context) -> Array | None:
        pull = self._algorithm.pull(context)
        return None if pull is None else self._one_each("pull", pull, len(items))

    def _one_each(self, hook: str, returned: Array, count: int) -> Array:
        """Return the (count,) array of a hook after checking its shape."""
        return with_shapes(self._hook(hook), {hook: returned}, {hook: (count,)}, "an array")[hook]

    def _correction(self, local: Values, context: Context) -> Parameters:
        added = self._algorithm.correction(context)
        if added:
            shapes = shapes_of(self._trained(local))
            for name in added:
                require_known(f"parameter of {self._hook('correction')}", name, shapes)
            with_shapes(self._hook("correction"), added, {name: shapes[name] for name in added})
        return added

    def _with_own(self, values: Values, items: ClientBatch) -> Values:
        """Return values of items with the parameters that their clients keep."""
        personal = self._trainer.take(self._personal, self._rows(items))
        return self._trainer.with_kept(values, personal)

    def _keep(self, items: ClientBatch, trained: Values) -> None:
        """Store the parameters that stay with clients; non-finite ones are not stored."""
        if not self._trainer.kept:
            return
        mine = self._trainer.kept_of(trained)
        finite = np.flatnonzero(self._trainer.finite(mine))
        rows = self._rows(items)[finite]
        self._trainer.put(self._personal, rows, self._trainer.take(mine, finite))

    def _upload(self, result: LocalResult, reports: Parameters) -> tuple[Values, Parameters]:
        """Return the parameters that clients send, and all sent arrays by name."""
        local = result.local
        if self._algorithm.sends_updates:
            local = self._trainer.updates(local, result.received)
        trained = self._trained(local)
        # The hook may change the arrays of `local` in place, or return a mapping of other arrays.
        sent = self._algorithm.upload(dict(trained), self._context(result.items))
        if not reports and self._variates is None and same_arrays(sent, trained):
            return local, trained
        shapes = shapes_of(trained)
        if self._variates is not None:
            shapes |= {VARIATE + name: shape for name, shape in shapes.items()}
        for name, zeros in reports.items():
            shapes[name] = (zeros.shape[0], len(result.items), *zeros.shape[2:])
        sent = with_shapes(self._hook("upload"), sent, shapes)
        return self._trainer.replaced(local, sent), sent

    def _add_cut(
        self, parts: Sequence[ClientBatch], start: Values, mean: Values
    ) -> list[ClientBatch]:
        """Add updates of courses that are split over portions to `mean`; return these portions.

        Reports compare each update with the mean of all, so that such portions train twice.
        """
        num_portions = np.zeros(len(self.positions), dtype=np.int64)
        for portion in parts:
            num_portions[np.unique(portion.course)] += 1
        cut = [portion for portion in parts if (num_portions[portion.course] > 1).any()]
        everybody = np.arange(len(self.positions) * self._clients)
        personal = self._trainer.take(self._personal, everybody) if cut else self._personal
        for portion in cut:
            self._add_updates(self._train(portion, start, kept=True), start, mean)
        self._personal = personal
        return cut

    def _add_updates(self, result: LocalResult, start: Values, mean: Values) -> None:
        for items, received, local in self._trainer.written_out(result, start):
            self._trainer.add_updates(items, received, local, mean)

    def _observe(
        self,
        result: LocalResult,
        start: Values,
        mean: Values,
        feedback: ClientFeedback,
        index: int,
        metrics: bool,
    ) -> None:
        """Write the reports of clients, compared with the mean updates of their courses."""
        trainer = self._trainer
        for items, received, local in trainer.written_out(result, start):
            at = self.positions[items.course], index, items.client
            feedback.sampled[at] = True
            comparison = trainer.compare(items, received, local, mean)
            feedback.update_norm[at], feedback.alignment[at] = comparison
            if metrics:
                feedback.before[at] = trainer.measure_own(received, items.client)
                feedback.after[at] = trainer.measure_own(local, items.client)

    def _end_round(self, average: Values, reports: Parameters) -> None:
        """Finish a round; a course with a non-finite value keeps its last finite state."""
        self._finished += 1
        self.roster.elapsed += 1
        trainer = self._trainer
        means, algorithm = {**self._trained(average), **reports}, self._algorithm
        # Copies, because courses that diverge return to the previous state.
        trained, state = copies(self._trained(self._parameters)), copies(self._server)
        shapes = shapes_of(trained), shapes_of(state)
        result = algorithm.server_update(trained, dict(means), state, self._context())
        updated, server = checked_update(algorithm.name, result, *shapes)
        server = self._copied(server)
        values = trainer.with_personal(average, self._parameters)
        if not same_arrays(updated, means):
            values = trainer.replaced(values, updated)
        finite = trainer.finite(values, server.values())
        if not finite.all():
            self.freeze(~finite)
        live = self.diverged_at == 0
        if not live.all():
            values = trainer.where(live, values, self._parameters)
            server = {n: trainer.choose(live, v, self._server[n]) for n, v in server.items()}
        self._parameters, self._server = values, server

    def _change_variates(self, items: ClientBatch, added: Parameters) -> None:
        """Add the sent changes to the variates of clients, except for courses that diverged."""
        live = np.flatnonzero(self.diverged_at[items.course] == 0)
        rows = self._rows(items)[live]
        for name, value in self._trained(self._variates).items():
            value[:, rows] += added[name][:, live]

    def measure(self) -> NDArray[np.float32]:
        """Return (courses, clients, splits, metrics) of the model that each client would use.

        Courses with non-finite metrics are marked as diverged.
        """
        metrics = self._measured()
        finite: NDArray[np.bool_] = np.asarray(np.isfinite(metrics).all(axis=(1, 2, 3)))
        if not finite.all():
            self.freeze(~finite)
        return metrics

    def _measured(self) -> NDArray[np.float32]:
        trainer, metrics = self._trainer, []
        if not trainer.kept:
            return trainer.measure(self._parameters)
        for client in range(self._clients):
            rows = np.arange(len(self.positions)) * self._clients + client
            models = trainer.with_kept(self._parameters, trainer.take(self._personal, rows))
            metrics.append(trainer.measure(models, client))
        return np.concatenate(metrics, axis=1)

    def sampled(self, ahead: int = 0) -> NDArray[np.bool_]:
        """Return (courses, clients): whether a client trains `ahead` rounds after the next one."""
        return self.roster.sampled(ahead)

    def freeze(self, diverged: NDArray[np.bool_]) -> None:
        """Mark (courses,) as diverged in this round and stop training them."""
        new = diverged & (self.diverged_at == 0)
        self.diverged_at[new] = self._finished[new]

    def get(self, row: int) -> CourseState:
        """Return a copy of the state of one course."""
        rows, clients = np.array([row]), self._clients_of(row)
        return CourseState(
            {n: v[:, rows][:, 0] for n, v in self._trainer.views(self._parameters).items()},
            {n: v[:, rows][:, 0] for n, v in self._server.items()},
            {n: v[:, clients] for n, v in self._trainer.kept_views(self._personal).items()},
            int(self._finished[row]),
            int(self.diverged_at[row]),
            variates={n: v[:, clients] for n, v in self._trained(self._variates).items()},
        )

    def put(self, row: int, state: CourseState) -> None:
        """Set the state of one course."""
        clients = self._clients_of(row)
        for mine, values, where in (
            (self._trainer.views(self._parameters), state.parameters, row),
            (self._server, state.server, row),
            (self._trainer.kept_views(self._personal), state.personal, clients),
            (self._trained(self._variates), state.variates, clients),
        ):
            for name, value in values.items():
                mine[name][:, where] = value
        self._finished[row], self.diverged_at[row] = state.round, state.diverged_at
        self._roster = None

    def _clients_of(self, row: int) -> Integers:
        return np.arange(row * self._clients, (row + 1) * self._clients)

    def _rows(self, items: ClientBatch) -> Integers:
        """Return the row of each item in arrays with a row for each (course, client)."""
        return items.course * self._clients + items.client

    def _trained(self, values: Values | None) -> Parameters:
        """Return views of the parameters that the server updates."""
        return {} if values is None else self._trainer.views(values, self._trainer.untrained)

    def _context(self, items: ClientBatch | None = None) -> Context:
        def variates() -> Parameters:
            if items is None or self._variates is None:
                return {}
            return self._trained(self._trainer.take(self._variates, self._rows(items)))

        return self._settings.context(
            items, self.roster, self._names(items), self._server, variates
        )

    def _names(self, items: ClientBatch | None) -> StreamNames:
        return self.roster.names(items)
