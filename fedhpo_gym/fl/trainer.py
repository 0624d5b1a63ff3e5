"""What a round asks of what computes it: compiled code, or torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms import Algorithm
from fedhpo_gym.algorithms.base import Array, Parameters
from fedhpo_gym.core.arrays import Integers
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl import course as courses
from fedhpo_gym.fl.hyperparameters import Hyperparameters
from fedhpo_gym.fl.models.model import Model
from fedhpo_gym.fl.participants import ClientBatch, ClientSampler, StreamNames, split_batch

Values = Any
"""Parameters of some rows (courses, or courses on clients) in the form in which a trainer keeps
them: (rows, numbers) in compiled code, tensors (own, rows, ..) by name for torch."""


class LocalResult(NamedTuple):
    """What items received, if it was kept, what they made of it, and what they share instead."""

    items: ClientBatch
    received: Values | None
    local: Values
    shared: Mapping[str, Any]


class LocalObjective(NamedTuple):
    """What bends the local steps of items besides weight decay."""

    pull: Array | None = None  # (items,) strength of the pull towards `anchor`
    anchor: Values | None = None
    shared: Mapping[str, Any] | None = None  # what `Trainer.shared` returned
    shift: Parameters | None = None  # added to gradients


class Trainer(ABC):
    """Trains courses of one federation and model shape, and does arithmetic on their parameters."""

    personal: frozenset[str]  # names of the parameters that stay with the clients
    kept: frozenset[str]  # of which every client keeps its own
    untrained: frozenset[str]  # that the server's optimiser does not update
    equally: bool  # whether everybody counts alike in averages; if False, by samples
    data_bytes: float = math.inf  # of what it made of the data, if it may be kept for later
    min_rows: int = 1  # rows of the smallest minibatch; smaller ones are left out
    longest_first: ClassVar[bool]  # whether items stand by width, then local steps
    joins_rounds: ClassVar[bool] = False  # whether `advance` takes rounds of averaging as one

    def __init__(
        self, federation: Federation, model: Model, algorithm: Algorithm, names: Collection[str]
    ) -> None:
        self.federation = federation
        self.model = model
        self.personal = algorithm.personal(names, model.norms) | model.personal
        self.kept = frozenset(names) if algorithm.keeps_copy else self.personal
        self.untrained = model.buffers | self.personal
        self.equally = algorithm.counts_equally

    @abstractmethod
    def array(self, values: NDArray[Any]) -> Array:
        """Return values in single precision, as hooks of algorithms read them."""

    @abstractmethod
    def power(self, base: Any, exponent: Any) -> Any:
        """Raise positive numbers to powers; those of numpy in double precision."""

    @abstractmethod
    def norm(self, values: Parameters) -> Array:
        """Return the (items,) Euclidean norm of what items have in some parameters."""

    @abstractmethod
    def initial(self, rows: int) -> Values:
        """Return what courses of the seed begin with."""

    @abstractmethod
    def zeros(self, rows: int) -> Values:
        """Return zeros for all parameters that do not stay with the clients."""

    @abstractmethod
    def views(self, values: Values, without: Collection[str] = ()) -> Parameters:
        """Return views (own, rows, ..) by name, but for some names."""

    @abstractmethod
    def kept_of(self, values: Values) -> Values:
        """Return the parameters of which every client keeps its own: those in `kept`."""

    @abstractmethod
    def kept_views(self, values: Values) -> Parameters:
        """Return views of the kept parameters, by name."""

    @abstractmethod
    def with_kept(self, values: Values, personal: Values) -> Values:
        """Return values with the parameters that clients keep in their places."""

    @abstractmethod
    def with_personal(self, average: Values, start: Values) -> Values:
        """Return an average with the personal parameters of `start`, perhaps the same memory."""

    @abstractmethod
    def replaced(self, values: Values, new: Parameters) -> Values:
        """Return values with some parameters replaced; the rest may be the same memory."""

    @abstractmethod
    def take(self, values: Values, rows: Integers) -> Values:
        """Return a copy of some rows."""

    @abstractmethod
    def put(self, values: Values, rows: Integers, new: Values) -> None:
        """Replace some rows."""

    @abstractmethod
    def concatenated(self, values: Sequence[Values]) -> Values:
        """Return the rows of all values, one after the other."""

    @abstractmethod
    def where(self, live: NDArray[np.bool_], new: Values, old: Values) -> Values:
        """Return new values in the rows that live, and old ones elsewhere."""

    @abstractmethod
    def choose(self, live: NDArray[np.bool_], new: Array, old: Array) -> Array:
        """Return what `where` does, of one array (own, rows, ..)."""

    @abstractmethod
    def finite(self, values: Values, more: Iterable[Array] = ()) -> NDArray[np.bool_]:
        """Return (rows,): whether all numbers are finite, also those of `more` (own, rows, ..)."""

    def portions(self, items: ClientBatch, roster: ClientSampler) -> Sequence[ClientBatch]:
        """Return items that fit into memory together."""
        return list(split_batch(items, self.row_bytes, courses.MAX_LOCAL_BYTES))

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Bytes of the parameters of a course."""

    def shared(self, items: ClientBatch, start: Values) -> Mapping[str, Any]:
        """Return what items of one course have instead of parameters of their own, by name."""
        return {}

    @abstractmethod
    def receive(
        self, start: Values, items: ClientBatch, purpose: str, without: Collection[str] = ()
    ) -> Values:
        """Return a copy of what the server sends to items, until the same purpose asks again."""

    @abstractmethod
    def run(
        self,
        local: Values,
        items: ClientBatch,
        settings: Hyperparameters,
        names: StreamNames,
        terms: LocalObjective,
    ) -> None:
        """Train parameters of items in place, through all local steps of a round."""

    def advance(
        self,
        start: Values,
        items: ClientBatch,
        round_of_item: Integers,
        settings: Hyperparameters,
        pull: Array | None,
        course: tuple[NDArray[np.int64], NDArray[np.int64]],
        evaluated: NDArray[np.bool_],
        compared: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Take rounds of averaging in place, and measure courses; see `Group.run`.

        Args:
            start: of the courses.
            number: (items,) which of the rounds each belongs to, rising.
            course: (courses,) finished rounds, and rounds in which they diverged; they go on.
            evaluated: (rounds,) after which courses are measured.
            compared: (items, 2) room for what `compare` returns, or (0, 2).

        Returns:
            (evaluated, courses, clients, splits, metrics).
        """
        raise NotImplementedError

    @abstractmethod
    def updates(self, local: Values, received: Values) -> Values:
        """Return how items moved what is trained; local values may be overwritten."""

    @abstractmethod
    def add(
        self,
        average: Values,
        reports: Parameters,
        sent: Values,
        all_sent: Parameters,
        result: LocalResult,
    ) -> None:
        """Add what items send to averages; running statistics count by samples, always."""

    def written_out(
        self, result: LocalResult, start: Values
    ) -> Iterator[tuple[ClientBatch, Values, Values]]:
        """Yield items with all parameters that they received, and that they made of them."""
        yield result.items, result.received, result.local

    @abstractmethod
    def no_updates(self, rows: int) -> Values:
        """Return the mean updates of courses before anybody has been added."""

    @abstractmethod
    def add_updates(
        self, items: ClientBatch, received: Values, local: Values, mean: Values
    ) -> None:
        """Add weighted updates of items to the means of their courses."""

    @abstractmethod
    def compare(
        self, items: ClientBatch, received: Values, local: Values, mean: Values
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return (items,) norms of updates, and their cosines with the means of their courses."""

    @abstractmethod
    def measure(self, values: Values, client: int | None = None) -> NDArray[np.float32]:
        """Return (rows, clients, splits, metrics) on the data of one client; of all for None."""

    @abstractmethod
    def measure_own(self, values: Values, client: Integers) -> NDArray[np.float32]:
        """Return (rows, splits, metrics), each row on the data of its client."""


class Trainers(ABC):
    """What trains the courses of a batch, by federation and model shape."""

    @abstractmethod
    def trainer(self, federation: Federation, architecture: Iterable[tuple[str, float]]) -> Trainer:
        """Return what trains courses of one federation and model shape."""

    def room(self, courses: int) -> int:
        """Return how many courses of a batch may be one group."""
        return max(courses, 1)

    @abstractmethod
    def for_each(self, groups: Sequence[Any], work: Callable[[Any], None]) -> None:
        """Do something with every group."""
