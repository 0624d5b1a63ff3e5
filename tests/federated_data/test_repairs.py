"""Bad downloads and half-written folders: what is refused, and that the named repair works."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhpo_gym.cli import BAD, main
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.data import SOURCES, load_dataset
from fedhpo_gym.data.leaf import (
    LeafData,
    UserSamples,
    find_files,
    read_file,
    read_files,
    write_files,
)
from fedhpo_gym.data.sentences import COLA, SST2, VOCABULARY_SIZE
from fedhpo_gym.data.sentences import FILE as WEIGHTS
from stored_files import zipped

Capture = pytest.CaptureFixture[str]
PAGE = b"<html>please log in to this network</html>"

# ---------------------------------------------------------------------- files without a checksum


TWEETS = ("training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv")
COLA_FILES = ("in_domain_train.tsv", "in_domain_dev.tsv", "out_of_domain_dev.tsv")


def tweets(**more: bytes) -> bytes:
    row = b'"4","1","Mon","NO_QUERY","zoe","happy"\n'
    return zipped(dict.fromkeys(TWEETS, row) | more)


def sentences(**more: bytes) -> bytes:
    row = b"gj04\t1\t\tgood film\nbc01\t0\t*\tfilm film\n"
    return zipped({f"cola_public/raw/{name}": row for name in COLA_FILES} | more)


def weights() -> bytes:
    save = pytest.importorskip("safetensors.numpy").save
    words: NDArray[np.float16] = np.zeros((VOCABULARY_SIZE, 128), np.float16)
    return save({"embeddings.word_embeddings.weight": words})  # type: ignore[no-any-return]


UNSUMMED: dict[str, tuple[str, Callable[..., bytes]]] = {
    "Twitter": ("sent140/sentiment140.zip", tweets),
    "CoLA": (f"archives/{COLA.url.rpartition('/')[2]}", sentences),
    "BERT-Tiny": (WEIGHTS, weights),
}


@pytest.fixture(params=UNSUMMED)
def unsummed(
    request: pytest.FixtureRequest, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path, bytes]:
    """What has no checksum: its name, where it is kept, its content."""
    file, make = UNSUMMED[request.param]
    if request.param == "CoLA":
        pytest.importorskip("tokenizers")
        vocabulary = data_folder / "vocab.txt"
        vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\nfilm\n")
        monkeypatch.setattr("fedhpo_gym.data.sentences.vocabulary_file", lambda _: vocabulary)
        small = {**SOURCES, "CoLA": replace(COLA, sizes={})}
        monkeypatch.setattr("fedhpo_gym.data.catalogue.SOURCES", small)
    return request.param, data_folder / file, make()


def do_what_it_says(message: str) -> int:
    """Delete the file or folder that an error says, and run the command it prints."""
    named = re.search(r"(/\S+) (?:is damaged|has sha256).*delete it and run", message)
    named = named or re.search(r"delete (/\S+) and run", message)
    assert named is not None, message
    if Path(named[1]).is_dir():
        shutil.rmtree(named[1])
    else:
        Path(named[1]).unlink(missing_ok=True)
    (command,) = re.findall(r"run `fedhpo-gym ([^`]*)`", message)
    load_dataset.cache_clear()
    return main(command.split())


Unsummed = tuple[str, Path, bytes]


def test_a_bad_first_download_is_neither_kept_nor_trusted(
    unsummed: Unsummed, publisher: Any, capsys: Capture
) -> None:
    name, path, content = unsummed
    publisher.content = PAGE
    assert main(["download", name]) == BAD
    message = capsys.readouterr().err
    assert not list(path.parent.glob(f"{path.name}*"))
    publisher.content = content
    assert do_what_it_says(message) == 0
    assert path.read_bytes() == content
    assert path.with_name(f"{path.name}.sha256").exists()
    assert len(publisher.asked) == 2


def test_a_changed_file_is_repaired_as_the_error_says(
    unsummed: Unsummed, publisher: Any, capsys: Capture
) -> None:
    name, path, content = unsummed
    publisher.content = content
    assert main(["download", name]) == 0
    load_dataset.cache_clear()
    path.write_bytes(content[:-1] + b"?")
    assert main(["download", name]) == BAD
    # Even when the publisher has another, whole file by now.
    if name != "BERT-Tiny":
        publisher.content = UNSUMMED[name][1](README=b"another version")
    assert do_what_it_says(capsys.readouterr().err) == 0
    assert path.read_bytes() == publisher.content


def test_a_bad_file_that_the_user_put_there_is_refused_and_left(
    unsummed: Unsummed, publisher: Any, capsys: Capture
) -> None:
    name, path, content = unsummed
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PAGE)
    publisher.content = content
    assert main(["download", name]) == BAD
    assert path.read_bytes() == PAGE
    assert not path.with_name(f"{path.name}.sha256").exists()
    assert do_what_it_says(capsys.readouterr().err) == 0


def test_a_checksum_of_a_former_version_does_not_outlive_its_file(
    unsummed: Unsummed, publisher: Any
) -> None:
    name, path, content = unsummed
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}.sha256").write_text("0" * 64)
    publisher.content = content
    assert main(["download", name]) == 0


@pytest.mark.parametrize("damage", ["missing", "cut", "no text"])
@pytest.mark.parametrize("place", ["folder", "archive"])
def test_sentences_are_repaired_as_the_error_says(
    damage: str,
    place: str,
    data_folder: Path,
    publisher: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    pytest.importorskip("tokenizers")
    vocabulary = data_folder / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\nfilm\n")
    monkeypatch.setattr("fedhpo_gym.data.sentences.vocabulary_file", lambda _: vocabulary)
    names = COLA_FILES
    source = replace(COLA, sizes=dict.fromkeys(names, 2))
    monkeypatch.setattr("fedhpo_gym.data.catalogue.SOURCES", {"CoLA": source})
    row = b"gj04\t1\t\tgood film\n"
    files = dict.fromkeys(names, row * 2)
    whole = zipped({f"cola_public/raw/{name}": text for name, text in files.items()})
    files[names[1]] = {"missing": b"", "cut": row, "no text": b"\xff" * 50}[damage]
    if damage == "missing":
        del files[names[1]]
    if place == "folder":
        (data_folder / "cola" / "raw").mkdir(parents=True)
        for name, text in files.items():
            (data_folder / "cola" / "raw" / name).write_bytes(text)
    else:
        (data_folder / "archives").mkdir()
        archive = zipped({f"cola_public/raw/{name}": text for name, text in files.items()})
        (data_folder / "archives" / "cola_public_1.1.zip").write_bytes(archive)
    publisher.content = whole
    assert main(["download", "CoLA"]) == BAD
    assert do_what_it_says(capsys.readouterr().err) == 0


# ------------------------------------------------------------------------------- silent losses


@pytest.mark.parametrize("source", [COLA, SST2])
def test_a_file_of_sentences_that_was_cut_is_refused(
    source: Any, shared_datasets: Path, data_folder: Path
) -> None:
    pytest.importorskip("tokenizers")
    for folder in (source.folder, "bert_tiny"):
        shutil.copytree(shared_datasets / folder, data_folder / folder)
    name = "in_domain_train.tsv" if source is COLA else "test.tsv"
    path = data_folder / source.folder / name
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))
    wanted, left = source.sizes[name], len(lines) // 2 - (source is SST2)
    with pytest.raises(DamagedDataError, match=f"{name} must have {wanted} samples, got {left}"):
        load_dataset(source.name)


def test_infinity_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="finite"):
        write_files(tmp_path, "x", LeafData({"a": UserSamples((float("inf"),), (1,))}))


def test_leafs_wrong_counts_of_shakespeare_are_known(tmp_path: Path) -> None:
    path, texts = tmp_path / "x.json", ["x" * 80] * 3
    data = {"a": {"x": texts, "y": ["y"] * 3}, "b": {"x": [], "y": []}}
    content = {"users": ["a", "b"], "num_samples": [82, 40], "user_data": data}
    path.write_text(json.dumps(content))
    assert read_file(path).num_samples == 3
    for counts in ([81, 40], [82, 80], [3, 40]):
        path.write_text(json.dumps(content | {"num_samples": counts}))
        with pytest.raises(DamagedDataError, match="num_samples"):
            read_file(path)


# ----------------------------------------------------------------- preprocessing that was cut off


def raw(folder: Path, users: int = 250) -> Path:
    samples = UserSamples(tuple([float(i)] for i in range(20)), tuple(range(20)))
    write_files(folder, "x", LeafData({f"u{i}": samples for i in range(users)}))
    return folder


def preprocessed(tmp_path: Path) -> Path:
    out = tmp_path / "out"
    words = ["leaf-preprocess", str(raw(tmp_path / "in")), "--out", str(out), "-t", "sample"]
    assert main(words) == 0
    assert len(list((out / "train").iterdir())) == 3
    return out


def load(folder: Path) -> LeafData:
    return read_files(find_files(folder))


def test_a_whole_folder_is_read_wherever_it_is_copied_to(tmp_path: Path) -> None:
    out = preprocessed(tmp_path)
    assert load(out).num_samples == 250 * 20
    shutil.copytree(out, tmp_path / "copy" / "data")
    assert load(tmp_path / "copy").num_samples == 250 * 20
    assert load(out / "test").num_samples == 250 * 2


@pytest.mark.parametrize("fault", ["manifest", "file", "another file", "content", "whole part"])
def test_a_part_of_a_folder_is_refused(fault: str, tmp_path: Path) -> None:
    out = preprocessed(tmp_path)
    file = out / "train" / "all_data_1.json"
    if fault == "manifest":
        (out / "meta" / "manifest.json").unlink()
    elif fault == "file":
        file.unlink()
    elif fault == "another file":
        shutil.copy(file, file.with_name("all_data_9.json"))
    elif fault == "content":
        shutil.copy(out / "train" / "all_data_0.json", file)
    else:
        shutil.move(out / "train", tmp_path / "elsewhere")
        out = tmp_path / "elsewhere"
    with pytest.raises(DamagedDataError, match="fedhpo-gym leaf-preprocess"):
        load(out)


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    out = preprocessed(tmp_path)
    for text in ("", "[]", '{"files": 3}', '{"files": {"train/all_data_0.json": {"sha256": 3}}}'):
        (out / "meta" / "manifest.json").write_text(text)
        with pytest.raises(DamagedDataError, match=r"manifest\.json is damaged"):
            load(out)


@pytest.mark.slow
def test_a_killed_preprocessing_leaves_nothing_that_loads(tmp_path: Path) -> None:
    """Killed outright while it writes its files, once after each number of them."""
    folder = raw(tmp_path / "in", users=600)
    code = "import sys; from fedhpo_gym.cli import main; sys.exit(main(sys.argv[1:]))"
    for count in (1, 6, 11):
        out = tmp_path / f"out{count}"
        words = ["leaf-preprocess", str(folder), "--out", str(out), "-t", "sample"]
        process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL)
        while len(list(tmp_path.glob(f".out{count}*/t*/*.json"))) < count:
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not out.exists()
        (left,) = tmp_path.glob(f".out{count}*")
        if not (left / "meta" / "manifest.json").exists() and find_files(left):
            with pytest.raises(DamagedDataError, match="it was interrupted"):
                load(left)
        assert main(words) == 0, "the same command starts over"
        assert load(out).num_samples == 600 * 20
