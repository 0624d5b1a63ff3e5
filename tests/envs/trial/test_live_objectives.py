"""Default objectives of `MO-` ids of version 1: all of them vary, wherever numbers are stored."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.backends import STORED
from fedhpo_gym.envs.trial.setup import DEFAULT_OBJECTIVES, FAIR, LIVE_OBJECTIVES
from fedhpo_gym.identity import Identity
from fedhpo_gym.tables.locate import find, list_names
from fedhpo_gym.tasks import TASKS, task_of

ENDINGS = {"tabular": ".table.json", "surrogate": ".surrogate.json"}


def stored() -> list[Any]:
    """Return the arguments of everything with stored numbers that ids of version 1 answer from."""
    found = {}
    for backend, ending in ENDINGS.items():
        for name in list_names(ending):
            card = find(name, ending)
            assert card is not None
            identity = Identity.from_card(json.loads(card.read_text(encoding="utf-8")))
            task = task_of(identity)
            newest = TASKS[f"{task.name}-v1"]
            options = dict(identity.options)
            variant = newest.variant(**options).fix(dict(identity.settings))
            if not STORED[backend](variant):
                continue
            given = {**options, "backend": backend, "settings": dict(identity.settings) or None}
            key = f"{variant.table_name} {backend}"
            found[key] = pytest.param(f"MO-{newest.id}", given, id=key)
    assert len(found) > 25
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "given"), stored())
def test_every_default_objective_of_every_stored_id_varies(
    name: str, given: dict[str, Any]
) -> None:
    env: Any = gym.make_vec(name, num_envs=64, **given)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    _, rewards, *_ = env.step(rng.uniform(-1, 1, env.action_space.shape).astype("f"))
    protects = given.get("algorithm") == "nbafl"
    names = [objective.name for objective in env.objectives]
    backend = env.setup.backend
    wanted = [*LIVE_OBJECTIVES, "epsilon"][: 3 + protects]
    fair = [one for one in FAIR if not backend.why_refused(one)]
    wanted[1:2] = fair[:1]
    assert names == wanted
    assert {"val_loss", "time_s"} <= {*names}
    for objective, column in zip(names, rewards.T, strict=True):
        assert len(np.unique(column)) > 2, objective


@pytest.mark.parametrize("name", ["MO-FedHPO-LR-Car-v0", "FedHPO-LR-Car-v1", "FedHPO-LR-Car-v0"])
def test_other_ids_keep_theirs(name: str) -> None:
    _, info = gym.make(name, disable_env_checker=True).reset(seed=0)
    assert info["objective_names"] == list(DEFAULT_OBJECTIVES)
