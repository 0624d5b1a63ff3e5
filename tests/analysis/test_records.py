"""Run records: exact on disk, refused when damaged, replayable to the last bit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_study import ID, FakeEnv, edit, fake_environments, make_record
from fedhpo_gym.analysis import StepRecord, group, read_folder, read_record
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, UnknownNameError
from fedhpo_gym.records.files import record_key, record_path, write_record
from fedhpo_gym.records.runs import CourseProgress
from fedhpo_gym.studies.environments import make_environment, resolve_id
from fedhpo_gym.studies.replay import present_fingerprint, replay

__all__ = ["fake_environments"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "run.jsonl"
    write_record(target, make_record())
    return target


def test_what_is_written_is_read_back_exactly(path: Path) -> None:
    record = make_record()
    assert read_record(path) == record
    assert len(record.steps) == 8
    assert [step.over for step in record.steps] == [False] * 7 + [True]
    actions = np.array([step.action for step in record.steps])
    assert np.array_equal(actions, actions.astype(np.float32))


def test_a_vector_reward_is_recorded_and_replayed(tmp_path: Path) -> None:
    target = tmp_path / "run.jsonl"
    write_record(target, make_record(f"MO-{ID}"))
    record = read_record(target)
    assert len(record.steps[0].reward) == 2  # type: ignore[arg-type]
    assert replay(record) is None


def test_the_file_is_one_header_and_one_line_per_step(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert list(lines[0])[:2] == ["kind", "format"]
    assert (lines[0]["id"], lines[0]["seed"], lines[0]["agent"]) == (ID, 3, "random")
    assert lines[0]["spec"]["entry_point"] == "fake_study:FakeEnv"
    assert {"action", "reward", "configuration", "cost", "test"} < set(lines[1])
    assert len(lines) == 9


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path: Path) -> None:
    before = path.read_bytes()
    record = make_record()
    record.steps[-1].test["f1"] = float("nan")  # type: ignore[index]
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record(path, record)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_write_is_seen_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    sync = os.fsync

    def spy(descriptor: int) -> None:
        seen.append([path.suffix for path in tmp_path.iterdir()])
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    write_record(tmp_path / "run.jsonl", make_record())
    assert seen == [[".part"], [".jsonl"]], "first the content, then the name"


def _put(field: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda content: content.__setitem__(field, value)


def test_missing_records_name_the_command(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="fedhpo-gym run"):
        read_record(tmp_path / "none.jsonl")
    with pytest.raises(MissingDataError, match="fedhpo-gym run"):
        list(read_folder([tmp_path]))


def test_a_step_with_numpy_values_is_refused() -> None:
    env = make_environment(ID, {})
    env.reset(seed=0)
    action = np.zeros(2, np.float32)
    _, reward, terminated, truncated, info = env.step(action)
    StepRecord.from_step(action, reward, terminated, truncated, info)
    info["elapsed_s"] = np.float64(info["elapsed_s"])
    with pytest.raises(InvalidArgumentError, match="`elapsed_s`"):
        StepRecord.from_step(action, reward, terminated, truncated, info)
    del info["test"]
    with pytest.raises(InvalidArgumentError, match=r"must hold \['test'\]"):
        StepRecord.from_step(action, reward, terminated, truncated, info)


def test_the_path_of_a_record_depends_on_settings_and_data(tmp_path: Path) -> None:
    def where(**kwargs: Any) -> Path:
        return record_path(tmp_path, make_record(**kwargs).header)

    default = where()
    assert default == where()
    assert default.parent == tmp_path / ID
    assert default.name.startswith("random-seed3-")
    assert len({default, where(budget_s=1000.0), where(seed=4), where(backend="raw")}) == 4


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (_put("reward", -1.0), "reward"),
        (lambda content: content["test"].__setitem__("loss", 0.0), "test.loss"),
        (lambda content: content["cost"].__setitem__("rounds", 500.0), "cost.rounds"),
        (lambda content: content["cost"].__setitem__("more", 1.0), "cost.more"),
        (lambda content: content["test"].pop("f1"), "test.f1"),
        (
            lambda content: content["incumbent"]["configuration"].__setitem__("weight_decay", 0.0),
            "incumbent.configuration.weight_decay",
        ),
        (
            lambda content: content["action"].__setitem__(0, np.nextafter(content["action"][0], 1)),
            "action[0]",
        ),
    ],
)
def test_the_first_difference_is_named(path: Path, change: Any, field: str) -> None:
    edit(path, 4, change)
    edit(path, 6, _put("reward", 0.0))
    difference = replay(read_record(path))
    assert difference is not None
    assert (difference.step, difference.field) == (3, field)
    assert str(difference).startswith(f"step 3: {field}: recorded ")


def test_a_change_of_the_environment_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = read_record(path)
    with monkeypatch.context() as patch:
        patch.setattr(FakeEnv, "bias", 1e-15)
        difference = replay(record)
        assert difference is not None
        assert difference.step == 1
    monkeypatch.setattr(FakeEnv, "fingerprint", "0" * 64)
    assert "reset: fingerprint: recorded 'ffff" in str(replay(record))


def test_actions_of_another_length_are_refused(path: Path) -> None:
    record = read_record(path)
    steps = tuple(replace(step, action=[0.0]) for step in record.steps)
    with pytest.raises(InvalidArgumentError, match=r"`action` of step 1 must be 2 numbers.* got 1"):
        replay(replace(record, steps=steps))


def test_a_schedule_is_of_what_every_step_sets(path: Path) -> None:
    record = read_record(path)
    steps = [
        replace(
            one,
            incumbent={n: one.incumbent[n] for n in ("configuration", "val_loss")} | {"step": 1},
        )
        for one in record.steps
    ]
    steps[3] = replace(steps[3], configuration={"learning_rate": 0.1, "weight_decay": "none"})
    course = CourseProgress.of(replace(record, steps=tuple(steps)))
    assert course is not None
    assert [*course.schedule] == ["learning_rate"]


def test_a_record_of_an_unknown_environment_is_refused(path: Path) -> None:
    edit(path, 1, _put("id", "FedHPO-LR-Nowhere-v0"))
    with pytest.raises(UnknownNameError, match="FedHPO-LR-Nowhere-v0"):
        replay(read_record(path))


def test_ids_may_lack_their_version() -> None:
    assert resolve_id("FedHPO-LR-CreditG") == resolve_id(ID) == ID
    assert resolve_id("MO-FedHPO-LR-CreditG") == f"MO-{ID}"
    with pytest.raises(UnknownNameError, match="Did you mean 'FedHPO-LR-CreditG-v0'"):
        resolve_id("FedHPO-LR-CreditH-v0")


PATH = Path(__file__).resolve().parents[1] / "data" / "records" / "trial.jsonl"


def test_a_stored_record_replays_and_is_reported_with_its_incumbent() -> None:
    record = read_record(PATH)
    assert replay(record) is None
    [problem] = group([(PATH, record)])
    [run] = problem.runs["random"]
    assert run.best is not None
    assert run.trajectory.test is not None
    assert run.trajectory.final == record.final.incumbent["val_loss"]
    assert run.best.number == record.final.best_step
    assert run.trajectory.test[-1] == record.steps[record.final.best_step - 1].test["loss"]


def test_former_names_of_its_numbers_have_a_present_name() -> None:
    header = read_record(PATH).header
    former = "table-sha256:00000581d80f670746250e03f177d58cc18cdc11f4453c1a2df8d5fec74149f7"
    present = present_fingerprint(header)
    assert present not in (header.fingerprint, former), "its table was packed since then"
    assert present_fingerprint(replace(header, fingerprint=former)) == present
    assert present_fingerprint(replace(header, fingerprint=present)) == present
    assert present_fingerprint(replace(header, fingerprint="other")) == "other"
    assert present_fingerprint(replace(header, id="gone-v0", fingerprint=former)) == former


def test_a_study_begun_when_wrappers_had_files_of_their_own_goes_on() -> None:
    places = ("wrappers.budget_termination:BudgetTermination", "wrappers:BudgetTermination")
    specs = [{"additional_wrappers": [{"entry_point": f"fedhpo_gym.{one}"}]} for one in places]
    assert len({record_key(spec, "data", 1) for spec in specs}) == 1
    assert record_key({**specs[0], "kwargs": {"budget_s": 1.0}}, "data", 1) not in {
        record_key(spec, "data", 1) for spec in specs
    }
