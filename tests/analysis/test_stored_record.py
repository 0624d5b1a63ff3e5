"""A record that an earlier version wrote: every number of it comes again, on any machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedhpo_gym.analysis import group, read_record
from fedhpo_gym.studies.replay import present_fingerprint, replay

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
