"""What every system model shares: messages, and what a client's time is counted in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import Range, check_fields
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Cost
from fedhpo_gym.systems import asynchronous
from fedhpo_gym.systems.devices import Draw
from fedhpo_gym.systems.work import Floats, Work

Indices = NDArray[np.integer]
Compute = Literal["constant", "epochs", "steps", "samples"]

SLOWEST, MOST = 1e-6, 1e18
"""The lowest speed, in bytes/s, and the most seconds and bytes of one thing: every cost is then a
finite number."""
Positive: TypeAlias = Annotated[float, Range(0, MOST, "(]")]
Amount: TypeAlias = Annotated[float, Range(0, MOST)]
Share: TypeAlias = Annotated[float, Range(0, 1, "(]")]
Whole: TypeAlias = Annotated[int, Range(0, 2**32, "[)")]
NEEDS_SAMPLES: Final = ("steps", "samples")
"""Rules that need to know how many samples clients have."""


@dataclass(frozen=True, kw_only=True)
class System(ABC):
    """Turns work into simulated seconds and bytes; docs/cost_model.md says what its fields mean."""

    bytes_per_parameter: Positive = 4
    upload_compression: Share = 1.0
    download_compression: Share = 1.0
    compute: Compute = "constant"
    samples_per_client: Whole = 0
    server_compute_s: Amount = 0.0

    def __post_init__(self) -> None:
        check_fields(self)

    def cost(self, work: Work) -> Cost:
        """Return what the work of some rounds costs."""
        return self._cost(work) if not work.reports else asynchronous.cost(self, work)

    def ample_s(self, work: Work) -> float:
        """Return seconds that courses of planned work hardly ever exceed, for default budgets."""
        return self.cost(work).time_s if not work.reports else asynchronous.ample_s(self, work)

    @abstractmethod
    def _cost(self, work: Work) -> Cost:
        """Return what the work of some synchronous rounds costs."""

    def _charged(self, work: Work, communication_s: float, computation_s: float) -> Cost:
        """Return the cost of these seconds, and of a message each way for every sampled client."""
        up_bytes, down_bytes = self.message_bytes(work)
        messages = work.rounds * work.sampled_clients
        return Cost(
            time_s=communication_s + computation_s,
            communication_s=communication_s,
            computation_s=computation_s,
            upload_bytes=messages * up_bytes,
            download_bytes=messages * down_bytes,
            rounds=work.rounds,
        )

    @property
    def knows_energy(self) -> bool:
        """Whether `energy_j` has an answer for synchronous work."""
        return False

    def energy_j(self, work: Work) -> float:
        """Return the joules that clients need for some synchronous rounds."""
        raise self._no_energy()

    def require_energy(self, *, asynchronous: bool = False) -> None:
        """Refuse to tell energies that this system does not know."""
        if not self.knows_energy:
            raise self._no_energy()
        if asynchronous:
            raise InvalidArgumentError(
                "energy is known of synchronous rounds only, whose clients are invited together; "
                "got an asynchronous algorithm: leave energy out, or choose another algorithm"
            )

    def _no_energy(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            "energy is known where devices have a power: give at least one of `client_compute_w`, "
            "`upload_j_per_byte` and `download_j_per_byte` with system={'model': 'devices'}, got "
            f"{type(self).__name__} without them"
        )

    def job_means(self, work: Work) -> asynchronous.JobDurations:
        """Return how long clients are expected to take for a job of asynchronous training."""
        raise self._no_clients()

    def _no_clients(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            "`system['model']` must be 'analytic' or 'devices' for asynchronous algorithms, whose "
            f"clients take their time each on its own, got {type(self).__name__}"
        )

    def job(self, work: Work, client: int, start_s: float, draw: Draw) -> tuple[float, bool]:
        """Return the seconds of one job of a client, and whether it then reports."""
        raise self._no_clients()

    def client_units(self, work: Work, number: int) -> Floats:
        """Return in how many units of `compute` each of the clients counts its round."""
        each, clients = None, work.clients
        if clients is not None and self.compute != "constant":
            of = {"epochs": clients.epochs, "steps": clients.steps, "samples": clients.samples}
            each = of[self.compute]
        return np.full(number, self.units(work)) if each is None else each

    def times_s(
        self, works: Sequence[Work], which: Indices, rounds: Indices, rates: Floats
    ) -> Floats:
        """Return the (B,) `time_s` that `cost` has for many planned works, bit for bit.

        The (B,) rounds and rates take the place of those of `works[which]`.
        """
        asked = list(zip(which.tolist(), rounds.tolist(), rates.tolist(), strict=True))
        times = {
            (index, number, rate): self.cost(works[index].of_rounds(number, rate)).time_s
            for index, number, rate in {*asked}
        }
        return np.array([times[one] for one in asked], dtype=np.float64)

    def message_bytes(self, work: Work) -> tuple[float, float]:
        """Return the bytes of a message to the server, and of one to a client."""
        whole = float(work.num_parameters * work.copies * self.bytes_per_parameter)
        return whole * self.upload_compression, whole * self.download_compression

    def units(self, work: Work) -> float:
        """Return in how many units of `compute` the client with most work counts its round."""
        units = {
            "constant": 1.0,
            "epochs": work.local_epochs,
            "steps": work.minibatch_steps,
            "samples": work.samples,
        }[self.compute]
        if units is None:
            raise InvalidArgumentError(
                f"`compute` must be 'constant' or 'epochs' where nobody knows how many samples a "
                f"client has, got {self.compute!r}."
            )
        return units
