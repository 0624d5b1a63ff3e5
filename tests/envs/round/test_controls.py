"""What actions set where clients have hyperparameters of their own already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.envs.round.settings import Controls
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.tasks import get_task, round_system

HETERO = get_task("Hetero-GraphDC")
HETERO = HETERO.variant(system=round_system(HETERO))
ROWS = np.linspace(-0.9, 0.9, 10, dtype=np.float32).reshape(5, 2)


def test_rows_of_clients_and_the_product_of_their_spaces_are_the_same_problem() -> None:
    whole, rows = Controls(HETERO), Controls(HETERO, per_client=True)
    assert whole.action_space.shape == (10,)
    assert rows.action_space.shape == (5, 2)
    assert rows.space.names == ("learning_rate", "step_size")
    named, by_row = whole.decode(ROWS.ravel()), rows.decode(ROWS)
    assert named.items() <= by_row.items()
    assert set(by_row) - set(named) == {"learning_rate", "step_size"}


@pytest.mark.parametrize("per_client", [False, True])
def test_the_slowest_sampled_client_is_charged(per_client: bool) -> None:
    controls = Controls(HETERO, per_client=per_client)
    actions = np.full((5, 2), -1.0, np.float32)
    actions[3, 1] = 1.0  # four epochs
    configuration = controls.decode(actions.reshape(controls.action_space.shape))
    everybody = np.ones(5, np.bool_)
    without = everybody.copy()
    without[3] = False
    slow, fast = (
        HETERO.system.cost(controls.work(configuration, 1, sampled)).computation_s
        for sampled in (everybody, without)
    )
    assert slow == pytest.approx(4 * fast)
    assert HETERO.system.cost(controls.largest_work(1)).computation_s == pytest.approx(slow)


def test_clients_of_different_kinds_have_no_rows() -> None:
    first, *others = HETERO.client_space.dimensions
    wider = SearchSpace((replace(first, high=0.5), *others))
    with pytest.raises(InvalidArgumentError, match=r"`per_client`.*'learning_rate' of client 1"):
        Controls(HETERO.variant(client_space=wider), per_client=True)


def test_what_is_not_active_has_no_value_and_costs_nothing() -> None:
    task = get_task("Joint-ExamLondon").variant(system=HETERO.system)
    for model, shape in (("lr", ()), ("mlp", ("model_depth", "model_width"))):
        controls = Controls(task, configuration={"model": model})
        free = {d.name for d in controls.space.dimensions}
        assert free == set(task.space.names) - set(task.architecture)
        seen = set()
        for action in np.random.default_rng(0).uniform(-1, 1, (20, len(free))):
            found = controls.decode(action.astype(np.float32))
            rate = found.pop("client_sample_rate")
            assert task.space.validate(found) == found
            assert tuple(name for name in found if name in task.architecture[1:]) == shape
            work = controls.work({**found, "client_sample_rate": rate}, 1, np.ones(64, np.bool_))
            assert work.num_parameters == task.parameters_of(found)
            seen.add(found["server_optimizer"])
        assert seen == {"none", "sgd", "adam", "yogi"}


@pytest.mark.raw
def test_both_forms_train_the_same_course(
    shared_datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("torch", "rdkit", "scipy"):
        pytest.importorskip(library)
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(shared_datasets))
    arguments: dict[str, Any] = {
        "instances": [[0.5, 100]], "rounds_per_step": 1, "horizon": 2, "client_sample_rate": 0.4
    }  # fmt: skip
    ends = []
    for per_client, action in ((False, ROWS.ravel()), (True, ROWS)):
        env = gym.make(HETERO.round_id, per_client=per_client, **arguments)
        env.reset(seed=0)
        for _ in range(2):
            _, reward, *_, info = env.step(action)
        ends.append((reward, info["test"], info["cost"], info["elapsed_s"]))
    assert ends[0] == ends[1]
