"""Courses of one federation and model shape: their state, and one round of all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhpo_gym.fl.algorithms import Algorithm, Context
from fedhpo_gym.fl.algorithms.base import VARIATE
from fedhpo_gym.fl.averaging import Averaging
from fedhpo_gym.fl.buffers import Buffers
from fedhpo_gym.fl.cohorts import shared_names, sharing_courses, split_cohorts
from fedhpo_gym.fl.draws import Names
from fedhpo_gym.fl.engine import Group
from fedhpo_gym.fl.feedback import GroupEvaluation, Observer, Shown
from fedhpo_gym.fl.hyperparameters import Hyperparameters
from fedhpo_gym.fl.items import Items, Roster, split_items
from fedhpo_gym.fl.local import LocalTraining
from fedhpo_gym.fl.models import Parameters
from fedhpo_gym.fl.models.base import fit
from fedhpo_gym.fl.packing import Course, Needs
from fedhpo_gym.fl.records import MAX_LOCAL_BYTES, CourseState, Feedback
from fedhpo_gym.fl.shared import SharedMatrix
from fedhpo_gym.fl.shared_together import SharedMatrices

Trained = tuple[Items, Parameters | None, Parameters, Mapping[str, SharedMatrix | SharedMatrices]]
"""Items, what they received if it was kept, what they made of it, and what they share instead."""


class Lockstep(Group):
    """See `Group`.

    Attributes:
        prepared: what they are trained on.
        parameters: global parameters, (own, courses, ..) each.
        state: the server's state, likewise.
        personal: parameters that stay with the clients, (own, courses x clients, ..).
        elapsed: number of rounds since the group was made.
    """

    seconds: NDArray[np.float64] | None = None

    def __init__(
        self,
        positions: Sequence[int],
        courses: Sequence[Course],
        needed: Sequence[Needs],
        finished: Sequence[int],
        evaluation: GroupEvaluation,
        algorithm: Algorithm,
        device: torch.device,
        horizon: int,
        buffers: Buffers,
    ) -> None:
        """Initialise every course of the group from its seed.

        Args:
            positions: where the courses stand in the batch.
            courses: the courses.
            needed: what each needs.
            finished: rounds that each has behind it.
            evaluation: what measures them, and holds what they are trained on.
            algorithm: the algorithm.
            device: torch device.
            horizon: rounds the courses will be trained for.
            buffers: memory that is used again.
        """
        self.positions = np.array(positions)
        self.prepared = prepared = evaluation.prepared
        self._evaluation = evaluation
        self.roster = Roster(needed, finished, prepared, algorithm.poisson)
        self._model = prepared.model
        self._algorithm = algorithm
        self._device = device
        self._horizon = horizon
        self._buffers = buffers
        self.elapsed = 0
        self._started = np.array(finished)
        self._local = LocalTraining(prepared, device)
        self._averaging = Averaging(self._model.together, device)
        self._places: WeakKeyDictionary[Items, tuple[Tensor, Tensor]] = WeakKeyDictionary()
        self.parameters = {
            name: torch.from_numpy(value).to(device)[:, None].repeat_interleave(len(courses), 1)
            for name, value in prepared.initial.items()
        }
        names = self.parameters.keys()
        self.personal_names = algorithm.personal(names, self._model.norms) | self._model.personal
        self._shared_names = shared_names(self._model, algorithm, self.personal_names)
        self._shares = sharing_courses(self.roster, self._shared_names, self.parameters)
        kept = frozenset(names) if algorithm.keeps_copy else self.personal_names
        clients = prepared.num_clients
        self.personal = {
            name: self.parameters[name].repeat_interleave(clients, dim=1) for name in kept
        }
        self.variates = {
            name: torch.zeros_like(value).repeat_interleave(clients, dim=1)
            for name, value in self._trained(self.parameters).items()
            if algorithm.keeps_variates
        }
        self.diverged_at = np.zeros(len(courses), dtype=np.int64)
        self.configure(courses)
        self.state: Parameters = {}
        self.state = algorithm.init_state(self._trained(self.parameters), self._context())

    def configure(self, courses: Sequence[Course]) -> None:
        """See `Group.configure`; what the courses need stays."""
        clients = self.prepared.num_clients
        self._settings = Hyperparameters(
            courses, clients, self._model, self._algorithm, self._device
        )
        self._settings.stop(self.diverged_at > 0)

    def step(self, feedback: Feedback | None, index: int, metrics: bool) -> None:
        """See `Group.step`."""
        observer = self._observer(feedback, index, metrics)
        self._settings.begin_round(self._started + self.elapsed, self._horizon)
        items = self.roster.items(self.elapsed)
        received_by_all = self._algorithm.broadcast(self._trained(self.parameters), self._context())
        start = {**self.parameters, **received_by_all}
        average = {
            name: torch.zeros_like(value)
            for name, value in start.items()
            if name not in self.personal_names
        }
        size = sum(value.numel() * value.element_size() for value in start.values())
        item_bytes = size // len(self.positions)
        reports = self._algorithm.reports(self._trained(self.parameters), self._context())
        average |= {name: value.clone() for name, value in reports.items()}
        changes: list[tuple[Items, Parameters]] = []
        seen = max(MAX_LOCAL_BYTES // item_bytes, 1)
        parts = self._parts(items, item_bytes)
        known = self._add_cut(parts, start, observer, seen)
        for part in parts:
            trained = self._train_part(part, start, observed=observer is not None)
            if observer is not None:
                if part not in known:
                    self._show(observer.add, trained, start, seen)
                self._show(observer.see, trained, start, seen)
            sent, shared = self._upload(*trained[:3]), trained[3]
            self._add({k: v for k, v in average.items() if k not in shared}, sent, part)
            for name, matrix in shared.items():
                matrix.add_to(average[name][0, part.course[0]], part.weight)
            if self.variates:
                changes.append((part, {n: sent[VARIATE + n] for n in self.variates}))
        for name in self._model.buffers if self._algorithm.poisson else ():
            nobody = np.bincount(items.course, minlength=len(self.positions)) == 0
            empty = torch.from_numpy(nobody).to(self._device)
            average[name][:, empty] = start[name][:, empty]
        self.elapsed += 1
        self._commit(start, average)
        for part, change in changes:
            self._change_variates(part, change)

    def _observer(self, feedback: Feedback | None, index: int, metrics: bool) -> Observer | None:
        if feedback is None:
            return None
        return self._evaluation.observer(self.positions, self.parameters, feedback, index, metrics)

    def measure(self) -> NDArray[np.float32]:
        """See `Group.measure`."""
        if not self.personal:
            return self._evaluation(self.parameters)
        clients = range(self.prepared.num_clients)
        metrics = [self._evaluation(self._parameters_of(client), client) for client in clients]
        return np.concatenate(metrics, axis=1)

    def sampled(self, ahead: int = 0) -> NDArray[np.bool_]:
        """See `Group.sampled`."""
        return self.roster.sampled(self.elapsed + ahead)

    def _change_variates(self, items: Items, change: Parameters) -> None:
        """Add to the variates of clients; courses that diverged keep theirs."""
        _, index = self._places_of(items)
        live = torch.from_numpy(self.diverged_at[items.course] == 0).to(self._device)
        for name, value in change.items():
            kept = torch.where(fit(live, value), value, torch.zeros_like(value))
            self.variates[name].index_add_(1, index, kept)

    def _add(self, average: Parameters, sent: Parameters, items: Items) -> None:
        """Add what items send to the averages; running statistics always by samples."""
        if not self._algorithm.counts_equally:
            self._averaging.add(average, sent, items)
            return
        own = {k: v for k, v in average.items() if k not in self._model.buffers}
        self._averaging.add(own, sent, items.counted_equally)
        rest = {k: v for k, v in average.items() if k in self._model.buffers}
        if rest:
            self._averaging.add(rest, sent, items)

    def _parts(self, items: Items, item_bytes: int) -> list[Items]:
        """Return the items in portions: of those that share matrices, each is of one course."""
        shares = self._shares[items.course]
        own, sharing = items.take(np.flatnonzero(~shares)), items.take(np.flatnonzero(shares))
        cohorts = split_cohorts(sharing, self.roster.rows.max(axis=1), self._model.together)
        return [*split_items(own if shares.any() else items, item_bytes, MAX_LOCAL_BYTES), *cohorts]

    def _add_cut(
        self, parts: Sequence[Items], start: Parameters, observer: Observer | None, seen: int
    ) -> list[Items]:
        """Add portions with a course that lies in others, too, to what is observed; return them.

        They train again for all else: what is compared with a mean must not be kept until then.
        """
        if observer is None:
            return []
        number = Counter(course for part in parts for course in set(part.course.tolist()))
        cut = [part for part in parts if any(number[c] > 1 for c in part.course.tolist())]
        personal = {name: value.clone() for name, value in self.personal.items()} if cut else {}
        for part in cut:
            self._show(observer.add, self._train_part(part, start, observed=True), start, seen)
        self.personal.update(personal)
        return cut

    def _train_part(self, items: Items, start: Parameters, *, observed: bool) -> Trained:
        """Train a portion; what it received is kept where it is observed or updates are sent."""
        course = int(items.course[0])
        names = self._shared_names if self._shares[course] else frozenset()
        rest = {name: value for name, value in start.items() if name not in names}
        shared = {name: self._share(start[name][0, course], items, name) for name in sorted(names)}
        kept = observed or self._algorithm.sends_updates
        received = self._receive(items, rest, "observed ") if kept else None
        return items, received, self._train(items, rest, shared), shared

    def _show(self, to: Shown, trained: Trained, start: Parameters, seen: int) -> None:
        """Show a portion; `seen` clients at once where their matrices must be written out."""
        items, received, local, shared = trained
        if not shared:
            to(items, received or {}, local)
            return
        for first in range(0, len(items), seen):
            index = np.arange(first, min(first + seen, len(items)))
            before, after = self._some(received or {}, index), self._some(local, index)
            for name, matrix in shared.items():
                before[name] = start[name][:, items.course[index]]
                after[name] = matrix.copies(index.tolist())[None]
            to(items.take(index), before, after)

    def _share(self, start: Tensor, items: Items, name: str) -> SharedMatrix | SharedMatrices:
        """Return matrices of clients that all start with the same (out, in) numbers."""
        if self._model.together:
            rows = int((items.steps * items.width).max())
            return SharedMatrices(start, self._model.dtype, len(items), rows)
        ranks = (items.epochs * items.samples).tolist()
        return SharedMatrix(start, self._model.dtype, ranks, self._buffers, name)

    def _some(self, parameters: Parameters, items: NDArray[np.int64]) -> Parameters:
        index = self._index(items)
        return {name: value.index_select(1, index) for name, value in parameters.items()}

    def _train(
        self,
        items: Items,
        start: Parameters,
        shared: Mapping[str, SharedMatrix | SharedMatrices] | None = None,
    ) -> Parameters:
        """Return the parameters of the items after local training, (own, items, ..)."""
        received = self._receive(items, start)
        pull = self._algorithm.pull(self._context(items))
        names = self._names(items)
        if self._algorithm.keeps_copy:
            own = self._gather_personal(items)
            self._local.run(own, items, self._settings, names, pull, received)
            self._keep(items, own)
            self._local.run(received, items, self._settings, names)
            return received
        local = received if pull is None else self._receive(items, start, "pulled ")
        shift = self._algorithm.correction(self._context(items)) if self.variates else {}
        self._local.run(local, items, self._settings, names, pull, received, shared, shift)
        self._keep(items, {name: local[name] for name in self.personal})
        return local

    def _receive(self, items: Items, start: Parameters, purpose: str = "") -> Parameters:
        """Return a copy of what local training starts from: what is sent, and what stayed.

        It is valid until the next call for the same purpose.
        """
        course, _ = self._places_of(items)
        sent = {}
        for name, value in start.items():
            shape = (value.shape[0], len(items), *value.shape[2:])
            out = self._buffers.take(purpose + name, shape, value)
            sent[name] = torch.index_select(value, 1, course, out=out)
        return sent if self._algorithm.keeps_copy else {**sent, **self._gather_personal(items)}

    def _parameters_of(self, client: int) -> Parameters:
        """Return what one client would predict with, (own, courses, ..)."""
        index = np.arange(len(self.positions)) * self.prepared.num_clients + client
        own = {k: v.index_select(1, self._index(index)) for k, v in self.personal.items()}
        return {**self.parameters, **own}

    def get(self, row: int) -> CourseState:
        """See `Group.get`."""
        clients = self._clients_of(row)
        return CourseState(
            {name: value[:, row].clone() for name, value in self.parameters.items()},
            {name: value[:, row].clone() for name, value in self.state.items()},
            {name: value[:, clients].clone() for name, value in self.personal.items()},
            int(self._started[row]) + self.elapsed,
            int(self.diverged_at[row]),
            variates={name: value[:, clients].clone() for name, value in self.variates.items()},
        )

    def put(self, row: int, state: CourseState) -> None:
        """Set the state of one course, whose rounds the group knows already."""
        clients = self._clients_of(row)
        for mine, values, place in (
            (self.parameters, state.parameters, row),
            (self.state, state.server, row),
            (self.personal, state.personal, clients),
            (self.variates, state.variates, clients),
        ):
            for name, value in values.items():
                mine[name][:, place] = value
        self.diverged_at[row] = state.diverged_at
        if state.diverged_at:
            self._settings.stop(self.diverged_at > 0)

    def _clients_of(self, row: int) -> slice:
        n = self.prepared.num_clients
        return slice(row * n, (row + 1) * n)

    def _upload(self, items: Items, received: Parameters | None, local: Parameters) -> Parameters:
        own = self._trained(local)
        if self._algorithm.sends_updates and received is not None:
            own = {name: value - received[name] for name, value in own.items()}
        return {**local, **self._algorithm.upload(own, self._context(items))}

    def _gather_personal(self, items: Items) -> Parameters:
        _, index = self._places_of(items)
        return {name: value.index_select(1, index) for name, value in self.personal.items()}

    def _keep(self, items: Items, own: Parameters) -> None:
        if not own:
            return
        _, index = self._places_of(items)
        # A client that diverged keeps its last finite model, and touches no other client.
        finite = torch.stack([_finite(value) for value in own.values()]).all(0)
        for name, value in _where(finite, own, self._gather_personal(items)).items():
            self.personal[name].index_copy_(1, index, value)

    def _trained(self, parameters: Parameters) -> Parameters:
        """Return the parameters that the server's optimiser updates."""
        left_out = self._model.buffers | self.personal_names
        return {name: value for name, value in parameters.items() if name not in left_out}

    def _commit(self, start: Parameters, average: Parameters) -> None:
        """Finish a round; a course that met a non-finite number keeps its last finite state."""
        updated, state = self._algorithm.server_update(
            self._trained(start), self._trained(average), self.state, self._context()
        )
        updated = {name: {**start, **average, **updated}[name] for name in self.parameters}
        values = (*updated.values(), *state.values())
        if not all(map(_all_finite, values)):
            finite = torch.stack([_finite(value) for value in values]).all(0)
            self.freeze(~finite.cpu().numpy())
        if (self.diverged_at > 0).any():
            keep = torch.from_numpy(self.diverged_at == 0).to(self._device)
            updated = _where(keep, updated, self.parameters)
            state = _where(keep, state, self.state)
        self.parameters, self.state = updated, state

    def freeze(self, diverged: NDArray[np.bool_]) -> None:
        """See `Group.freeze`."""
        new = diverged & (self.diverged_at == 0)
        if new.any():
            now = self._started + self.elapsed
            self.diverged_at = np.where(new, now, self.diverged_at)
            self._settings.stop(new)

    def _context(self, items: Items | None = None) -> Context:
        def variates() -> Parameters:
            if items is None:
                return {}
            _, index = self._places_of(items)
            return {name: value.index_select(1, index) for name, value in self.variates.items()}

        return self._settings.context(
            items, self.roster, self._names(items), self._horizon, self.state, variates
        )

    def _names(self, items: Items | None) -> Names:
        return self.roster.names(items, self.elapsed)

    def _places_of(self, items: Items) -> tuple[Tensor, Tensor]:
        """Return the place of each item among the courses, and among the clients of all of them."""
        if items not in self._places:
            own = items.course * self.prepared.num_clients + items.client
            self._places[items] = self._index(items.course), self._index(own)
        return self._places[items]

    def _index(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)


def _all_finite(value: Tensor) -> bool:
    low, high = torch.aminmax(value)
    return math.isfinite(float(low)) and math.isfinite(float(high))


def _finite(value: Tensor) -> Tensor:
    """(items,): all numbers of an item's tensor are finite."""
    own, items = value.shape[:2]
    if _all_finite(value):
        return value.new_ones(items, dtype=torch.bool)
    return torch.isfinite(value).reshape(own, items, -1).all(2).all(0)


def _where(keep: Tensor, new: Parameters, old: Parameters) -> Parameters:
    return {name: torch.where(fit(keep, value), value, old[name]) for name, value in new.items()}
