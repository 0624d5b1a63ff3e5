"""What may be set, and what a record may ask for: no program, no folder of code and no file."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import stat
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import load_env_creator

from fake_study import edit
from fedhpo_gym import cli
from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.analysis import Header, RunRecord, StepRecord
from fedhpo_gym.core.checks import parameter_types
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.studies.environments import (
    FILES,
    MOST_ENTRIES,
    PROGRAM,
    SYSTEM,
    TRUST,
    as_settable,
    make_environment,
    remake_environment,
    trusted_arguments,
)
from fedhpo_gym.studies.replay import replay
from fedhpo_gym.systems import SYSTEM_MODELS

pytestmark = pytest.mark.usefixtures("no_pictures")
TRIALS, ROUNDS = "FedHPO-LR-BreastCancer-v1", "FedHPO-DAC-LR-BreastCancer-v1"


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Return a folder with one whole record of three trials."""
    done = ["run", TRIALS, "--agent", "random", "--seeds", "1", "--out", str(tmp_path)]
    assert cli.main([*done, "--set", "budget_trials=3"]) == 0
    return tmp_path


def changed(folder: Path, kwargs: dict[str, Any]) -> None:
    """Let the record in a folder be one of an environment with other arguments."""
    (path,) = folder.rglob("*.jsonl")
    edit(path, 1, lambda header: header["spec"]["kwargs"].update(kwargs))


def test_every_argument_of_an_environment_has_a_class() -> None:
    for name, spec in gym.registry.items():
        if "FedHPO-" not in name:
            continue
        assert isinstance(spec.entry_point, str)
        maker = load_env_creator(spec.entry_point)
        asked = set(inspect.signature(maker).parameters)
        assert not asked - set(TRUST), "a new argument needs a class in `studies/environments.py`"


def test_every_file_of_a_clock_is_known() -> None:
    named = {field.name for kind in SYSTEM_MODELS.values() for field in fields(kind)}
    assert {name for name in named if "path" in name or "file" in name} == set(FILES)


def test_words_are_data_only_where_they_are_names_of_this_package() -> None:
    """Whoever adds an argument that takes any word must look at it once, and write it here."""
    maker = load_env_creator(str(gym.spec(TRIALS).entry_point))
    free = {
        name
        for name, hint in parameter_types(maker).items()
        if "str" in str(hint) and TRUST[name] not in (PROGRAM, SYSTEM)
    }
    names = {"task", "render_mode", "backend", "algorithm", "preprocessing", "precision", "table"}
    names |= {"device"}
    names |= {"settings", "tune", "objectives", "constraints", "fidelity", "reward_transform"}
    assert free <= names | {"instances", "reward", "noise"}


@pytest.mark.parametrize("command", ["replay", "regret", "report"])
def test_no_record_runs_a_program(
    record: Path, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    code = tmp_path / "federatedscope"
    code.mkdir()
    (code / "__init__.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    for foreign in (
        {"source": str(tmp_path), "interpreter": str(program)},
        {"source": str(tmp_path)},
        {"interpreter": str(program)},
    ):
        changed(
            record, {"backend": "federatedscope", "source": None, "interpreter": None, **foreign}
        )
        status = cli.main([command, str(record), *_out(command, tmp_path)])
        assert not marker.exists()
        assert status == {"replay": 2, "regret": 0, "report": 0}[command]
        if command == "replay":
            assert "must be named by you" in capsys.readouterr().err


def test_replay_goes_on_after_a_record_that_it_may_not_decide(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first,) = record.rglob("*.jsonl")
    shutil.copy(first, second := first.with_name(f"later-{first.name}"))
    edit(first, 1, lambda header: header["spec"]["kwargs"].update(source="/theirs"))
    capsys.readouterr()
    assert cli.main(["replay", str(record)]) == 2
    said = capsys.readouterr()
    assert f"equal      {second}" in said.out
    assert f"fedhpo-gym replay: {first}: `source` must be named by you" in said.err


@pytest.mark.parametrize("command", ["replay", "regret", "report"])
def test_no_record_opens_a_file(record: Path, command: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # whoever opens it to read waits for ever
    changed(record, {"system": {"model": "recorded", "path": str(pipe)}})
    status = cli.main([command, str(record), *_out(command, tmp_path)])
    assert status == {"replay": 2, "regret": 1, "report": 0}[command]


def test_a_record_with_endless_arguments_is_refused_at_once(record: Path) -> None:
    changed(record, {"instances": [{"alpha": 0.5, "seed": 1}] * 100_000})
    assert cli.main(["replay", str(record)]) == 2


def test_the_user_may_name_what_a_record_may_not() -> None:
    given = {"backend": "federatedscope", "source": "/theirs", "interpreter": None}
    assert trusted_arguments(given, {"source": "/mine"}) == {**given, "source": "/mine"}
    clock = {"system": {"model": "recorded", "path": "/theirs", "compute": "epochs"}}
    mine = trusted_arguments(clock, {"system": {"path": "/mine"}})["system"]
    assert mine == {"model": "recorded", "path": "/mine", "compute": "epochs"}
    assert trusted_arguments({"alpha": 0.1, "system": {"compute": "epochs"}}) == {
        "alpha": 0.1,
        "system": {"compute": "epochs"},
    }
    for named in ({"alpha": 0.5}, {"system": {"compute": "steps"}}, {"anything": 1}):
        with pytest.raises(InvalidArgumentError, match="the record's"):
            trusted_arguments({**clock, **given}, {"source": "/mine", **named})
    with pytest.raises(InvalidArgumentError, match="at most 10,000"):
        trusted_arguments({"instances": [[0.5, 1]] * MOST_ENTRIES})
    with pytest.raises(InvalidArgumentError, match="at most 10,000"):
        trusted_arguments({"configuration": {str(i): i for i in range(MOST_ENTRIES + 1)}})


def test_what_a_user_names_counts_only_for_records_that_name_such_a_thing() -> None:
    for plain in ({"alpha": 0.5}, {"source": None}, {"system": {"compute": "epochs"}}):
        named = {"source": "/mine", "interpreter": "/python", "system": {"path": "/mine"}}
        assert trusted_arguments(plain, named) == plain
    theirs = {"source": "/theirs", "interpreter": None}
    mine = {"source": "/mine", "interpreter": "/python"}
    assert trusted_arguments(theirs, mine) == mine


def test_runs_of_trained_courses_are_left_out_of_regret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for env_id, more in ((TRIALS, "budget_trials=2"), (ROUNDS, "horizon=5")):
        done = ["run", env_id, "--agent", "random", "--seeds", "1", "--out", str(tmp_path)]
        assert cli.main([*done, "--set", more]) == 0
    capsys.readouterr()
    assert cli.main(["regret", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "left out: 1 run of" in told.out
    assert told.err == ""


def _out(command: str, folder: Path) -> list[str]:
    return ["--out", str(folder / "page.html")] if command == "report" else []


ID = "FedHPO-LR-CreditG-v0"


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
        ("entry_point", "os:system"),
        ("id", "CartPole-v1"),
    ],
    ids=str,
)
def test_a_spec_that_fits_nothing_is_refused(name: str, value: Any) -> None:
    spec = {**spec_of(make_environment(ID, {})), name: value}
    message = rf"must be one of {ID} .* got .*{value}" if name in ("entry_point", "id") else None
    with pytest.raises(FedHPOError, match=message):
        remake_environment(ID, spec)


def test_the_id_decides_the_problem_whatever_the_spec_says() -> None:
    spec = spec_of(make_environment(ID, {}))
    spec["kwargs"].update(task="LR-Car-v0")
    env = remake_environment(ID, spec)
    assert env.reset(seed=0)[1]["task"] == "LR-CreditG"
