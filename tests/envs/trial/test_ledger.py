"""What a trial costs depends on the model its configuration shapes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedhpo_gym.envs.trial.ledger import CostLedger, charge
from fedhpo_gym.envs.trial.vector_ledger import sizes, times_s
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import Task, get_task

TASK = get_task("MLP-CreditG")


def configuration(depth: int, width: int) -> dict[str, Value]:
    first = {dimension.name: dimension.grid[0] for dimension in TASK.space.dimensions}
    return {**first, "model_depth": depth, "model_width": width}


@pytest.mark.parametrize(
    ("depth", "width", "parameters"),
    [(1, 16, 23 * 16 + 34), (2, 16, 23 * 16 + 19 * 16 + 34), (3, 1024, 2_128_898)],
)
def test_a_model_is_charged_by_its_size(depth: int, width: int, parameters: int) -> None:
    assert TASK.parameters_of(configuration(depth, width)) == parameters
    cost = CostLedger(TASK, freeze_thaw=False).pay(configuration(depth, width), Fidelity(2, 1.0))
    assert cost.upload_bytes == 2 * 5 * 4 * parameters
    assert cost == TASK.system.cost(parameters, 5, Fidelity(2, 1.0))


@pytest.mark.parametrize("task", [TASK, get_task("LR-CreditG")], ids=lambda task: task.name)
def test_costs_of_many_trials_are_those_of_each(task: Task) -> None:
    cells = list(itertools.product((3, 1), (64, 16, 1024), (1, 500), (0.2, 1.0)))
    names = ("model_depth", "model_width", "round", "client_sample_rate")
    columns = dict(zip(names, map(np.array, zip(*cells, strict=True)), strict=True))
    found = sizes(task, columns)
    times = times_s(task, found, columns["round"], columns["client_sample_rate"])
    for (depth, width, rounds, rate), size, time in zip(cells, found, times, strict=True):
        expected = task.parameters_of(configuration(depth, width))
        assert size == expected
        assert time == charge(task, expected, rounds, rate).time_s
