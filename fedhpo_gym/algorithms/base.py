"""What an FL algorithm is: what may be set, what travels, what it costs and what it does."""

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
"""An array of numpy or a tensor of torch: hooks take arithmetic that both know, on numbers that
both round alike."""
Parameters = dict[str, Array]
"""Named arrays of shape (model's own, items, ...): the second axis counts what is trained
together, which is courses, or courses on single clients."""
Shapes = dict[str, tuple[int, ...]]
VARIATE = "variate of "
"""How names of control variates begin."""


class LocalSteps(NamedTuple):
    """What local training is configured to do, (items,) each."""

    steps: Array  # of the item's client, at least 1; for the server, the fewest of any client
    rate: Array  # learning rate of the round; for the server, of the first client
    momentum: Array  # likewise


@dataclass(frozen=True, eq=False, slots=True)
class Context:
    """What a hook of a round may know; every array counts the items the hook is called for.

    A hook may change these arrays in place: nobody else reads them.
    """

    hyperparameters: Mapping[str, Array]  # (items,) values of the algorithm's `hyperparameters`
    num_clients: int  # clients of the federation
    num_sampled: Array  # (items,) clients that train in this round
    num_samples: Array  # (items,) of the item's client, at least 1; server: the smallest client's
    horizon: int  # rounds the courses will be trained for, the T of noise schedules
    # standard normal (own, items, ..), named by seed, round and client.
    normal: Callable[[str, Array], Array]
    local: Callable[[], LocalSteps]  # gives what local training does
    # gives the (items,) Euclidean norm of what items have in some parameters.
    norm: Callable[[Parameters], Array]
    # gives the server's state before the round, (own, items, ..) each.
    state: Callable[[], Parameters]
    # gives the control variates that items keep, by names of parameters.
    variates: Callable[[], Parameters]
    power: Callable[[Array, Array], Array] = pow  # raises positive numbers to powers


class Algorithm(ABC):
    """What an algorithm adds to a round of federated averaging; it holds no state of its own.

    Attributes:
        name: name used in task ids and tables.
        dimensions: what is searched. One of the clients may have a name of local training, such as
            "momentum": it then sets local SGD. One of the server must not.
        settings: what is fixed, by name; none of local training.
        inactive: values of dimensions where they have none.
        copies: how many times the size of the model every message has.
        private: hyperparameters that the noise which hides clients or samples depends on; none
            where nothing is hidden.
        keeps_copy: every client also trains a model of its own that never leaves it, pulled
            towards the broadcast model; evaluation is of that model. `correction` is of the steps
            of the other one.
        sends_updates: clients send how they moved the parameters instead of the parameters; so
            `upload` is called with updates, and `server_update` with their mean.
        keeps_variates: every client keeps control variates, 0 at first, in the shape of its
            parameters; what `upload` returns as `VARIATE` + name is added to them.
        counts_equally: what clients send is added up and divided by `num_sampled`; if False, it is
            averaged by samples, as running statistics always are.
        poisson: every client takes part with the probability `num_sampled` / `num_clients`,
            whoever else does; if False, exactly `num_sampled` do.
        asynchronous: clients report when they are done, and a round is one aggregation; of
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
        """What it reads of a configuration, with the default; None where there must be a value."""
        searched = {d.name: self.inactive.get(d.name) for d in self.dimensions}
        return {**searched, **{name: setting.default for name, setting in self.settings.items()}}

    @property
    def server_names(self) -> set[str]:
        """Names of settings and of the server's dimensions, which nothing else may read."""
        return {*self.settings, *(d.name for d in self.dimensions if d.scope == "server")}

    @cached_property
    def reads_each_client(self) -> bool:
        """Whether it reads or changes what single clients have, and not only their mean."""
        flags = "keeps_copy", "sends_updates", "keeps_variates", "counts_equally", "asynchronous"
        kind = type(self)
        hooks = kind.upload is Algorithm.upload and kind.correction is Algorithm.correction
        return not hooks or any(getattr(self, name) for name in flags)

    def noise_multiplier(
        self, values: Mapping[str, Value], horizon: int, share: float, size: Callable[[], int]
    ) -> float:
        """Return the standard deviation of the noise over the sensitivity of what it hides.

        Args:
            given: values of `private`.
            horizon: rounds that are planned.
            share: of the clients that take part in a round.
            size: gives the numbers of the model.
        """
        raise NotImplementedError

    def init_state(self, parameters: Parameters, context: Context) -> Parameters:
        """Return the server's state before the first round: none, unless overridden.

        Args:
            parameters: those that `server_update` is called with.
            context: of the courses.
        """
        return {}

    def personal(self, names: Collection[str], norms: Collection[str]) -> frozenset[str]:
        """Return the parameters that stay with each client and are never averaged.

        Args:
            names: all parameters of the model.
            norms: those of its normalisation layers.
        """
        return frozenset()

    def broadcast(self, parameters: Parameters, context: Context) -> Parameters:
        """Return what the clients receive; `parameters` itself, unless overridden.

        Args:
            parameters: global parameters that are trained; running statistics travel as they are.
            context: of the courses.
        """
        return parameters

    def pull(self, context: Context) -> Array | None:
        """Return how strongly local steps are pulled to the broadcast model.

        The (items,) coefficient mu of the term mu / 2 ||w - w_broadcast||^2 of the local
        objective; None, unless overridden, for no such term.
        """
        return None

    def correction(self, context: Context) -> Parameters:
        """Return what is added to the gradients of local steps: nothing by default."""
        return {}

    def reports(self, parameters: Parameters, context: Context) -> Parameters:
        """Return zeros in the shapes of what clients send besides parameters: nothing by default.

        `upload` returns it by the same names, and `server_update` finds its means in `average`.

        Args:
            parameters: those that `server_update` is called with.
            context: of the courses.
        """
        return {}

    def upload(self, parameters: Parameters, context: Context) -> Parameters:
        """Return what the server receives of local parameters; they themselves by default.

        Args:
            parameters: as in `broadcast`, of the items after local training; their updates where
                the algorithm `sends_updates`.
            context: of the items.
        """
        return parameters

    @abstractmethod
    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
        """Return the next global parameters and state, from the trained parameters alone.

        Args:
            parameters: global parameters the round started from, as `broadcast` was given them.
            average: mean of what the clients uploaded, by samples unless it `counts_equally`.
            state: the server's state.
            context: of the courses.
        """


def checked_update(
    name: str, result: Any, parameters: Shapes, state: Shapes
) -> tuple[Parameters, Parameters]:
    """Return what `server_update` returned, which must have the names and shapes that it was given.

    Raises:
        InvalidArgumentError: it has not.
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
    """Return whether a hook returned the very arrays of a mapping, each under its name.

    The mapping itself says nothing: a hook may assign other arrays into the one it was called with.
    """
    if not isinstance(returned, Mapping) or returned.keys() != arrays.keys():
        return False
    return all(returned[name] is value for name, value in arrays.items())


def shapes_of(parameters: Parameters) -> Shapes:
    """Return the shapes of arrays by name."""
    return {name: tuple(value.shape) for name, value in parameters.items()}


def with_shapes(hook: str, returned: Any, shapes: Shapes, what: str = "parameters") -> Parameters:
    """Return what a hook returned, which must have these names and shapes.

    Raises:
        InvalidArgumentError: it has not.
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
    """Shape (items,) values so that they multiply a parameter (own, items, ...)."""
    return values.reshape(-1, *(1,) * (parameter.ndim - 2))


def shift_model(parameters: Parameters, rate: Array, along: Parameters) -> Parameters:
    """Return parameters plus (items,) rates times what they move along."""
    return {name: value + fit(rate, value) * along[name] for name, value in parameters.items()}


def at_least(values: Array, low: float) -> Array:
    """Return values, or `low` where they are smaller; NaN stays NaN."""
    return values * flags(values > low) + low * flags(values <= low)


def flags(condition: Array) -> Array:
    """Return ones and zeros of single precision."""
    return condition.astype(np.float32) if isinstance(condition, np.ndarray) else 1.0 * condition
