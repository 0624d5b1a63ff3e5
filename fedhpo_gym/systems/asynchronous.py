"""What aggregations cost that wait for reports, and not for a cohort."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fedhpo_gym.evaluation.records import Cost
from fedhpo_gym.systems.draw import Draw
from fedhpo_gym.systems.work import Floats, Work

if TYPE_CHECKING:
    from fedhpo_gym.systems.base import System


@dataclass(frozen=True, eq=False)
class Means:
    """How long jobs of clients take on average: from the begin of one to its report.

    Attributes:
        other_s: (clients,) seconds of transfers and waiting.
        compute_s: (clients,) seconds of computation.
        dropout: probability that a job brings no report.
    """

    other_s: Floats
    compute_s: Floats
    dropout: float = 0.0


@dataclass(frozen=True, eq=False)
class JobClock:
    """A system as the engine asks it: how long jobs of one course take.

    Attributes:
        system: the system.
        work: what a job is.

    Raises:
        InvalidArgumentError: see `System.job_means`.
    """

    system: System
    work: Work

    def __post_init__(self) -> None:
        """Refuse a system that does not know single clients."""
        self.system.job_means(self.work)

    @property
    def server_s(self) -> float:
        """Seconds of an aggregation."""
        return self.system.server_compute_s

    def job(self, seed: int, number: int, client: int, start_s: float) -> tuple[float, bool]:
        """Return the seconds of a job, and whether its report arrives.

        Args:
            seed: of the federation.
            number: jobs of the course that were begun before.
            client: who does it.
            start_s: when it is begun.
        """
        system_seed = int(getattr(self.system, "seed", 0))
        return self.system.job(self.work, client, start_s, Draw(seed, (system_seed, number)))


def cost(system: System, work: Work) -> Cost:
    """Return what some aggregations cost.

    Those that happened cost the virtual time that they took. Planned ones cost what they are
    expected to take in the long run, see `between_reports_s`, so that R of them cost R times as
    much as one, and more work never costs less. The server then computes, and everything waits.

    Computation is told apart from all other time by its share in the jobs of all clients. Bytes are
    those of the models that clients received and of the reports that arrived.

    Raises:
        InvalidArgumentError: see `System.job_means`.
    """
    means = system.job_means(work)
    job_s = means.other_s + means.compute_s
    arrive = 1.0 - means.dropout
    server_s = work.rounds * system.server_compute_s
    if work.happened is not None and work.happened.seconds is not None:
        flying_s = max(math.fsum(work.happened.seconds.tolist()) - server_s, 0.0)
    else:
        between_s = between_reports_s(job_s, work.sampled_clients)
        flying_s = work.rounds * (work.reports * between_s / arrive)
    computation_s = flying_s * float(means.compute_s.sum() / job_s.sum()) + server_s
    communication_s = flying_s + server_s - computation_s
    up_bytes, down_bytes = system.message_bytes(work)
    reports = work.rounds * work.reports
    return Cost(
        time_s=flying_s + server_s,
        communication_s=communication_s,
        computation_s=computation_s,
        upload_bytes=reports * up_bytes,
        download_bytes=reports / arrive * down_bytes,
        rounds=work.rounds,
    )


def between_reports_s(job_s: Floats, at_once: int) -> float:
    """Return the mean seconds between two reports, in the long run.

    M of N clients train at once. Whoever is done makes room for one of the idle, drawn uniformly.
    The clients that train are then a reversible process, in which a set S has a probability
    proportional to the product of its T_i, whatever the distributions of the times with these means
    are (the insensitivity of such systems; Kelly, 1979). So with the elementary symmetric
    polynomials e_k of T_1, ..., T_N the time between reports is

        e_M / ((N - M + 1) e_(M - 1)),

    which is the mean of T_i for M = 1, T / M where all are alike, and 1 / sum(1 / T_i) for M = N.
    It grows with every T_i and falls with M.

    Args:
        job_s: (clients,) T_i, positive.
        at_once: M.
    """
    return _between_reports_s(np.ascontiguousarray(job_s, np.float64).tobytes(), at_once)


@lru_cache(maxsize=512)
def _between_reports_s(job_s: bytes, at_once: int) -> float:
    times = np.frombuffer(job_s, np.float64)
    unit = float(times.mean())
    logs = np.full(at_once + 1, -np.inf)  # of e_0, ..., e_M of the clients so far
    logs[0] = 0.0
    for log in np.log(times / unit).tolist():
        logs[1:] = np.logaddexp(logs[1:], logs[:-1] + log)
    return unit * math.exp(logs[-1] - logs[-2]) / (len(times) - at_once + 1)
