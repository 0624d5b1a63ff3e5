"""Small files that stand for large ones are refused before anything large is made of them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhpo_gym.core.archive import MODEL_GROWTH, checked_card, read_npz, write_archive
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, TooLargeError
from fedhpo_gym.core.files import (
    DEFAULT_MAX_BYTES,
    MAX_BYTES_VARIABLE,
    load_json,
    load_toml,
    max_bytes,
    read_unpacked,
)
from fedhpo_gym.data.frames import read_frame
from fedhpo_gym.data.leaf import read_file
from fedhpo_gym.data.natural import encode_words
from fedhpo_gym.data.sentences import read_tsv
from fedhpo_gym.data.twitter import read_tweet_archive
from fedhpo_gym.stored.surrogate_models import Forest
from fedhpo_gym.stored.table import Table
from stored_files import arrays_of, write_made_up_table

LIMIT = 200_000
ADVICE = (
    "200,000 may be read; if it is genuine, set the environment variable "
    rf"`{MAX_BYTES_VARIABLE}` to \d"
)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAX_BYTES_VARIABLE, str(LIMIT))


def packed(arrays: dict[str, NDArray[Any]], method: int = zipfile.ZIP_LZMA) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=False)
            archive.writestr(f"{name}.npy", content.getvalue())
    return buffer.getvalue()


def test_the_limit_is_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MAX_BYTES_VARIABLE, raising=False)
    assert max_bytes() == DEFAULT_MAX_BYTES
    monkeypatch.setenv(MAX_BYTES_VARIABLE, " 1000 ")
    assert max_bytes() == 1000


@pytest.mark.parametrize("value", ["0", "-1", "1e9", "many", "9" * 5000, "٣"])
def test_a_wrong_variable_is_no_damage(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = write_made_up_table(tmp_path)
    table = Table(card)
    monkeypatch.setenv(MAX_BYTES_VARIABLE, value)
    for read in (lambda: Table(card), lambda: table.codes("best_round")):
        with pytest.raises(InvalidArgumentError, match=f"`{MAX_BYTES_VARIABLE}` must be") as caught:
            read()
        assert not isinstance(caught.value, DamagedDataError)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_arrays_come_back_as_numpy_reads_them(method: int, order: Any) -> None:
    arrays = {
        "x": np.arange(60_000, dtype=np.float32).reshape(200, 300, order=order),
        "none": np.zeros((0, 3), ">i2"),
        "one": np.array(True),
        "word": np.array("a word"),
    }
    content = packed(arrays, method)
    found = read_npz(io.BytesIO(content), "this")
    with np.load(io.BytesIO(content), allow_pickle=False) as expected:
        assert list(found) == expected.files
        for name, array in found.items():
            assert array.dtype == expected[name].dtype
            assert array.flags.writeable
            np.testing.assert_array_equal(array, expected[name])


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_small_file_of_many_zeros_is_not_unpacked(method: int, tmp_path: Path) -> None:
    content = packed({"x": np.zeros(500_000)}, method)
    assert len(content) < LIMIT
    tracemalloc.start()
    with pytest.raises(TooLargeError, match=f"this would take 4,000,128 bytes, and {ADVICE}"):
        read_npz(io.BytesIO(content), "this")
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    card = write_archive(tmp_path, "stem", {"format": 1}, {"x": np.zeros(500_000)})
    with (
        checked_card(card, "pair", 1, "repair") as (said, arrays),
        pytest.raises(TooLargeError, match=ADVICE),
    ):
        arrays.read(said["sha256"], "repair")


@pytest.mark.usefixtures("limit")
def test_a_model_may_take_a_sixteenth(tmp_path: Path) -> None:
    card = write_archive(tmp_path, "stem", {"format": 1}, {"x": np.zeros(5_000)})
    with checked_card(card, "pair", 1, "repair") as (said, arrays):
        assert "x" in arrays.read(said["sha256"], "repair")
    with (
        checked_card(card, "pair", 1, "repair") as (said, arrays),
        pytest.raises(TooLargeError, match=f"642,048 bytes, and {ADVICE}"),
    ):
        arrays.read(said["sha256"], "repair", growth=MODEL_GROWTH)


def declared(content: bytes, size: int) -> bytes:
    """Return an npz file whose zip headers state another size of its only array."""
    real = struct.pack("<I", 128 + 8 * 500_000)
    assert content.count(real) == 2
    return content.replace(real, struct.pack("<I", size))


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("size", [0, 100, 128, 168, 190_000])
def test_a_size_that_is_a_lie_is_damage(method: int, size: int) -> None:
    content = declared(packed({"x": np.zeros(500_000)}, method), size)
    with pytest.raises(ValueError, match=r"x\.npy|EOF|expected") as caught:
        read_npz(io.BytesIO(content), "this")
    assert not isinstance(caught.value, TooLargeError)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (10**9,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -5), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (5,), }",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (5,), }",
        "(" * 5000,
        "",
    ],
)
def test_a_header_that_declares_something_else_is_damage(header: str) -> None:
    text = header.encode().ljust(118 if len(header) < 118 else len(header))
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(40)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x.npy", member)
    with pytest.raises(ValueError, match=r"."):
        read_npz(buffer, "this")


def test_arrays_the_card_does_not_call_for_are_not_unpacked(tmp_path: Path) -> None:
    card = write_made_up_table(tmp_path / "packed")
    content = json.loads(card.read_text())
    with np.load(arrays_of(card)) as stored:
        arrays = dict(stored)
    for changed, reason in (
        ({**arrays, "more": np.zeros(100_000)}, "it must hold the arrays"),
        (
            {**arrays, "words": np.zeros((*arrays["words"].shape, 1000), np.uint16)},
            r"'words' has shape \(.*, 1000\), expected",
        ),
        ({**arrays, "best_round": arrays["best_round"] / 3.0}, "must hold codes, got float64"),
    ):
        again = write_archive(tmp_path, card.name.removesuffix(".json"), content, changed)
        with pytest.raises(DamagedDataError, match=rf"{reason}.*fedhpo-gym build"):
            Table(again).codes("best_round")


@pytest.mark.usefixtures("limit")
def test_a_card_is_bounded(tmp_path: Path) -> None:
    card = write_made_up_table(tmp_path)
    for text, reason in (
        (b" " * (LIMIT + 1), ADVICE),
        (b"[" + b"[]," * 2_000 + b"[]]", f"decoded, would take .* bytes, and {ADVICE}"),
    ):
        card.write_bytes(text)
        with pytest.raises(TooLargeError, match=reason):
            Table(card)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b"\xff"])
def test_json_that_cannot_be_read_is_damage(text: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"."):
        load_json(text, "this")
    card = write_made_up_table(tmp_path)
    card.write_bytes(text)
    with pytest.raises(DamagedDataError, match="is not a table card"):
        Table(card)
    leaf = tmp_path / "x.json"
    leaf.write_bytes(text)
    with pytest.raises(DamagedDataError, match=r"is damaged .*LEAF's preprocess"):
        read_file(leaf)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_a_leaf_file_is_measured_before_it_is_held(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    text = b" " * 20_000_000 + b"{}"
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    tracemalloc.start()
    with pytest.raises(TooLargeError, match=r"200,000.* may be read; if it is genuine"):
        read_file(path)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


@pytest.mark.usefixtures("limit")
def test_the_values_of_a_leaf_file_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"x": [[]] * 20_000}))
    assert path.stat().st_size < LIMIT
    with pytest.raises(TooLargeError, match="decoded"):
        read_file(path)


def test_a_cut_leaf_archive_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    whole = gzip.compress(json.dumps(list(range(9_999))).encode())
    for content in (whole[:-20], whole[:50] + b"\xff" * 50 + whole[100:]):
        path.write_bytes(content)
        with pytest.raises(DamagedDataError, match=r"is damaged .*LEAF's preprocess"):
            read_file(path)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_a_packed_file_stands_for_so_many_times_its_bytes(
    suffix: str, pack: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    genuine, path = rng.bytes(400_000), tmp_path / f"x.csv{suffix}"
    path.write_bytes(pack(genuine))
    assert read_unpacked(path) == genuine, "large, and in proportion"
    path.write_bytes(pack(b"1,2\n" * 5_000_000))
    tracemalloc.start()
    with pytest.raises(
        TooLargeError, match=rf"x.csv{suffix} of .* bytes would take .*`{MAX_BYTES_VARIABLE}`"
    ):
        read_unpacked(path)
    assert tracemalloc.get_traced_memory()[1] < 15_000_000  # of which 8 are what xz looks back
    tracemalloc.stop()


@pytest.mark.usefixtures("limit")
def test_missing_cells_of_a_table_are_counted_before_they_are_made(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    path = tmp_path / "x.csv"
    path.write_text(",".join(f"c{i}" for i in range(2_000)) + "\n" + "1\n" * 50_000)
    with pytest.raises(TooLargeError, match="would take 800,016,000 bytes"):
        read_frame(path)
    path.write_text(",".join(f"c{i}" for i in range(5_000)) + "\n")
    with pytest.raises(DamagedDataError, match="must have at most 4,000 columns, got 5,000"):
        read_frame(path)


@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * 200_000) + " = 1",
        ".".join(['"a"'] * 20) + " = 1",
        "[" + ". ".join("a" * 20) + "]",
        "x = {" + ".".join("a" * 20) + " = 1}",
        's = """ \' """"\n' + ".".join("a" * 20) + ' = 1 # "',
        "x = " + "[" * 100_000,
        "x = '" + "a" * (1 << 19) + "'",
        "x = \udcff",
    ],
)
def test_the_time_that_toml_takes_is_bounded(text: str) -> None:
    begin = time.perf_counter()
    with pytest.raises(ValueError, match=r"at most (9 parts|524,288)|too deeply|utf-8"):
        load_toml(text.encode("utf-8", "surrogateescape"))
    assert time.perf_counter() - begin < 2.0


def test_what_looks_like_a_long_key_in_a_text_of_toml_is_none() -> None:
    url = "https://" + ".".join("a" * 20)
    lines = (
        f'a = "{url}" # {url}',
        f"b = '''\n{url}\n'''",
        f"c = [{', '.join(['0.5'] * 20)}]",
        "d.e.f = 1",
    )
    assert load_toml("\n".join(lines).encode())["b"] == f"{url}\n"


def ladder(depth: int, same: bool) -> dict[str, NDArray[Any]]:
    """Return a forest of one way down; with `same`, both sides of every node lead to one node."""
    nodes = np.arange(2 * depth + 1)
    inner = nodes % 2 == 0
    inner[-1] = False
    children = np.stack([nodes, nodes], axis=1)
    children[inner] = nodes[inner, None] + ([2, 2] if same else [1, 2])
    return {
        "roots": np.array([0]),
        "feature": np.zeros(len(nodes), np.int16),
        "threshold": np.zeros(len(nodes), np.float32),
        "children": children,
        "leaf": np.where(inner, -1, 0),
        "values": np.ones((1, 1), np.float32),
    }


def test_a_forest_is_checked_in_time_that_grows_with_its_nodes() -> None:
    start = time.process_time()
    assert Forest(ladder(5_000, same=False)).predict(np.zeros((1, 1), np.float32)) == 1.0
    for depth in (60, 5_000):
        with pytest.raises(InvalidArgumentError, match=r"must form trees.*two ways"):
            Forest(ladder(depth, same=True))
    assert time.process_time() - start < 5.0


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("children", [[0, 2], [1, 1], [2, 2]], "two ways"),
        ("children", [[1, 2], [1, 1], [1, 2]], "own child"),
        ("children", [[1, 3], [1, 1], [2, 2]], "fit together"),
        ("roots", [0, 0], "two ways"),
        ("roots", [0.0], "integers"),
        ("roots", [-1], "fit together"),
        ("feature", [-1, 0, 0], "fit together"),
        ("values", [1.0], "fit together"),
        ("leaf", [-1, 0, 2], "fit together"),
        ("leaf", None, "leaf"),
        ("threshold", [0.0, 0.0], "fit together"),
    ],
)
def test_what_is_no_forest_is_refused(name: str, value: Any, reason: str) -> None:
    arrays = ladder(1, same=False) | {name: np.array(value)}
    if value is None:
        del arrays[name]
    with pytest.raises(InvalidArgumentError, match=reason):
        Forest(arrays)


@pytest.mark.usefixtures("limit")
def test_members_of_a_zip_file_are_counted_before_they_are_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("training.1600000.processed.noemoticon.csv", b" " * 2_000_000)
    for read in (
        lambda: next(read_tweet_archive([tmp_path / "x.zip"])),
        lambda: read_tsv(zipfile.Path(tmp_path / "x.zip"), "train.tsv", "again"),
    ):
        with pytest.raises(TooLargeError, match=r"x.zip of .* would take 2,000,000 bytes"):
            read()


def test_one_long_cell_takes_no_memory_in_each_row() -> None:
    pandas = pytest.importorskip("pandas")
    column = pandas.Series(["b", "a"] * 300 + ["x" * 100_000] * 2)
    tracemalloc.start()
    columns = [*encode_words(column, rare=2)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [one.sum() for one in columns] == [300, 300, 2]
    assert peak < 2_000_000, "602 cells as wide as the longest take 240 MB"
