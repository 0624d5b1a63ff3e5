"""What clients report while they train: written by the engine, read by round environments."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from fedhpo_gym.core.arrays import Bools, Floats, Singles
from fedhpo_gym.evaluation.records import METRICS, SPLITS


@dataclass(frozen=True, eq=False)
class ClientFeedback:
    """Reports of some rounds of N training runs; entries of clients that did not train are 0."""

    sampled: Bools  # (N, rounds, clients) which clients trained
    before: Singles  # (N, rounds, clients, splits, metrics) of the received model; 0 if not needed
    after: Singles  # likewise, of the model that the client made of it
    update_norm: Singles  # (N, rounds, clients) Euclidean norm of a client's update
    alignment: Singles  # (N, rounds, clients) cosine of an update and the round's mean update
    seconds: Floats  # (N, rounds) simulated, of asynchronous algorithms; otherwise 0

    @classmethod
    def empty(cls, num_runs: int, rounds: int, num_clients: int) -> Self:
        """Return the feedback in which no client has reported."""
        size = (num_runs, rounds, num_clients)
        metrics = (*size, len(SPLITS), len(METRICS))
        return cls(
            np.zeros(size, np.bool_),
            np.zeros(metrics, np.float32),
            np.zeros(metrics, np.float32),
            np.zeros(size, np.float32),
            np.zeros(size, np.float32),
            np.zeros(size[:2]),
        )
