"""The interface of FL algorithms: hyperparameters, and hooks in a round of federated averaging.

The modules of `algorithms/`, and users, subclass `Algorithm`; `fl/group.py` calls its hooks in
every round. Hooks compute with numpy arrays or torch tensors alike, for all courses or items of a
batch at once, so that they must not mix entries of the second axis. An algorithm has no state: the
state of the server is passed to the hooks and returned by them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from fedhpo_gym.algorithms.settings import Setting
from fedhpo_gym.core.checks import Range, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.space import Dimension, Value

Array = Any
"""A numpy array or a torch tensor: hooks use arithmetic that both have and round equally."""
Parameters = dict[str, Array]
"""Named arrays of shape (k, items, ...). The second axis has an entry for each item that trains in
the batch: a course, or a course on a client. The model defines k."""
Shapes = dict[str, tuple[int, ...]]
VARIATE = "variate of "
"""Prefix of the names of control variates."""


class LocalSteps(NamedTuple):
    """Settings of local training, (items,) each."""

    steps: Array  # local steps, at least 1; for the server, the fewest of any client
    rate: Array  # learning rate of the round; for the server, of the first client
    momentum: Array  # likewise


@dataclass(frozen=True, eq=False, slots=True)
class Context:
    """Arguments of a hook; arrays have an entry for each item that the hook is called for.

    A hook may change these arrays in place, because they are copies.
    """

    hyperparameters: Mapping[str, Array]  # (items,) values of the algorithm's `hyperparameters`
    num_clients: int  # clients of the federation
    num_sampled: Array  # (items,) clients that train in this round
    num_samples: Array  # (items,) samples of the client, at least 1; server: of the smallest one
    horizon: int  # planned rounds of the courses, the T of noise schedules
    # (purpose, like) -> standard normal (k, items, ..), from streams of seed, round and client.
    normal: Callable[[str, Array], Array]
    local: Callable[[], LocalSteps]  # returns the settings of local training
    # Returns the (items,) Euclidean norms of some parameters.
    norm: Callable[[Parameters], Array]
    # Returns the server's state before the round, (k, items, ..) each.
    state: Callable[[], Parameters]
    # Returns the control variates of items, by names of parameters.
    variates: Callable[[], Parameters]
    power: Callable[[Array, Array], Array] = pow  # raises positive numbers to powers


class Algorithm(ABC):
    """The changes that an algorithm makes to a round of federated averaging; it has no state.

    Attributes:
        name: name used in task ids and tables.
        dimensions: searched hyperparameters. A client-side one may have a name of local training,
            such as "momentum", and then sets local SGD. A server-side one must not.
        settings: fixed hyperparameters, by name; none of local training.
        inactive: values of dimensions while they are inactive.
        copies: size of a message, in sizes of the model.
        private: hyperparameters that determine the noise of differential privacy; empty for
            algorithms without it.
        keeps_copy: every client also trains a local model that never leaves it, pulled towards the
            broadcast model; this model is evaluated. `correction` applies to the other model.
        sends_updates: clients send updates (trained minus received parameters), so that `upload` is
            called with updates, and `server_update` with their mean.
        keeps_variates: every client keeps control variates, 0 at first, in the shape of its
            parameters; `upload` returns their changes as `VARIATE` + name.
        counts_equally: uploads are summed and divided by `num_sampled`; if False, they are averaged
            by samples, as running statistics always are.
        poisson: every client takes part independently with probability `num_sampled` /
            `num_clients`; if False, exactly `num_sampled` clients take part.
        asynchronous: clients report independently, and a round is one aggregation; True only for
            subclasses of `Asynchronous`.
    """

    name: str
    dimensions: ClassVar[tuple[Dimension, ...]] = ()
    settings: ClassVar[Mapping[str, Setting]] = {}
    inactive: ClassVar[Mapping[str, float]] = {}
    copies: Annotated[int, Range(0)] = 1
    private: tuple[str, ...] = ()
    keeps_copy: bool = False
    sends_updates: bool = False
    keeps_variates: bool = False
    counts_equally: bool = False
    poisson: bool = False
    asynchronous: bool = False

    @cached_property
    def hyperparameters(self) -> Mapping[str, float | None]:
        """Hyperparameters that it reads, with defaults; None if a value is required."""
        searched = {d.name: self.inactive.get(d.name) for d in self.dimensions}
        return {**searched, **{name: setting.default for name, setting in self.settings.items()}}

    @property
    def server_names(self) -> set[str]:
        """Names of settings and server-side dimensions, which models must not use."""
        return {*self.settings, *(d.name for d in self.dimensions if d.scope == "server")}

    @cached_property
    def reads_each_client(self) -> bool:
        """Whether it reads or changes parameters of single clients, not only their mean."""
        flags = "keeps_copy", "sends_updates", "keeps_variates", "counts_equally", "asynchronous"
        kind = type(self)
        hooks = kind.upload is Algorithm.upload and kind.correction is Algorithm.correction
        return not hooks or any(getattr(self, name) for name in flags)

    def noise_multiplier(
        self, values: Mapping[str, Value], horizon: int, share: float, size: Callable[[], int]
    ) -> float:
        """Return the noise multiplier: standard deviation of the noise over the sensitivity.

        Args:
            values: values of `private`.
            horizon: planned rounds.
            share: share of the clients that take part in a round.
            size: returns the number of parameters of the model.
        """
        raise NotImplementedError

    def init_state(self, parameters: Parameters, context: Context) -> Parameters:
        """Return the server's state before the first round; empty by default.

        Args:
            parameters: the global parameters, as in `server_update`.
            context: context of the courses.
        """
        return {}

    def personal(self, names: Collection[str], norms: Collection[str]) -> frozenset[str]:
        """Return the parameters that stay with each client and are never averaged.

        Args:
            names: all parameters of the model.
            norms: the parameters of normalisation layers.
        """
        return frozenset()

    def broadcast(self, parameters: Parameters, context: Context) -> Parameters:
        """Return the parameters that clients receive; by default `parameters`.

        Args:
            parameters: trained global parameters; running statistics are sent unchanged.
            context: context of the courses.
        """
        return parameters

    def pull(self, context: Context) -> Array | None:
        """Return the strength of the pull of local steps to the broadcast model.

        This is the (items,) coefficient mu of the term mu / 2 ||w - w_broadcast||^2 of the local
        objective; None, the default, for no such term.
        """
        return None

    def correction(self, context: Context) -> Parameters:
        """Return arrays that are added to the gradients of local steps; none by default."""
        return {}

    def reports(self, parameters: Parameters, context: Context) -> Parameters:
        """Return zeros in the shapes of further arrays that clients send; none by default.

        `upload` returns them under the same names, and `average` of `server_update` has their
        means.

        Args:
            parameters: the global parameters, as in `server_update`.
            context: context of the courses.
        """
        return {}

    def upload(self, parameters: Parameters, context: Context) -> Parameters:
        """Return the arrays that the server receives; by default `parameters`.

        Args:
            parameters: parameters of the items after local training; their updates if the algorithm
                `sends_updates`.
            context: context of the items.
        """
        return parameters

    @abstractmethod
    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
        """Return the next global parameters and state, without running statistics.

        Args:
            parameters: global parameters at the start of the round, as in `broadcast`.
            average: mean of the uploads, weighted by samples unless it `counts_equally`.
            state: the server's state.
            context: context of the courses.
        """


def checked_update(
    name: str, result: Any, parameters: Shapes, state: Shapes
) -> tuple[Parameters, Parameters]:
    """Return the result of `server_update` after checking its names and shapes.

    Raises:
        InvalidArgumentError: they differ from those of its arguments.
    """
    is_pair = isinstance(result, tuple) and len(result) == 2
    if not is_pair or not all(isinstance(mapping, Mapping) for mapping in result):
        raise InvalidArgumentError(
            f"`server_update` of {name!r} must return parameters and state, two mappings, got "
            f"{short_repr(result)}"
        )
    updated, server = result
    hook = f"`server_update` of {name!r}"
    updated = with_shapes(hook, updated, parameters)
    return updated, with_shapes(hook, server, state, "state")


def copies(arrays: Parameters) -> Parameters:
    """Return a copy of each array, which a hook may change in place."""
    return {name: 1.0 * value for name, value in arrays.items()}


def same_arrays(returned: Any, arrays: Parameters) -> bool:
    """Return whether a hook returned the arrays of a mapping themselves, under the same names.

    Comparing mappings is not enough: a hook may assign new arrays into the mapping it was given.
    """
    if not isinstance(returned, Mapping) or returned.keys() != arrays.keys():
        return False
    return all(returned[name] is value for name, value in arrays.items())


def shapes_of(parameters: Parameters) -> Shapes:
    """Return the shapes of arrays by name."""
    return {name: tuple(value.shape) for name, value in parameters.items()}


def with_shapes(hook: str, returned: Any, shapes: Shapes, what: str = "parameters") -> Parameters:
    """Return the result of a hook after checking its names and shapes.

    Raises:
        InvalidArgumentError: they differ from `shapes`.
    """
    arrays = returned if isinstance(returned, Mapping) else {}
    for key, expected in shapes.items():
        shape = getattr(arrays.get(key), "shape", None)
        if shape is None or tuple(shape) != expected:
            raise InvalidArgumentError(
                f"{hook} must return {what} with {key!r} of shape {expected}, got "
                f"{short_repr(arrays.get(key)) if shape is None else tuple(shape)}"
            )
    same: Parameters = returned
    return same


def fit(values: Array, parameter: Array) -> Array:
    """Reshape (items,) values so that they broadcast with a parameter (k, items, ...)."""
    return values.reshape(-1, *(1,) * (parameter.ndim - 2))


def shift_model(parameters: Parameters, rate: Array, along: Parameters) -> Parameters:
    """Return parameters plus (items,) rates times the directions `along`."""
    return {name: value + fit(rate, value) * along[name] for name, value in parameters.items()}


def at_least(values: Array, low: float) -> Array:
    """Return values, or `low` where they are smaller; NaN stays NaN."""
    return values * flags(values > low) + low * flags(values <= low)


def flags(condition: Array) -> Array:
    """Return ones and zeros of single precision."""
    return condition.astype(np.float32) if isinstance(condition, np.ndarray) else 1.0 * condition
