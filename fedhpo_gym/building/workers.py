"""Computing units in worker processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedhpo_gym.building.claims import claim
from fedhpo_gym.building.design import Design, U
from fedhpo_gym.building.provenance import this_machine
from fedhpo_gym.building.units import write_unit
from fedhpo_gym.cluster import each_on_cluster
from fedhpo_gym.courses.training import make_batch
from fedhpo_gym.fl.models import get_model
from fedhpo_gym.fl.self_check import require_equal_bits
from fedhpo_gym.processes import Crew
from fedhpo_gym.tasks import Task

WAIT_S = 1.0
"""Seconds between two looks at what other builds compute."""


def compute_units(
    design: Design[U],
    units: Sequence[U],
    folder: Path,
    workers: int,
    device: str = "cpu",
    address: str | None = None,
) -> None:
    """Compute units and store each as it finishes; shows a progress bar over rounds.

    Builds that share the folder share the work: a unit that another one computes is waited for,
    and computed here should that build end before it.

    Args:
        design: what the units belong to.
        units: what to compute.
        folder: where `<unit>.npz` files go; one appears whole or not at all.
        workers: worker processes.
        device: torch device.
        address: of the scheduler of a cluster, whose workers compute instead.

    Raises:
        UnequalBitsError: a course would have other bits beside others on this processor.
        WorkerLostError: a worker process was killed; stored units are kept.
    """
    if address is not None:
        _on_cluster(design, units, folder, device, address)
        return
    crew = Crew[U](workers, UnitWork(design, folder, device, try_laws(design.task, device)))
    with tqdm(unit="round", desc=design.task.table_name) as bar, crew:
        while units:
            bar.total = bar.n + sum(design.evaluated_rounds(unit.name)[-1] for unit in units)
            bar.refresh()
            done = crew.do(units, lambda: bar.update() and None)
            units = design.missing(folder)
            if units and not any(done):
                bar.set_postfix_str(f"another build computes the last {len(units)} units")
                time.sleep(WAIT_S)


def _on_cluster(
    design: Design[U], units: Sequence[U], folder: Path, device: str, address: str
) -> None:
    work = partial(UnitWork(design, folder.resolve(), device), advance=_nothing)
    while units:
        with tqdm(total=len(units), unit="unit", desc=design.task.table_name) as bar:
            done = []
            for one in each_on_cluster(work, units, address):
                if one.error is not None:
                    raise one.error
                done.append(one.result)
                bar.update()
        units = design.missing(folder)
        if units and not any(done):
            time.sleep(WAIT_S)


def _nothing() -> None:
    """Say nothing of how far a unit is."""


@dataclass(frozen=True)
class UnitWork(Generic[U]):
    """What a worker does with a unit: compute and store it, unless another build does.

    Attributes:
        design: what the units belong to.
        folder: where units are stored.
        device: torch device.
        verdict: what `try_laws` found on this machine; None where each process finds out itself,
            as on a cluster.
    """

    design: Design[U]
    folder: Path
    device: str
    verdict: str | None = None

    def __call__(self, unit: U, advance: Callable[[], None]) -> bool:
        """Return whether the unit is stored now; if not, another build computes it."""
        with claim(self.folder, self.design.positions(unit)) as ours:
            if ours and not self.design.is_stored(unit, self.folder):
                verdict = self.verdict
                if verdict is None:
                    verdict = try_laws(self.design.task, self.device)
                compute_unit(self.design, unit, self.folder, self.device, advance, verdict)
            return ours


def try_laws(task: Task, device: str) -> str:
    """Try whether a course of a task has the same bits in any company here; seconds, once.

    A graphics processor promises it to nobody, so there nothing is tried.

    Returns:
        What was found, for the card.

    Raises:
        UnequalBitsError: it has not; the message says what to set.
    """
    if device != "cpu":
        return ""
    found = [require_equal_bits(get_model(name), task.precision) for name in task.models]
    return "; ".join(dict.fromkeys(found))


def compute_unit(
    design: Design[U],
    unit: U,
    folder: Path,
    device: str = "cpu",
    advance: Callable[[], None] | None = None,
    verdict: str = "",
) -> None:
    """Train every course of a unit and store its curves.

    Args:
        design: what the unit belongs to.
        unit: what to compute.
        folder: where it is stored.
        device: torch device.
        advance: called after every round.
        verdict: what `try_laws` found, which the card will say.
    """
    batch = make_batch(design.task, design.courses(unit), device, design.horizon)
    rounds = design.evaluated_rounds(unit.name)
    curves = batch.advance(rounds[-1], advance, rounds)
    arrays: dict[str, NDArray[Any]] = {
        "metrics": curves.metrics,
        "rounds": curves.rounds,
        "diverged_at": curves.diverged_at,
        "hardware": np.array(this_machine(device, verdict)),
    }
    write_unit(folder, unit.name, arrays)
