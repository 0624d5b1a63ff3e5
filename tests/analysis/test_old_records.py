"""Records that the first version wrote: they are read, and every number comes again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedhpo_gym.analysis import read_record
from fedhpo_gym.analysis.files import write_record
from fedhpo_gym.analysis.records import FORMAT, to_dict
from fedhpo_gym.studies.replay import replay

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


@pytest.mark.raw
def test_an_old_record_of_rounds_replays() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    assert replay(read_record(OLD / "round.jsonl")) is None
