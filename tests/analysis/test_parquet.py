"""Columnar records: the same record as from JSON lines, read by others, refused when damaged."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_study import fake_environments, make_record
from fedhpo_gym.analysis import RunRecord, StepRecord, read_folder, read_record, write_record
from fedhpo_gym.core import arrow_files
from fedhpo_gym.core.errors import DamagedDataError, TooLargeError
from fedhpo_gym.records import parquet
from fedhpo_gym.records.files import GrowingRecord, open_growing, read_judged
from fedhpo_gym.records.parquet import from_columns, to_columns
from fedhpo_gym.records.record import to_dict, unseal_lines
from fedhpo_gym.records.runs import JudgedRun
from fedhpo_gym.studies.replay import replay

__all__ = ["fake_environments"]

pytest.importorskip("pyarrow")

LEAVES = (
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
    | st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3)
)
NAMES = st.sampled_from(["a", "b", "a.b", "loss"])
ROWS = st.lists(st.dictionaries(NAMES, LEAVES | st.dictionaries(NAMES, LEAVES)), max_size=4)


def read_unfinished(path: Path) -> list[dict[str, Any]]:
    """Return header and steps that a run has left so far: the lines that follow on each other."""
    return [json.loads(line) for line in unseal_lines(path.read_bytes().split(b"\n")[:-1])]


@given(ROWS)
@settings(max_examples=60)
def test_columns_give_rows_back_with_their_types(rows: list[dict[str, Any]]) -> None:
    read = from_columns(to_columns(rows), len(rows))
    assert [json.dumps(row, sort_keys=True) for row in read] == [
        json.dumps(row, sort_keys=True) for row in rows
    ]


@pytest.fixture
def record() -> RunRecord:
    made = make_record()
    steps = [
        replace(step, extra={"regret": 0.5 / (1 + place), "node": place % 3, "tags": ["a", 1]})
        for place, step in enumerate(made.steps)
    ]
    return RunRecord(replace(made.header, extra={"nodes": 3}), tuple(steps))


@pytest.fixture
def path(tmp_path: Path, record: RunRecord) -> Path:
    target = tmp_path / "run.parquet"
    write_record(target, record)
    return target


def test_what_is_written_is_read_back_exactly(path: Path, record: RunRecord) -> None:
    write_record(path.with_suffix(".jsonl"), record)
    read = read_record(path)
    assert read == read_record(path.with_suffix(".jsonl")) == record
    assert [json.dumps(to_dict(step), sort_keys=True) for step in read.steps] == [
        json.dumps(to_dict(step), sort_keys=True) for step in record.steps
    ], "an integer stays an integer"
    assert replay(read) is None, "fields that this version does not know are no difference"
    assert len(list(read_folder([path.parent]))) == 2


def test_the_same_record_makes_the_same_bytes(path: Path, record: RunRecord) -> None:
    before = path.read_bytes()
    write_record(path, record)
    assert path.read_bytes() == before


def test_judges_read_the_same_from_columns_and_lines(path: Path, record: RunRecord) -> None:
    judged, whole = read_judged(path), JudgedRun.of(record)
    assert judged.header == whole.header
    for name in ("time_s", "value", "level", "test"):
        assert np.array_equal(getattr(judged.trials, name), getattr(whole.trials, name)), name
    assert np.array_equal(judged.accuracy, whole.accuracy)
    assert [judged.describe_step(n) for n in range(8)] == [whole.describe_step(n) for n in range(8)]


def test_truth_behind_noise_and_workers_are_columns(tmp_path: Path) -> None:
    made = make_record()
    truths = [{name: value / 2 for name, value in s.objectives.items()} for s in made.steps]
    steps = tuple(
        replace(step, worker=place % 3, truth={"objectives": truths[place], "incumbent": {"a": 1}})
        for place, step in enumerate(made.steps)
    )
    record, path = RunRecord(replace(made.header, workers=3), steps), tmp_path / "run.parquet"
    write_record(path, record)
    write_record(path.with_suffix(".jsonl"), record)
    assert read_record(path) == read_record(path.with_suffix(".jsonl")) == record
    columns, lines = read_judged(path), JudgedRun.of(record)
    told = [step.objectives["val_loss"] for step in steps]
    truth = [value / 2 for value in told]
    for judged in (columns, lines):
        assert judged.header.workers == 3
        assert judged.trials.value.tolist() == truth
        assert judged.trials.observed is not None
        assert judged.trials.observed.tolist() == told
    pd = pytest.importorskip("pandas")
    table = pd.read_parquet(path)
    assert list(table["worker"]) == [step.worker for step in steps]
    assert list(table["truth.objectives.val_loss"]) == truth


def test_polars_and_duckdb_read_them(path: Path, record: RunRecord) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    least = min(step.objectives["val_loss"] for step in record.steps)
    assert polars.read_parquet(path)["objectives.val_loss"].min() == least
    found = duckdb.read_parquet(str(path)).aggregate('agent, min("objectives.val_loss")')
    assert found.fetchall() == [("random", least)]


def test_a_file_of_another_format_is_refused(
    path: Path, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as former:
        former.setattr(parquet, "FORMAT", 1)
        write_record(path, record)
    for read in (read_record, read_judged):
        with pytest.raises(DamagedDataError, match="`format` must be 2, got 1; read the file"):
            read(path)


# -------------------------------------------------------------------- while a run goes on


def test_a_small_record_of_many_rows_is_refused_before_it_is_read(
    tmp_path: Path, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = to_columns([to_dict(step) for step in record.steps[:1]])
    many = [replace(one, values=[*one.values] * 100_000) for one in columns]
    parquet.store(tmp_path / "a.parquet", record.header, many, "0" * 64)
    monkeypatch.setenv("FEDHPO_GYM_MAX_BYTES", "800000")
    for read in (read_record, read_judged):
        with pytest.raises(TooLargeError, match=r"a.parquet of .* bytes would take"):
            read(tmp_path / "a.parquet")


def forge(path: Path, change: Callable[[Any, dict[str, Any]], Any]) -> None:
    """Change table and metadata of a record, and write it with right digests of its bytes."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    about = json.loads(table.schema.metadata[b"fedhpo_gym"])
    parquet.store_table(path, change(table, about), about)


def long_list(table: Any, _: object) -> Any:
    import pyarrow

    ends = pyarrow.array([0, *[1_000_000] * len(table)], pyarrow.int32())
    numbers = pyarrow.ListArray.from_arrays(ends, np.zeros(1_000_000))
    return table.set_column(table.column_names.index("action"), "action", numbers)


def repeated_word(table: Any, about: dict[str, Any]) -> Any:
    import pyarrow

    about["columns"]["word"] = {"path": ["word"], "kind": "string"}
    places = pyarrow.array([0] * len(table), pyarrow.int32())
    words = pyarrow.DictionaryArray.from_arrays(places, ["x" * 1_000_000])
    return table.append_column("word", words)


def no_accuracy(table: Any, _: object) -> Any:
    return table.drop_columns(["test.accuracy"])


def other_type(table: Any, _: object) -> Any:
    place = table.column_names.index("elapsed_s")
    return table.set_column(place, "elapsed_s", table.column("elapsed_s").cast("string"))


def no_number(table: Any, _: object) -> Any:
    place = table.column_names.index("test.accuracy")
    return table.set_column(place, "test.accuracy", [[None] * len(table)]).cast(table.schema)


def late_incumbent(table: Any, _: object) -> Any:
    place = table.column_names.index("incumbent.trial")
    return table.set_column(place, "incumbent.trial", [[2**40] * len(table)])


def no_reward(table: Any, about: dict[str, Any]) -> Any:
    del about["columns"]["reward"]
    return table


@pytest.mark.parametrize("change", [long_list, repeated_word])
def test_lists_and_words_of_a_small_record_are_counted(
    path: Path, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge(path, change)
    monkeypatch.setenv("FEDHPO_GYM_MAX_BYTES", "800000")
    for read in (read_record, read_judged):
        with pytest.raises(TooLargeError, match=r"run.parquet of .* bytes would take"):
            read(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (no_accuracy, "test.accuracy"),
        (other_type, "'elapsed_s' of kind 'double' is of type string"),
        (no_number, "test.accuracy"),
        (late_incumbent, "incumbent of a step that has not been"),
        (no_reward, "reward"),
    ],
)
def test_a_record_of_other_columns_is_refused(path: Path, change: Any, words: str) -> None:
    forge(path, change)
    with pytest.raises(DamagedDataError, match=words):
        read_judged(path)
    with pytest.raises(DamagedDataError, match=r"run\.parquet: not a run record"):
        read_record(path)


def test_a_file_that_ends_its_reader_is_damage_and_the_next_is_read(
    path: Path, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_record(path) == record
    arrow_files._readers[os.getpid()].send_signal(signal.SIGSTOP)  # it answers no more
    with monkeypatch.context() as killed:
        killed.setattr(arrow_files, "wait", lambda *_: [arrow_files._readers[os.getpid()].kill()])
        with pytest.raises(DamagedDataError, match="ended the process that read it by signal 9"):
            read_record(path)
    assert read_record(path) == record


def test_a_trial_is_on_file_when_it_is_over_and_a_cut_loses_one(tmp_path: Path) -> None:
    record, path = make_record(), tmp_path / "run.jsonl"
    own = tmp_path / "run.jsonl.open"
    with open_growing(path, pytest.fail) as growth:
        for count, line in enumerate([record.header, *record.steps], start=1):
            growth.add(line)
            assert len(read_unfinished(own)) == count
    content = own.read_bytes()
    own.write_bytes(content[:-1])
    assert len(read_unfinished(own)) == len(record.steps)
    write_record(tmp_path / "whole.jsonl", record)
    assert content == (tmp_path / "whole.jsonl").read_bytes()


def grow(growth: GrowingRecord, record: RunRecord, steps: tuple[StepRecord, ...]) -> None:
    for line in (record.header, *steps):
        growth.add(line)
    growth.sync()


def test_a_disk_that_takes_a_part_of_a_line_gets_the_rest_and_a_full_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, path = make_record(), tmp_path / "run.jsonl"
    real, room = os.pwrite, [10**6]

    def some(descriptor: int, content: bytes, at: int) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken = min(len(content), 7, room[0])
        room[0] -= taken
        return real(descriptor, content[:taken], at)

    monkeypatch.setattr(os, "pwrite", some)
    with open_growing(path, pytest.fail) as growth:
        grow(growth, record, record.steps)
    whole = (tmp_path / "run.jsonl.open").read_bytes()
    write_record(tmp_path / "whole.jsonl", record)
    assert whole == (tmp_path / "whole.jsonl").read_bytes()
    room[0] = len(whole) - 3
    other = tmp_path / "other.jsonl"
    with (
        open_growing(other, pytest.fail) as growth,
        pytest.raises(OSError, match="No space") as caught,
    ):
        grow(growth, record, record.steps)
    assert caught.value.filename == f"{other}.open"
    assert len(read_unfinished(tmp_path / "other.jsonl.open")) == len(record.steps)


def test_a_run_that_starts_over_writes_only_what_is_new(tmp_path: Path) -> None:
    record, path = make_record(), tmp_path / "run.jsonl"
    own = tmp_path / "run.jsonl.open"
    with open_growing(path, pytest.fail) as growth:
        grow(growth, record, record.steps[:5])
    own.write_bytes(own.read_bytes() + b'{"half": ')
    with open_growing(path, pytest.fail) as growth:
        grow(growth, record, record.steps)
        assert growth.num_reused == 6
    assert len(read_unfinished(own)) == 9


def test_a_run_that_is_not_what_it_was_is_noticed_and_written_anew(tmp_path: Path) -> None:
    record, path = make_record(), tmp_path / "run.jsonl"
    with open_growing(path, pytest.fail) as growth:
        grow(growth, record, record.steps)
    other, told = make_record(seed=4), list[str]()
    steps = (*record.steps[:2], *other.steps[2:])
    with open_growing(path, told.append) as growth:
        grow(growth, record, steps)
    assert len(told) == 1
    assert "line 4 is not what the run before it wrote" in told[0]
    found = read_unfinished(tmp_path / "run.jsonl.open")
    assert [line["action"] for line in found[1:]] == [step.action for step in steps]
