"""N round environments as one batch: bit for bit N single ones, autoreset included."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.envs.round.process import RoundProcess
from fedhpo_gym.evaluation.records import Evaluation
from fedhpo_gym.objectives import Objective
from fedhpo_gym.testing import plain

pytestmark = pytest.mark.raw

ID = "FedHPO-DAC-LR-BreastCancer-v0"
N = 4
SHORT: dict[str, Any] = {
    "instances": [[0.7, 100], [0.7, 101]],
    "rounds_per_step": 1,
    "horizon": 3,
    "client_sample_rate": 0.6,
}
FORMS: dict[str, dict[str, Any]] = {
    "all": {},
    "one instance": {"instances": [[0.7, 100]], "dynamic": ["learning_rate", "weight_decay"]},
    "fedopt": {"algorithm": "fedopt", "rounds_per_step": 3},
    "per client": {"per_client": True},
    "ends early": {"budget_s": 9.0},
    "fedasync": {"algorithm": "fedasync", "rounds_per_step": 3},
    "fedbuff on devices": {
        "algorithm": "fedbuff",
        "dynamic": [
            "learning_rate",
            "step_size",
            "batch_size",
            "buffer_size",
            "client_sample_rate",
        ],
        "client_sample_rate": None,
        "system": {"model": "devices", "availability": "sine", "dropout": 0.2, "compute": "steps"},
    },
    "devices": {
        "system": {
            "model": "devices",
            "devices": "flash",
            "availability": "sine",
            "dropout": 0.2,
            "over_selection": 0.3,
            "deadline_s": 900.0,
            "compute": "steps",
        }
    },
    "noise": {"noise": {"clients": 0.4, "bias": 1.0}},
    "private noise": {"noise": {"clients": 0.6, "epsilon": 30.0}},
    "exchanged samples": {"noise": {"iid": 0.5, "clients": 0.4}, "potential": "accuracy"},
}


def own_loss(evaluation: Evaluation) -> float:
    return evaluation.mean("val", "loss")


LOSS = Objective.of(own_loss, name="own_loss", unit="nats", minimize=True, bounds=(0.0, 10.0))
POWERED: dict[str, Any] = {
    "rewards": ["upload", "download", "flops", "energy", "val_error", "fairness"],
    "system": {"model": "devices", "devices": "alike", "client_compute_w": 2.0, "dropout": 0.3},
}
VECTORS: dict[str, dict[str, Any]] = {
    "entries": {"rewards": ["improvement", "time", "upload", "fairness"]},
    "costs": {**POWERED, "rewards": [*POWERED["rewards"], "fairness_worst", LOSS]},
    "noisy": {**POWERED, "noise": {"clients": 0.4, "bias": 1.0}},
    "private": {**POWERED, "noise": {"epsilon": 30.0, "clients": 0.6}},
}


def make(prefix: str = "", **arguments: Any) -> Any:
    mode = "vector_entry_point"
    return gym.make_vec(prefix + ID, N, vectorization_mode=mode, **{**SHORT, **arguments})


def singles(mode: str = "NextStep", prefix: str = "", **arguments: Any) -> SyncVectorEnv:
    def one() -> gym.Env[Any, Any]:
        return gym.make(prefix + ID, disable_env_checker=True, **{**SHORT, **arguments})

    if prefix:
        return pytest.importorskip("mo_gymnasium.wrappers.vector").MOSyncVectorEnv([one] * N)
    return SyncVectorEnv([one] * N, autoreset_mode=AutoresetMode(mode))


def same(ours: Any, theirs: Any) -> bool:
    """Compare (observations, rewards, terminated, truncated) bit for bit."""
    return plain([dict(sorted(ours[0].items())), *ours[1:4]]) == plain(
        [dict(sorted(theirs[0].items())), *theirs[1:4]]
    )


def run_both(mode: str, steps: int, **arguments: Any) -> None:
    keys, nobody = ("configuration", "fidelity"), np.zeros(N, bool)
    ours = make(autoreset_mode=mode, info_keys=keys, **arguments)
    theirs = singles(mode, **arguments)
    first, second = ours.reset(seed=5), theirs.reset(seed=5)
    assert plain(dict(sorted(first[0].items()))) == plain(dict(sorted(second[0].items())))
    assert plain(first[1]["instance"].tolist()) == plain(_instances(second[1]))
    ours.action_space.seed(0)
    ends = 0
    for _ in range(steps):
        actions = ours.action_space.sample()
        mine, other = ours.step(actions), theirs.step(actions)
        assert same(mine, other)
        assert_same_objectives(mine[4], other[4])
        for key in ("val_loss", "elapsed_s", "step", "diverged"):
            mask = mine[4].get(f"_{key}", np.zeros(N, bool))
            assert plain(mask) == plain(other[4].get(f"_{key}", np.zeros(N, bool)))
            if mask.any():
                assert mine[4][key][mask].tolist() == other[4][key][mask].tolist()
        for part in keys:
            assert plain(mine[4].get(f"_{part}", nobody)) == plain(other[4].get(f"_{part}", nobody))
            for name, values in other[4].get(part, {}).items():
                assert mine[4][part][name].tolist() == np.asarray(values).tolist(), name
        if "final_obs" in mine[4]:
            for one, two in zip(mine[4]["final_obs"], other[4]["final_obs"], strict=True):
                assert plain(one and dict(sorted(one.items()))) == plain(
                    two and dict(sorted(two.items()))
                )
        ends += int(mine[2].sum())
        if mode == "Disabled" and mine[2].any():
            options = {"reset_mask": mine[2].copy()}
            assert same((ours.reset(options=options)[0],), (theirs.reset(options=options)[0],))
    assert ends >= N


def assert_same_objectives(mine: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Compare what was told, and the truth behind noise."""
    for told, expected in ((mine, other), (mine.get("truth", {}), other.get("truth", {}))):
        for name, values in expected.get("objectives", {}).items():
            assert plain(values) == plain(told["objectives"][name]), name


def _instances(info: dict[str, Any]) -> list[dict[str, Any]]:
    found = info["instance"]
    return [{key: found[key][i].item() for key in ("index", "alpha", "seed")} for i in range(N)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_it_is_n_single_environments(form: str, mode: str) -> None:
    run_both(mode, 8, **FORMS[form])


@pytest.mark.parametrize("form", VECTORS)
def test_vectors_of_rewards_are_those_of_single_environments(form: str) -> None:
    run_both("NextStep", 5, prefix="MO-", **VECTORS[form])


def test_a_step_that_resets_all_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    envs, trained = make(), []
    step = RoundProcess.step
    monkeypatch.setattr(
        RoundProcess, "step", lambda self, actions: trained.append(1) or step(self, actions)
    )
    envs.reset(seed=5)
    ends = 0
    for calls in range(1, 9):
        ends += int(envs.step(envs.action_space.sample())[2].all())
        assert len(trained) == calls - ends + int(envs._done.all())
    assert ends


def test_masks_reset_some_of_them() -> None:
    run_both("Disabled", 6)


def test_it_tells_all_that_a_single_environment_tells() -> None:
    ours, env = make(), gym.make(ID, **SHORT)
    ours.reset(seed=5)
    env.reset(seed=7)
    with pytest.raises(InvalidArgumentError, match="`index`"):
        ours.step_info(2)
    actions = ours.action_space.sample()
    ours.step(actions)
    assert plain(ours.step_info(2)) == plain(env.step(actions[2])[-1])
    with pytest.raises(InvalidArgumentError, match="`index`"):
        ours.step_info(N)


def test_copies_go_on_alike() -> None:
    ours = make()
    ours.reset(seed=5)
    ours.step(ours.action_space.sample())
    twins = [copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))]
    for _ in range(4):
        actions = ours.action_space.sample()
        outcome = ours.step(actions)
        assert all(same(twin.step(actions), outcome) for twin in twins)


def test_instances_can_be_chosen() -> None:
    ours = make()
    _, infos = ours.reset(seed=0, options={"instance": [0, 1, 1, 0]})
    assert [one["index"] for one in infos["instance"]] == [0, 1, 1, 0]
    _, infos = ours.reset(options={"instance": 1})
    assert [one["index"] for one in infos["instance"]] == [1] * N
    for wrong in (2, [0, 1], [0, 0, 0, -1]):
        with pytest.raises(InvalidArgumentError, match=r"`options\['instance'\]`"):
            ours.reset(options={"instance": wrong})


@pytest.mark.parametrize("action", [2.0, np.nan])
def test_an_action_outside_the_space_changes_nothing(action: float) -> None:
    ours = make(per_client=True)
    ours.reset(seed=0)
    bad = np.zeros(ours.action_space.shape, np.float32)
    bad[1, 2, 0] = action
    with pytest.raises(InvalidArgumentError, match=r"`actions\[1\]`"):
        ours.step(bad)
    assert ours.step(np.zeros_like(bad))[4]["step"].tolist() == [1] * N


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"render_mode": "rgb_array"}, "`render_mode`"),
        ({"horizons": 3}, "unknown argument 'horizons'"),
        ({"autoreset_mode": "Never"}, "`autoreset_mode`"),
        ({"info_keys": ("configurations",)}, "Unknown info key"),
        ({"info_keys": "fidelity"}, "info.key"),
    ],
)
def test_it_refuses_what_cannot_be_made(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(FedHPOError, match=words):
        make(**arguments)


def test_infos_are_short_unless_asked() -> None:
    ours = make()
    ours.reset(seed=5)
    info = ours.step(ours.action_space.sample())[4]
    assert "configuration" not in info
    assert set(info["fidelity"]) == {"round", "_round"}
