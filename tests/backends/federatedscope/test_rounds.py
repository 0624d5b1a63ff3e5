"""Round environments on FederatedScope's courses: their laws, on a program that pretends."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym  # noqa: F401 - registers the ids
from federatedscope_peer import RECORDED, pretend
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.testing import RoundConformance
from fedhpo_gym.testing.rollout import rollout

pytest.importorskip("torch")
pytest.importorskip("sklearn")

ID = "FedHPO-DAC-LR-BreastCancer-v1"


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, Any]:
    return {"backend": "federatedscope", **pretend(tmp_path, "formula", tmp_path / "none")}


@pytest.mark.slow
class TestPretendedRounds(RoundConformance):
    task_id = "FedHPO-LR-BreastCancer-v1"
    backend = "federatedscope"

    @pytest.fixture(autouse=True)
    def _paths(self, arguments: dict[str, Any]) -> None:
        self.paths = arguments

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), **self.paths}

    def test_another_process_with_another_hash_seed_agrees(self) -> None:
        """All but the working folder, which every process has of its own."""
        found = self.rollout_elsewhere(), rollout(self.make())
        one, other = (re.sub(r"[^\"]*fedhpo-federatedscope-\w+", "", json.dumps(x)) for x in found)
        assert one == other


def episode(env: gym.Env[Any, Any], steps: int) -> list[Any]:
    env.action_space.seed(0)
    return [env.step(env.action_space.sample())[4]["val_loss"] for _ in range(steps)]


def test_going_back_trains_again_what_led_there(arguments: dict[str, Any]) -> None:
    env: Any = gym.make(ID, horizon=6, rounds_per_step=1, **arguments).unwrapped
    env.reset(seed=0)
    whole = episode(env, 4)
    env.reset(seed=0)
    first = episode(env, 2)
    snapshot = env.snapshot()
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(4)]
    others = [env.step(np.clip(-action, -1, 1))[4]["val_loss"] for action in actions[2:]]
    env.restore(snapshot)
    again = [env.step(action)[4]["val_loss"] for action in actions[2:]]
    assert first + again == whole
    assert others != again
    twin = copy.deepcopy(env)  # has another process, or the same one
    assert twin.step(actions[0])[4]["val_loss"] == env.step(actions[0])[4]["val_loss"]
    env.close()
    twin.close()


def test_single_clients_have_hyperparameters_of_their_own(arguments: dict[str, Any]) -> None:
    env: Any = gym.make(
        ID, horizon=4, per_client=True, client_sample_rate=0.4, dynamic=["learning_rate"],
        **arguments,
    )  # fmt: skip
    observation, _ = env.reset(seed=0)
    low, high = -np.ones((5, 1), dtype=np.float32), np.ones((5, 1), dtype=np.float32)
    sampled = observation["sampled"].astype(bool)
    assert sampled.sum() == 2
    one = int(np.flatnonzero(sampled)[0])
    mixed = high.copy()
    mixed[one] = low[one]
    *_, info = env.step(mixed)
    trained = np.array(info["num_train_samples"]) > 0
    np.testing.assert_array_equal(trained, sampled)
    before, after = (np.array(info[f"val_loss_{when}"]) for when in ("before", "after"))
    assert after[one] < before[one]  # a low rate halves the loss, a high one does not
    assert (after[sampled & (np.arange(5) != one)] > before[sampled & (np.arange(5) != one)]).all()
    env.close()


def test_what_cannot_be_stepped_is_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    first = pretend(tmp_path, "replay", RECORDED / "v0.1.json")
    with pytest.raises(InvalidArgumentError, match="reads hyperparameters once"):
        gym.make(ID, **{**arguments, **first})
    with pytest.raises(InvalidArgumentError, match="nbafl"):
        gym.make(ID, algorithm="nbafl", **arguments)
    with pytest.raises(InvalidArgumentError, match="`device` is for"):
        gym.make(ID, device="cpu", **arguments)
    with pytest.raises(InvalidArgumentError, match="`source` is for"):
        gym.make(ID, source="tree")
    with pytest.raises(InvalidArgumentError, match="time_limit_s"):
        gym.make(ID, time_limit_s=-1.0, **arguments)
    with pytest.raises(LookupError, match="tabular"):
        gym.make(ID, backend="tabular")
