"""What is known of a model, whatever computes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.errors import InvalidArgumentError


class Model(ABC):
    """A model that courses train.

    Attributes:
        compiled: whether compiled code trains it, see `CompiledModel`; else torch does.
        architecture: settings of a configuration that decide the shape of the model.
        hyperparameters: further settings that a step reads, with the value for configurations that
            lack them.
        num_parameters: numbers that are trained.
        buffers: names of the parameters that are averaged but not trained, as running statistics.
        norms: names of the parameters of normalisation layers.
        personal: names of the parameters that stay with each client, whatever the algorithm.
        revision: raised when numbers change of its courses alone; see `ENGINE_VERSION`.
        precisions: the types of numbers that it can compute in.
    """

    compiled: ClassVar[bool] = False
    architecture: ClassVar[tuple[str, ...]] = ()
    hyperparameters: ClassVar[Mapping[str, float]] = {}
    buffers: frozenset[str] = frozenset()
    norms: frozenset[str] = frozenset()
    personal: frozenset[str] = frozenset()
    revision: ClassVar[int] = 0
    precisions: ClassVar[tuple[str, ...]] = ("float32",)
    num_parameters: int

    @classmethod
    def refuse_precision(cls, precision: str) -> None:
        """Refuse a precision that the model cannot compute in.

        Raises:
            InvalidArgumentError: it cannot.
        """
        if precision not in cls.precisions:
            raise InvalidArgumentError(
                f"`precision` must be one that {cls.__name__} computes in, "
                f"{' or '.join(map(repr, cls.precisions))}, got {precision!r}."
            )

    @abstractmethod
    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Draw the initial parameters of one course, (model's own, ...) each."""
