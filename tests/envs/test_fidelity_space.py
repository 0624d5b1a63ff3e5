"""The rounds an action asks for are the task's, whatever answers it."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.backends import STORED, make_backend
from fedhpo_gym.backends.raw import Raw
from fedhpo_gym.stored.catalogue import has_table
from fedhpo_gym.tasks import TASKS, Task, get_task

ANSWERED = [
    pytest.param(task, backend, id=f"{name}-{backend}")
    for name, task in TASKS.items()
    if isinstance(task, Task)
    for backend, answers in STORED.items()
    if answers(task)
]


@pytest.mark.parametrize(("task", "backend"), ANSWERED)
def test_what_is_stored_knows_the_tasks_rounds_from_the_first_one_on(
    task: Task, backend: str
) -> None:
    asked = task.asked_fidelity_space()["round"]
    known = make_backend(backend, task).fidelity_space["round"]
    assert asked.values is not None
    assert known.values is not None
    assert known.values == asked.values[: len(known.values)]
    if len(known.values) == len(asked.values) or has_table(task.table_name):
        assert known == asked


@pytest.mark.data
def test_training_is_asked_for_the_rounds_of_the_table() -> None:
    pytest.importorskip("torch")
    task = get_task("LR-BreastCancer-v0")
    spaces = [backend.fidelity_space for backend in (Raw(task), make_backend("tabular", task))]
    assert spaces[0]["round"] == spaces[1]["round"]


@pytest.mark.data
def test_an_action_asks_for_the_same_round_of_a_surrogate_and_of_training() -> None:
    pytest.importorskip("torch")
    rounds: list[list[int]] = []
    for backend in ("surrogate", "raw"):
        env = gym.make("FedHPO-LR-CreditG-v1", backend=backend)
        known = env.get_wrapper_attr("fidelity_space")["round"]
        rounds.append([int(known.decode(unit)) for unit in np.linspace(0, 1, 101)])
        env.close()
    assert rounds[0] == rounds[1]
