"""The interface between a round and the code that computes it: compiled code or torch.

`Group` and `AsynchronousGroup` call a `Trainer` for every operation on parameters;
`compiled/trainer.py` and `torch_trainer.py` implement it. A trainer chooses how parameters are
stored (`Values`), and callers treat them as opaque, except through `views`. Rows are courses, or
items, that is courses on clients. Arrays by name have the axes (k, rows, ..).
"""

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
"""Parameters of some rows (courses or items) as a trainer stores them: (rows, numbers) in compiled
code, tensors (k, rows, ..) by name for torch."""


class LocalResult(NamedTuple):
    """The received (None if not kept) and trained parameters of items, and shared matrices."""

    items: ClientBatch
    received: Values | None
    local: Values
    shared: Mapping[str, Any]


class LocalObjective(NamedTuple):
    """Terms of the local objective of items, besides the loss and weight decay."""

    pull: Array | None = None  # (items,) strength of the pull towards `anchor`
    anchor: Values | None = None
    shared: Mapping[str, Any] | None = None  # as returned by `Trainer.shared`
    shift: Parameters | None = None  # added to gradients


class Trainer(ABC):
    """Trains courses of one federation and model shape, and does arithmetic on their parameters."""

    personal: frozenset[str]  # names of the parameters that stay with the clients
    kept: frozenset[str]  # names of the parameters that every client keeps a copy of
    untrained: frozenset[str]  # names of the parameters that the server does not update
    equally: bool  # whether clients have equal weights in averages; if False, by samples
    data_bytes: float = math.inf  # bytes of its data; infinite: it must not be cached
    min_rows: int = 1  # rows of the smallest minibatch; smaller ones are left out
    longest_first: ClassVar[bool]  # whether items are sorted by width, then local steps
    joins_rounds: ClassVar[bool] = False  # whether `advance` can run several rounds

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
        """Raise positive numbers to powers; numpy arrays in double precision."""

    @abstractmethod
    def norm(self, values: Parameters) -> Array:
        """Return the (items,) Euclidean norms of some parameters."""

    @abstractmethod
    def initial(self, rows: int) -> Values:
        """Return initial parameters, which the seed determines, for some courses."""

    @abstractmethod
    def zeros(self, rows: int) -> Values:
        """Return zeros for all parameters that do not stay with the clients."""

    @abstractmethod
    def views(self, values: Values, without: Collection[str] = ()) -> Parameters:
        """Return views (k, rows, ..) by name, without some names."""

    @abstractmethod
    def kept_of(self, values: Values) -> Values:
        """Return the parameters that every client keeps a copy of: those in `kept`."""

    @abstractmethod
    def kept_views(self, values: Values) -> Parameters:
        """Return views of the kept parameters, by name."""

    @abstractmethod
    def with_kept(self, values: Values, personal: Values) -> Values:
        """Return values in which the parameters of clients replace those of the server."""

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
        """Return new values in live rows, and old ones elsewhere."""

    @abstractmethod
    def choose(self, live: NDArray[np.bool_], new: Array, old: Array) -> Array:
        """Do the same as `where` for one array (k, rows, ..)."""

    @abstractmethod
    def finite(self, values: Values, more: Iterable[Array] = ()) -> NDArray[np.bool_]:
        """Return (rows,): whether all values are finite, also those of `more` (k, rows, ..)."""

    def portions(self, items: ClientBatch, roster: ClientSampler) -> Sequence[ClientBatch]:
        """Split items into portions that fit into memory."""
        return list(split_batch(items, self.row_bytes, courses.MAX_LOCAL_BYTES))

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Bytes of the parameters of a course."""

    def shared(self, items: ClientBatch, start: Values) -> Mapping[str, Any]:
        """Return matrices that items of one course share instead of separate copies, by name."""
        return {}

    @abstractmethod
    def receive(
        self, start: Values, items: ClientBatch, purpose: str, without: Collection[str] = ()
    ) -> Values:
        """Return a copy of the parameters sent to items; the next call for a purpose reuses it."""

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
        """Run rounds of averaging in place, and measure courses; see `Group.run`.

        Args:
            start: parameters of the courses, updated in place.
            items: the items of all rounds.
            round_of_item: (items,) round of each item, in rising order.
            settings: hyperparameters of the group.
            pull: (items,) strength of the pull towards the received model; None for none.
            course: (courses,) finished rounds, and rounds of divergence; updated in place.
            evaluated: (rounds,) whether courses are measured after a round.
            compared: (items, 2) output for the results of `compare`, or (0, 2).

        Returns:
            (evaluated, courses, clients, splits, metrics).
        """
        raise NotImplementedError

    @abstractmethod
    def updates(self, local: Values, received: Values) -> Values:
        """Return the updates of trained parameters; local values may be overwritten."""

    @abstractmethod
    def add(
        self,
        average: Values,
        reports: Parameters,
        sent: Values,
        all_sent: Parameters,
        result: LocalResult,
    ) -> None:
        """Add sent parameters to averages; running statistics are always weighted by samples."""

    def written_out(
        self, result: LocalResult, start: Values
    ) -> Iterator[tuple[ClientBatch, Values, Values]]:
        """Yield items with their received and their trained parameters, without shared matrices."""
        yield result.items, result.received, result.local

    @abstractmethod
    def no_updates(self, rows: int) -> Values:
        """Return zeros for the mean updates of courses."""

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
    """A factory of the trainers of a batch, by federation and model shape."""

    @abstractmethod
    def trainer(self, federation: Federation, architecture: Iterable[tuple[str, float]]) -> Trainer:
        """Return the trainer of one federation and model shape."""

    def room(self, courses: int) -> int:
        """Return the largest number of courses in a group."""
        return max(courses, 1)

    @abstractmethod
    def for_each(self, groups: Sequence[Any], work: Callable[[Any], None]) -> None:
        """Call a function with every group."""
