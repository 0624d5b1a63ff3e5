"""What an FL algorithm decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from fedhpo_gym.fl.models import Parameters

Hyperparameters = Mapping[str, Tensor]
"""Server-side hyperparameters by name, each (blocks, 1, slots)."""


class Algorithm(ABC):
    """The server's part of a round; algorithms hold no state of their own.

    Attributes:
        name: name used in task ids and tables.
        server_hyperparameters: names of the configuration entries `server_update` reads.
    """

    name: str
    server_hyperparameters: tuple[str, ...] = ()

    @abstractmethod
    def init_state(self, parameters: Parameters) -> Parameters:
        """Return the server's state before the first round (may be empty)."""

    @abstractmethod
    def server_update(
        self,
        parameters: Parameters,
        average: Parameters,
        state: Parameters,
        hyperparameters: Hyperparameters,
    ) -> tuple[Parameters, Parameters]:
        """Return the next global parameters and state.

        Args:
            parameters: global parameters the round started from.
            average: sample-weighted average of the clients' parameters after local training.
            state: the server's state.
            hyperparameters: server-side hyperparameters of each course.
        """
