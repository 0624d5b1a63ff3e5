"""Entries of the reward vector: what steps cost, and objectives that are read off the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError, unknown_name
from fedhpo_gym.objectives import FLOPS_PER_PARAMETER, Objective
from fedhpo_gym.systems import Work
from fedhpo_gym.tasks import Task

AMOUNTS: Final = ("upload", "download", "flops", "energy")
"""What is priced by its share in the most that an episode can cost of it."""
REWARDS: Final = ("improvement", "time", *AMOUNTS, "fairness")
"""Entries of a reward vector, see `RoundEnv`; others are objectives that are read off the model."""

Numbers = NDArray[np.float64]


def measured_objectives(task: Task, rewards: Sequence[str | Objective]) -> tuple[Objective, ...]:
    """Return the objectives among the entries of a reward vector.

    Raises:
        UnknownNameError: a name is neither one of `REWARDS` nor that of an objective of the task.
        InvalidArgumentError: an objective has the name of another entry, or does not read the
            clients' metrics, or a cost is asked for that the task's clock does not know.
    """
    known = {name: one for name, one in task.objectives.items() if one.reads_clients}
    found = []
    for one in rewards:
        if isinstance(one, Objective):
            if one.name in known or one.name in REWARDS:
                raise InvalidArgumentError(
                    "an objective of your own must have a name of its own, got "
                    f"{one.name!r}, which round environments have"
                )
            found.append(one)
        elif one not in REWARDS:
            if one not in known:
                raise unknown_name("reward", one, (*REWARDS, *known))
            found.append(known[one])
    if "energy" in rewards:
        task.system.require_energy(asynchronous=task.asynchronous)
    if "flops" in rewards and task.asynchronous:
        raise InvalidArgumentError(
            "`rewards` must not hold 'flops' for asynchronous algorithms, of whose rounds nobody "
            f"says how often a client trained, got {task.algorithm!r}; leave it out"
        )
    return tuple(found)


def amounts(task: Task, work: Work, upload_bytes: float, download_bytes: float) -> Numbers:
    """Return what some work costs of each of `AMOUNTS`: bytes, floating point operations, joules.

    What nobody knows is 0: operations where nobody counts samples, and energy.
    """
    samples = work.samples_read
    flops = 0.0 if samples is None else FLOPS_PER_PARAMETER * work.num_parameters * samples
    known = task.system.knows_energy and not work.reports
    energy_j = task.system.energy_j(work) if known else 0.0
    return np.array([upload_bytes, download_bytes, flops, energy_j])


def fall_of(objectives: Sequence[Objective], before: Numbers, after: Numbers) -> dict[str, Numbers]:
    """Return by name what the (N,) errors of objectives have fallen by, from their values."""
    return {
        one.name: one.errors(before[:, column]) - one.errors(after[:, column])
        for column, one in enumerate(objectives)
    }
