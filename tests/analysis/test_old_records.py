"""Records that the first version wrote: they are read, and every number comes again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedhpo_gym.analysis import group, read_record
from fedhpo_gym.analysis.files import write_record
from fedhpo_gym.analysis.records import FORMAT, to_dict
from fedhpo_gym.studies.replay import present_fingerprint, replay

OLD = Path(__file__).resolve().parents[1] / "data" / "old_records"


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("kind", "name"), [("trial", "trial"), ("round", "step")])
def test_an_old_record_is_brought_to_this_format(kind: str, name: str, tmp_path: Path) -> None:
    path = OLD / f"{kind}.jsonl"
    header, *steps = lines(path)
    assert header["format"] == 1
    record = read_record(path)
    assert to_dict(record.header) == {**header, "format": FORMAT}
    for old, new in zip(steps, record.steps, strict=True):
        incumbent = {**old["incumbent"]}  # type: ignore[dict-item]
        number = incumbent.pop("trial")
        assert to_dict(new) == {**old, "incumbent": {**incumbent, name: number}}
    write_record(tmp_path / "again.jsonl", record)
    assert read_record(tmp_path / "again.jsonl") == record


def test_an_old_record_of_trials_replays() -> None:
    assert replay(read_record(OLD / "trial.jsonl")) is None


def test_old_records_are_reported_and_keep_their_incumbents() -> None:
    records = [(path, read_record(path)) for path in (OLD / "trial.jsonl", OLD / "round.jsonl")]
    for problem, (_, record) in zip(group(records), reversed(records), strict=True):
        (run,) = problem.runs["random"]
        assert run.best
        assert run.trajectory.final == record.final.incumbent["val_loss"]
        assert run.best.number == record.final.best_step
        assert run.trajectory.test is not None
        assert run.trajectory.test[-1] == record.final_test["loss"]


def test_numbers_of_an_old_record_have_a_present_name() -> None:
    header = read_record(OLD / "trial.jsonl").header
    found = present_fingerprint(header)
    assert found != header.fingerprint
    assert present_fingerprint(replace(header, fingerprint=found)) == found
    assert present_fingerprint(replace(header, fingerprint="other")) == "other"
    assert present_fingerprint(replace(header, id="gone-v0")) == header.fingerprint


@pytest.mark.raw
def test_an_old_record_of_rounds_names_its_engine() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    record = read_record(OLD / "round.jsonl")
    found = replay(record)
    assert found is not None
    assert (found.field, found.recorded, found.replayed) == ("engine", 1, 2)
