"""What a course asks of a federation: the quantities that a system model turns into time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import as_integer
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Fidelity

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClientWork:
    """What each client computes in a round, (clients,): local epochs, minibatch steps, samples."""

    epochs: Floats
    steps: Floats | None = None
    samples: Floats | None = None


@dataclass(frozen=True, eq=False)
class CourseHistory:
    """Rounds that a course has really taken: which, who trained, and when they began.

    Attributes:
        seed: of the course.
        first_round: rounds that the course had taken before.
        start_s: simulated second at which the first of these rounds begins.
        sampled: (rounds, clients) who trained.
        seconds: (rounds,) simulated seconds of aggregations, for asynchronous algorithms only.
    """

    seed: int
    first_round: int
    start_s: float
    sampled: NDArray[np.bool_]
    seconds: Floats | None = None


@dataclass(frozen=True)
class Work:
    """The work of some rounds of one course, of the client that computes most in a round.

    Attributes:
        num_parameters: parameters of the model that is exchanged.
        client_share: the real number `client_sample_rate * num_clients`, as Eq. 1 counts it.
        minibatch_steps: of a client in a round; None where nobody knows how many samples it has.
        samples: training samples a client reads in a round, once per epoch; None likewise.
        num_clients: clients of the federation; 0 where nobody says.
        clients: the same of each client; None where all are alike.
        happened: the rounds, if they are past; None where they are only planned, as in trials.
        reports: how many an asynchronous aggregation waits for; 0: rounds are synchronous.
        copies: how many times the size of the model every message has.
    """

    num_parameters: int
    rounds: int
    sampled_clients: int
    client_share: float
    local_epochs: float = 1.0
    minibatch_steps: float | None = None
    samples: float | None = None
    num_clients: int = 0
    clients: ClientWork | None = field(default=None, compare=False, repr=False)
    happened: CourseHistory | None = field(default=None, compare=False, repr=False)
    reports: int = 0
    copies: int = 1

    @classmethod
    def of_course(
        cls,
        num_parameters: int,
        num_clients: int,
        fidelity: Fidelity,
        *,
        local_epochs: float = 1.0,
        minibatch_steps: float | None = None,
        samples: float | None = None,
        clients: ClientWork | None = None,
        happened: CourseHistory | None = None,
        reports: int = 0,
        copies: int = 1,
    ) -> Self:
        """Return the work of `fidelity.round` rounds in a federation."""
        for name, value in (("num_parameters", num_parameters), ("num_clients", num_clients)):
            number = as_integer(value)
            if number is None or number < 1:
                raise InvalidArgumentError(f"`{name}` must be an integer >= 1, got {value!r}.")
        for name, amount in (
            ("local_epochs", local_epochs),
            ("minibatch_steps", minibatch_steps),
            ("samples", samples),
        ):
            if amount is not None and not amount >= 0:
                raise InvalidArgumentError(f"`{name}` must be non-negative, got {amount!r}.")
        return cls(
            int(num_parameters),
            fidelity.round,
            fidelity.sampled_clients(int(num_clients)),
            num_clients * fidelity.client_sample_rate,
            local_epochs,
            minibatch_steps,
            samples,
            int(num_clients),
            clients,
            happened,
            reports,
            copies,
        )

    @property
    def samples_read(self) -> float | None:
        """Training samples that all clients read, at most where they are planned; None: unknown."""
        if self.clients is None or self.clients.samples is None:
            return None
        if self.happened is not None:
            return float(np.where(self.happened.sampled, self.clients.samples, 0.0).sum())
        most = np.sort(self.clients.samples)[-self.sampled_clients :]
        return float(self.rounds * most.sum())

    def of_rounds(self, rounds: int, client_sample_rate: float) -> Self:
        """Return the work of so many planned rounds with cohorts of another size."""
        sampled = Fidelity(rounds, client_sample_rate).sampled_clients(self.num_clients)
        share = self.num_clients * client_sample_rate
        return replace(self, rounds=rounds, sampled_clients=sampled, client_share=share)
