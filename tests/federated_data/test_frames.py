"""Files of others become data frames: what they stand for is counted, and nothing ends Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, TooLargeError
from fedhpo_gym.core.files import MAX_BYTES_VARIABLE as MAX_BYTES
from fedhpo_gym.data.frames import read_frame

pandas = pytest.importorskip("pandas")


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Return what writes a table as Hugging Face's `save_to_disk` does."""
    pyarrow = pytest.importorskip("pyarrow")

    def write(columns: dict[str, Any], compression: str | None = None) -> Path:
        folder, table = tmp_path / "saved", pyarrow.table(columns)
        folder.mkdir()
        options = pyarrow.ipc.IpcWriteOptions(compression=compression)
        with pyarrow.ipc.new_stream(folder / "d.arrow", table.schema, options=options) as stream:
            stream.write_table(table)
        (folder / "state.json").write_text('{"_data_files": [{"filename": "d.arrow"}]}')
        return folder

    return write


def test_arrow_data_are_validated_before_they_are_used(saved: Callable[..., Path]) -> None:
    """Offsets beyond their text end the process that reads them."""
    path = saved({"word": ["abc"] * 100, "label": [0, 1] * 50}) / "d.arrow"
    content = path.read_bytes()
    offsets = np.arange(0, 12, 3, dtype=np.int32)
    assert offsets.tobytes() in content
    wrong = np.array([0, 1 << 30, 6, 9], dtype=np.int32)
    path.write_bytes(content.replace(offsets.tobytes(), wrong.tobytes()))
    with pytest.raises(DamagedDataError, match=r"ArrowInvalid: .*[oO]ffset") as caught:
        read_frame(path.parent)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["saved", "x.parquet"])
def test_what_arrow_and_parquet_stand_for_is_counted(
    name: str, saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MAX_BYTES, "800000")
    zeros = np.zeros(2_000_000, np.int64)
    folder = saved({"x": zeros}, "zstd")
    pandas.DataFrame({"x": zeros}).to_parquet(folder.with_name("x.parquet"))
    with pytest.raises(TooLargeError, match=rf"of .* bytes would take .*`{MAX_BYTES}` to"):
        read_frame(folder.with_name(name))


def test_labels_that_are_lists_are_refused(tmp_path: Path) -> None:
    user = {"x": [[1.0], [2.0]], "y": [[1, 2], [3]]}
    content = {"users": ["a"], "num_samples": [2], "user_data": {"a": user}}
    (tmp_path / "x.json").write_text(json.dumps(content), encoding="utf-8")
    for data in (tmp_path / "x.json", ([[1], [2]], [{}, 1]), ([[1], [2]], [0, 1], [["a"], "b"])):
        with pytest.raises(InvalidArgumentError, match=r"must have one (label|client) for each"):
            read_frame(data)
    with pytest.raises(InvalidArgumentError, match=r"must be \(n, d\) numbers"):
        read_frame(([[1], [2, 3]], [0, 1]))


def test_integers_too_large_for_numbers_are_refused(tmp_path: Path) -> None:
    user = {"x": [[1], [10**400]], "y": [0, 1]}
    content = {"users": ["a"], "num_samples": [2], "user_data": {"a": user}}
    (tmp_path / "x.json").write_text(json.dumps(content), encoding="utf-8")
    for data in (tmp_path / "x.json", pandas.DataFrame(user)):
        with pytest.raises(InvalidArgumentError, match=r"must have (a list|lists) of numbers"):
            read_frame(data)
    with pytest.raises(InvalidArgumentError, match=r"can read in 'x', got object \(Exceeds the"):
        read_frame(pandas.DataFrame({"x": [1, 10**5000]}))


def test_durations_of_any_length_are_days(saved: Callable[..., Path]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    long = pyarrow.array([2**62, None], pyarrow.duration("s"))
    days = pandas.Series([2**62 / 86_400, None], name="x")
    arrow = pandas.Series(pandas.arrays.ArrowExtensionArray(long), name="x")
    for data in (long.to_pandas().to_frame("x"), arrow.to_frame(), saved({"x": long})):
        pandas.testing.assert_series_equal(read_frame(data)["x"], days, check_exact=True)


def test_columns_of_arrow_types_are_read_or_refused_in_one_line() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    words, dates = (
        pandas.DataFrame({"x": pandas.arrays.ArrowExtensionArray(pyarrow.array(cells, kind))})
        for cells, kind in ((["a", None], pyarrow.string_view()), ([2**30], pyarrow.date32()))
    )
    assert read_frame(words)["x"].tolist()[0] == "a"
    with pytest.raises(InvalidArgumentError, match=r"pandas can read in 'x', got date32"):
        read_frame(dates)


def test_rows_that_a_file_of_indices_chooses_are_refused(saved: Callable[..., Path]) -> None:
    path = saved({"x": [1, 2], "label": [0, 1]}) / "state.json"
    state = {**json.loads(path.read_text()), "_indices_data_files": [{"filename": "i.arrow"}]}
    path.write_text(json.dumps(state))
    with pytest.raises(DamagedDataError, match=r"state.json must .*call `flatten_indices\(\)`"):
        read_frame(path.parent)
