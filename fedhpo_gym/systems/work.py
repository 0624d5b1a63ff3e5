"""What a course asks of a federation: the quantities that a system model turns into time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from fedhpo_gym.checks import as_integer
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Fidelity


@dataclass(frozen=True)
class Work:
    """The work of some rounds of one course.

    What clients compute is told of the client that computes most in a round: a round waits for
    its slowest client.

    Attributes:
        num_parameters: parameters of the model that is exchanged.
        rounds: communication rounds.
        sampled_clients: clients sampled in a round, at least one.
        client_share: the same as the real number `client_sample_rate * num_clients`, which
            Eq. 1 of FedHPO-Bench counts in the communication.
        local_epochs: local epochs of a client in a round.
        minibatch_steps: minibatch steps of a client in a round; None where nobody knows how many
            samples clients have.
        samples: training samples a client reads in a round, once per epoch; None likewise.
    """

    num_parameters: int
    rounds: int
    sampled_clients: int
    client_share: float
    local_epochs: float = 1.0
    minibatch_steps: float | None = None
    samples: float | None = None

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
    ) -> Self:
        """Return the work of `fidelity.round` rounds in a federation.

        Args:
            num_parameters: parameters of the model that is exchanged.
            num_clients: clients in the federation.
            fidelity: rounds, and the share of clients that take part in each.
            local_epochs: see the class.
            minibatch_steps: see the class.
            samples: see the class.

        Raises:
            InvalidArgumentError: there is no parameter or no client, or work is negative.
        """
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
        )
