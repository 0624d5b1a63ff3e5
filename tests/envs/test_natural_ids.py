"""The ids of natural federations: registered, trained where the file is, refused in one line."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import pytest

import fedhpo_gym  # noqa: F401
from fedhpo_gym.core.errors import UnknownNameError
from fedhpo_gym.data import SOURCES
from fedhpo_gym.data.natural import NATURAL
from fedhpo_gym.studies.suites import suite
from fedhpo_gym.tasks import TASKS, TRAINED, Task, get_task
from fedhpo_gym.tasks.natural import REGIMES
from fedhpo_gym.testing import TaskConformance


@pytest.mark.parametrize("task", TRAINED.values(), ids=lambda task: task.key)
def test_a_task_agrees_with_its_data_and_its_model(task: Task) -> None:
    source = SOURCES[task.dataset]
    assert task.num_classes == source.num_classes
    largest = {d.name: d.decode(1.0) for d in task.space.dimensions}
    assert task.parameters_of(largest) == task.num_parameters
    assert source.table.origin in task.citation  # type: ignore[attr-defined]
    assert (task.seeds, task.version, task.unstored) == ((1, 2, 3), 1, "raw")
    assert get_task(task.id) is get_task(task.name) is task
    assert task.key not in TASKS
    assert {task.id, f"MO-{task.id}"} <= set(gym.registry)
    rounds = {task.round_id, f"MO-{task.round_id}"} & set(gym.registry)
    assert len(rounds) == (0 if task.model in REGIMES[1:] else 2)
    for name in {task.round_id} - rounds:
        with pytest.raises(UnknownNameError, match=f"Did you mean '{task.key}'"):
            get_task(name)


def test_every_table_has_its_problems_and_its_suite() -> None:
    within = [f"FedHPO-{m}-{t.name}-v1" for t in NATURAL for m in ("LR", "MLP")]
    assert suite("natural") == tuple(within)
    for table in NATURAL:
        assert get_task(f"MLP-{table.name}").num_clients == table.clients
        unseen = get_task(f"MLP-{table.name}Unseen")
        assert unseen.num_clients == pytest.approx(0.6 * table.clients, abs=0.5)
    assert set(suite("natural-small")) < set(within)


def test_ids_are_registered_before_any_problem_is_made(run_python: Callable[..., str]) -> None:
    code = (
        "import sys, gymnasium, fedhpo_gym\n"
        "from fedhpo_gym.tasks import TRAINED\n"
        "print(len(gymnasium.registry), TRAINED._make.cache_info().currsize,\n"
        "      *{'fedhpo_gym.data.catalogue', 'torch', 'pandas'} & {*sys.modules})"
    )
    number, made, *loaded = run_python(code).split()
    assert int(number) > 3 * len(TRAINED)
    assert (made, loaded) == ("0", [])


@pytest.mark.raw
class TestWithinClients(TaskConformance):
    """Answered by training, without being asked."""

    task_id = "FedHPO-LR-ExamLondon"
    backend = "raw"


@pytest.mark.slow
@pytest.mark.raw
class TestUnseenClients(TaskConformance):
    """Clients that nobody has trained on are evaluated on."""

    task_id = "FedHPO-MLP-ScotsSecondaryUnseen"
    backend = "raw"


@pytest.mark.raw
def test_raw_answers_by_default() -> None:
    env = gym.make("FedHPO-LR-ScotsSecondary-v1", seed=1, fidelity={"round": 3})
    env.reset(seed=0)
    env.action_space.seed(0)
    *_, info = env.step(env.action_space.sample())
    assert env.unwrapped.backend.name == "raw"  # type: ignore[attr-defined]
    assert 0 < info["test"]["accuracy"] < 1
