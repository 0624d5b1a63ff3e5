"""A tiny real table, built by `build_table`: breast cancer data and a cut-down space."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fedhpo_gym.space import SearchSpace
from fedhpo_gym.stored.catalogue import ENV_VAR, open_table
from fedhpo_gym.tasks import Task, get_task

ROUNDS = 9
ENV_ID = "FedHPO-LR-BreastCancer-v0"


def tiny_task(rounds: int = ROUNDS, seeds: tuple[int, ...] = (1, 2, 3)) -> Task:
    """Return the breast cancer task with two points per hyperparameter and a few rounds."""
    task = get_task("LR-BreastCancer-v0")
    high = {"step_size": 2}
    low = {"batch_size": 32}
    client = [
        replace(d, low=low.get(d.name, d.low), high=high.get(d.name, d.high), bins=2)
        for d in task.client_space.dimensions
    ]
    round_, rate = task.fidelity_space.dimensions
    fidelity = (replace(round_, high=rounds, bins=rounds), replace(rate, bins=2))
    return task.variant(
        client_space=SearchSpace(tuple(client)), fidelity_space=SearchSpace(fidelity), seeds=seeds
    )


@cache
def tiny_folder() -> Path:
    """Return a folder with the table of `tiny_task()`, built once per test process."""
    from fedhpo_gym.building.build import build_table
    from fedhpo_gym.building.grid import GridDesign
    from fedhpo_gym.building.workers import compute_unit

    folder = Path(tempfile.mkdtemp(prefix="fedhpo-gym-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    task = tiny_task()
    design = GridDesign(task)
    parts = folder / "parts" / design.parts_name
    parts.mkdir(parents=True)
    for unit in design.units():  # in this process: a worker would only load torch once more
        compute_unit(design, unit, parts)
    build_table(task, folder, workers=1)
    return folder


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Task:
    """Return the task of the tiny table, which is the only table while the test runs."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    monkeypatch.setenv(ENV_VAR, str(tiny_folder()))
    task = tiny_task()
    assert open_table(task.table_name).rounds[-1] == ROUNDS
    return task
