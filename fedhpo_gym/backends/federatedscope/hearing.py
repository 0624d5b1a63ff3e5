"""What FederatedScope says of a course that takes its rounds in steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends.courses import Metrics
from fedhpo_gym.backends.federatedscope import parsing
from fedhpo_gym.backends.federatedscope.process import Message
from fedhpo_gym.evaluation.records import METRICS, SPLITS


class Heard:
    """What is said of a course while it takes some rounds, as arrays of a `Report`.

    Attributes:
        before_first: rounds that the course had finished before.
        metrics: (clients, splits, metrics) after the last round; None until they are said.
        sampled: (rounds, clients).
        update_norm: (rounds, clients).
        alignment: (rounds, clients).
        before: (rounds, clients, splits, metrics).
        after: (rounds, clients, splits, metrics).
    """

    ARRAYS = ("metrics", "sampled", "update_norm", "alignment", "before", "after")

    def __init__(
        self, rounds: int, clients: int, num_samples: NDArray[np.int64], *, measured: bool
    ) -> None:
        """Know nothing yet.

        Args:
            rounds: that will be told of.
            clients: of the federation.
            num_samples: (clients, splits).
            measured: whether metrics before and after local training are told.
        """
        splits = (len(SPLITS), len(METRICS))
        self.before_first = 0
        self.metrics: Metrics | None = None
        self.sampled = np.zeros((rounds, clients), dtype=np.bool_)
        self.update_norm = np.zeros((rounds, clients), dtype=np.float32)
        self.alignment = np.zeros((rounds, clients), dtype=np.float32)
        self.before = np.zeros((rounds, clients, *splits), dtype=np.float32)
        self.after = np.zeros_like(self.before)
        self._samples = num_samples
        self._told = (("before", self.before), ("after", self.after)) if measured else ()

    def hear(self, message: Message) -> None:
        """Take in what is said of a round.

        Raises:
            WorkerLostError: it is unreadable.
        """
        if "round" in message:
            self.metrics = parsing.client_metrics(message.get("clients"), self._samples)
        if "trained" not in message:
            return
        row = parsing.whole(message, "trained") - self.before_first - 1
        for client, said in parsing.client_updates(message, len(self._samples)):
            self.sampled[row, client] = True
            self.update_norm[row, client] = parsing.bounded_norm(said)
            self.alignment[row, client] = parsing.value(said, "alignment", -1.0, 1.0)
            for when, array in self._told:
                one = {"1": said.get(when)}
                array[row, client] = parsing.client_metrics(one, self._samples[[client]])[0]
