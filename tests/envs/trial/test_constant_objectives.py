"""An objective that no action can change is refused, with the reason."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from fedhpo_gym.core.errors import InvalidArgumentError

ID = "MO-FedHPO-LR-CreditG-v1"
FULL = {"round": 500, "client_sample_rate": 1.0}


@pytest.mark.parametrize("name", ["time_s", "upload_bytes"])
def test_a_cost_that_cannot_vary_is_refused(name: str) -> None:
    objectives = ["val_loss", name]
    with pytest.raises(InvalidArgumentError, match=rf"able to vary, but '{name}'.*fidelity.*500"):
        gym.make(ID, objectives=objectives, fidelity=FULL)
    for fidelity in ({}, {"round": 500}, {"client_sample_rate": 1.0}):
        env = gym.make(ID, objectives=objectives, fidelity=fidelity, disable_env_checker=True)
        env.reset(seed=0)
        env.action_space.seed(0)
        values = {env.step(env.action_space.sample())[-1]["objectives"][name] for _ in range(9)}
        assert len(values) > 1, fidelity


def test_defaults_and_what_is_alone_are_left_as_they_are() -> None:
    given: dict[str, Any] = {"fidelity": FULL, "disable_env_checker": True}
    assert gym.make(ID, **given).get_wrapper_attr("reward_dim") == 3
    alone = gym.make("FedHPO-LR-CreditG-v1", objectives=["val_loss"], **given)
    assert alone.get_wrapper_attr("objectives")[0].name == "val_loss"
