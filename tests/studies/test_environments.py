"""What may be set on the command line, and what a record may ask for when it is replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.analysis import Header, RunRecord, StepRecord
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.studies.environments import as_settable, make_environment, remake_environment
from fedhpo_gym.studies.replay import replay

ID = "FedHPO-LR-CreditG-v0"
ROUNDS = "FedHPO-DAC-LR-BreastCancer-v0"


@pytest.mark.parametrize(
    ("env_id", "kwargs", "message"),
    [
        (ID, {"task": "LR-Car"}, "`task` cannot be set, got 'LR-Car'"),
        (ROUNDS, {"task": "LR-Car"}, "`task` cannot be set"),
        (ID, {"vector_reward": True}, "`vector_reward` cannot be set"),
        (f"MO-{ID}", {"vector_reward": False}, "`vector_reward` cannot be set"),
        (ID, {"version": 3}, "`version` cannot be set"),
        (ID, {"render_mode": "human"}, "takes no argument 'render_mode'"),
        (ID, {"max_episode_steps": 3}, "takes no argument 'max_episode_steps'"),
        (ID, {"disable_env_checker": False}, "takes no argument"),
        (ID, {"freeze_thaw": "False"}, "`freeze_thaw` must be true or false, got 'False'"),
        (ID, {"freeze_thaw": 0}, "`freeze_thaw` must be true or false, got 0"),
        (ID, {"grid": "no"}, "`grid` must be true or false, got 'no'"),
        (ROUNDS, {"per_client": "no"}, "`per_client` must be true or false, got 'no'"),
        (ROUNDS, {"horizon": "5"}, "`horizon` must be an integer that fits into 64 bits"),
        (ID, {"horizon": 5}, "takes no argument 'horizon'"),
        (ID, {"algorithm": 3}, "`algorithm` must be a string or None, got 3"),
    ],
    ids=str,
)
def test_only_arguments_of_the_signature_can_be_set(
    env_id: str, kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        as_settable(env_id, kwargs)


def test_what_can_be_set_keeps_its_value() -> None:
    given = {"freeze_thaw": True, "budget_s": 900, "objectives": ["val_loss"], "alpha": 0.1}
    assert as_settable(ID, given) == given
    assert as_settable(ROUNDS, {"preprocessing": "label_encoded", "horizon": 10}) == {
        "preprocessing": "label_encoded",
        "horizon": 10,
    }


def spec_of(env: gym.Env[Any, Any]) -> dict[str, Any]:
    assert env.spec is not None
    found: dict[str, Any] = json.loads(env.spec.to_json())
    return found


def recorded(env: gym.Env[Any, Any]) -> RunRecord:
    _, info = env.reset(seed=3)
    steps = [
        StepRecord.from_step(s.action, s.reward, s.terminated, s.truncated, s.info)
        for s in run_episode(env, make_agent("random", env, 3), 3)
    ]
    header = Header("1", ID, spec_of(env), "random", 3, info["fingerprint"])
    return RunRecord(header, tuple(steps))


def test_a_record_with_wrappers_of_the_list_replays() -> None:
    env = make_environment(ID, {"budget_trials": 5})
    env = gym.wrappers.ClipReward(gym.wrappers.RecordEpisodeStatistics(env), -1.0, 1.0)
    env = gym.wrappers.TimeLimit(env, 4)
    record = recorded(env)
    assert record.final.truncated
    assert replay(record) is None


def wrapper(name: str, entry_point: Any, **kwargs: Any) -> dict[str, Any]:
    return {"name": name, "entry_point": entry_point, "kwargs": kwargs}


VIDEO = "gymnasium.wrappers.rendering:RecordVideo"
LIMIT = "gymnasium.wrappers.common:TimeLimit"


@pytest.mark.parametrize(
    ("added", "message"),
    [
        (wrapper("RecordVideo", VIDEO, video_folder="PLACE"), "names the wrapper .*RecordVideo"),
        (wrapper("x", "gymnasium.wrappers:RecordVideo", video_folder="PLACE"), "names the wrapper"),
        (wrapper("x", "gymnasium.wrappers.common:gym.make", id="CartPole-v1"), "names the wrapper"),
        (wrapper("x", "fedhpo_gym.wrappers:np.save", file="PLACE", arr=1), "names the wrapper"),
        (wrapper("x", ["os:system"]), "names the wrapper"),
        (wrapper("x", f"{LIMIT} "), "names the wrapper"),
        (wrapper("TimeLimit", LIMIT, max_episode_steps="x"), "max_episode_steps` must be an int"),
        (wrapper("TimeLimit", LIMIT, max_episode_steps=-1), "cannot be made"),
        (wrapper("TimeLimit", LIMIT), "cannot be made"),
        (wrapper("TimeLimit", LIMIT, max_episode_steps=3, more=1), "arguments among"),
        ({**wrapper("TimeLimit", LIMIT), "kwargs": None}, "arguments among"),
        (
            wrapper("RawBackend", "fedhpo_gym.wrappers:RawBackend", device=3),
            "device` must be a string",
        ),
    ],
    ids=str,
)
def test_a_record_can_ask_for_nothing_else(
    tmp_path: Path, added: dict[str, Any], message: str
) -> None:
    spec = spec_of(make_environment(ID, {}))
    place = tmp_path / "outside"
    kwargs = added["kwargs"]
    if kwargs is not None:
        kwargs = {k: str(place) if v == "PLACE" else v for k, v in kwargs.items()}
    spec["additional_wrappers"].append({**added, "kwargs": kwargs})
    with pytest.raises(InvalidArgumentError, match=message):
        remake_environment(ID, spec)
    assert not place.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_episode_steps", "x"),
        ("max_episode_steps", 0),
        ("order_enforce", "no"),
        ("disable_env_checker", 3),
        ("additional_wrappers", [5]),
        ("kwargs", {"render_mode": "human"}),
        ("kwargs", {"colour": "red"}),
        ("kwargs", {"grid": "no"}),
        ("nonsense", 1),
    ],
    ids=str,
)
def test_a_spec_that_fits_nothing_is_refused(name: str, value: Any) -> None:
    spec = {**spec_of(make_environment(ID, {})), name: value}
    with pytest.raises(FedHPOError):
        remake_environment(ID, spec)


def test_the_id_decides_the_problem_whatever_the_spec_says() -> None:
    spec = spec_of(make_environment(ID, {}))
    spec["kwargs"].update(task="LR-Car-v0")
    env = remake_environment(ID, spec)
    assert env.reset(seed=0)[1]["task"] == "LR-CreditG"
