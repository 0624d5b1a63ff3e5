"""The table of damages of data sets: every reader loads a damaged file, or says so in one line.

The files are small and made here. Where a checksum would refuse the damaged file, the source is
given the checksum of the damaged file, so that its parser sees it. `REFUSED` lists damages by hand,
and what the error says of each.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import DamagedDataError, FedHPOError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data import SOURCES, cache
from fedhpo_gym.data.graph_sets import FILE_PARTS
from fedhpo_gym.data.graphs import git_blob
from fedhpo_gym.data.images import BATCHES
from fedhpo_gym.data.leaf import read_file
from fedhpo_gym.data.sentences import FILE as WEIGHTS
from fedhpo_gym.data.sentences import pretrained_weights
from stored_files import (
    Mutation,
    damaged_arrays,
    damaged_bytes,
    damaged_json,
    damaged_lines,
    inside_gzip,
    inside_tar,
    inside_zip,
    npz,
    tar,
    zipped,
)

SEED = 11
MUTANTS = 60
"""Per reader."""
LONGEST = 1_000
"""Characters of a message."""

Files = dict[str, bytes]


@dataclass(frozen=True)
class Case:
    """A reader, whole files for it below the data folder, and ways to damage them.

    Attributes:
        files: what it reads.
        mutations: ways to damage one of the files.
        load: reads files of this content.
        needs: modules without which it does not run.
    """

    files: Files
    mutations: tuple[Mutation, ...]
    load: Callable[[Files], object]
    needs: tuple[str, ...] = ()


def checked(source: Any) -> object:
    """Load and check as `load_dataset` does; what comes out are numbers, and labels integers."""
    dataset = source.read()
    source.check(dataset)
    assert dataset.labels.dtype == np.int64
    assert all(np.isfinite(array).all() for array in dataset.arrays)
    return dataset


def source_of(name: str, **changes: Any) -> Callable[[Files], object]:
    """Return what loads a data set whose documented numbers are those of the small files."""
    return lambda _: checked(replace(SOURCES[name], **changes))


def with_sha256(name: str, **changes: Any) -> Callable[[Files], object]:
    """The same, given the checksum of its only file."""

    def load(files: Files) -> object:
        (content,) = files.values()
        digest = hashlib.sha256(content).hexdigest()
        return checked(replace(SOURCES[name], sha256=digest, **changes))

    return load


def with_git_ids(name: str, **changes: Any) -> Callable[[Files], object]:
    """The same for files that are known by the id that git gives them."""

    def load(files: Files) -> object:
        source: Any = SOURCES[name]
        if hasattr(source, "file"):
            own = replace(source.file, git_blob=git_blob(files[source.file.path]))
            return checked(replace(source, file=own, **changes))
        many = tuple(replace(f, git_blob=git_blob(files[f.path])) for f in source.files)
        return checked(replace(source, files=many, **changes))

    return load


# ---------------------------------------------------------------------------------- made files


def leaf(x: list[Any], y: list[Any]) -> bytes:
    users = ["a", "b"]
    data = {user: {"x": x, "y": y} for user in users}
    counts = [len(y)] * len(users)
    return json.dumps({"users": users, "num_samples": counts, "user_data": data}).encode()


def jpg(colour: tuple[int, int, int]) -> bytes:
    out = io.BytesIO()
    pytest.importorskip("PIL.Image").new("RGB", (32, 32), colour).save(out, "jpeg")
    return out.getvalue()


ARFF = (
    b"@relation made\n@attribute size real\n@attribute colour {red, blue}\n"
    b"@attribute label {yes, no}\n@data\n1.5,red,no\n2,blue,yes\n3,red,no\n2,red,no\n"
)
CSV = b"size, weight, label\n1.5, 10, 4\n2, 20, 2\n3, 30, 4\n"
PIXELS = [[0.0, 0.5, 1.0, 0.25] * 196] * 2
PACKED = npz(
    x=np.zeros((4, 28, 28), np.uint8), y=np.array([0, 61, 3, 4]),
    writer=np.array(["a", "a", "b", "c"]), is_test=np.array([0, 1, 0, 1]),
)  # fmt: skip
GRAPH = npz(
    attr_data=np.ones(3, np.float32), attr_indices=np.array([0, 2, 1], np.int32),
    attr_indptr=np.array([0, 1, 2, 3], np.int32), attr_shape=np.array([3, 3]),
    adj_data=np.ones(2), adj_indices=np.array([1, 2], np.int32),
    adj_indptr=np.array([0, 1, 2, 2], np.int32), adj_shape=np.array([3, 3]),
    labels=np.array([0, 1, 1], np.int8),
)  # fmt: skip
TU = dict(
    zip(
        FILE_PARTS,
        (b"1, 2\n2, 1\n3, 4\n", b"1\n1\n2\n2\n", b"1\n-1\n", b"5\n6\n7\n5\n"),
        strict=True,
    )
)
MOLECULES = (
    b"smiles,FDA_APPROVED,CT_TOX\r\nCCO,1,0\r\nc1ccccc1,0,1\r\n[Na+].[Cl-],0,1\r\nC#N,1,0\r\n"
)
VOCABULARY = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\nbad\n##ly\nfilm\n"
SST2 = {
    "train.tsv": b"sentence\tlabel\nGood film \t1\nbadly\t0\n",
    "dev.tsv": b'label\tcontent\n1\tgood good "good film film\n',
    "test.tsv": b"index\tsentence\n0\tfilm\n",
}
COLA = {
    "in_domain_train.tsv": b"gj04\t1\t\tgood film\nbc01\t0\t*\tfilm bad film\n",
    "in_domain_dev.tsv": b"gj04\t0\t*\tbad\n",
    "out_of_domain_dev.tsv": b"m_02\t1\t\tfilm\n",
    "in_domain.tsv": b"gj04\t1\t\tgood film\nbc01\t0\t*\tfilm bad film\ngj04\t0\t*\tbad\n",
    "out_of_domain.tsv": b"m_02\t1\t\tfilm\nm_02\t0\t\tbadly\n",
}
TWEETS = {
    "training.1600000.processed.noemoticon.csv": (
        b'"4","1","Mon","NO_QUERY","zoe","happy, \xe9"\n"0","2","Mon","NO_QUERY","al","sad"\n'
    ),
    "testdata.manual.2009.06.14.csv": b'"2","3","Mon","q","al","x"\n"4","4","Mon","q","al","y"\n',
}
TWEET = ["1", "Mon", "NO_QUERY", "me", "so happy", "so happy"]
PLAY = (
    "<?xml version='1.0' encoding='UTF-8'?><play><sp><speaker long='Hamlet'>HAM.</speaker><l>"
    + "to be or not to be " * 6
    + "</l></sp><sp><speaker>GHOST.</speaker><l>Swear.</l></sp></play>"
).encode()
TEXTS = ["To be, or not to be, that is the question: whether 'tis nobler in the mind to su"] * 2
LEAF: dict[str, Any] = {
    "users": ["a", "b"],
    "num_samples": [2, 1],
    "user_data": {"a": {"x": [1.5, 2.5], "y": [0, 1]}, "b": {"x": [3.5], "y": [1]}},
}
RATINGS = b"7:\n30,5,2005-09-06\n10,3,2005-05-13\n9:\n10,1,2005-10-19\n"
CIFAR = {name: bytes([3]) + bytes(range(256)) * 12 for name in BATCHES}
SHAPES = {"embeddings.weight": (4, 3), "classifier.weight": (2, 3)}


def below(folder: str, files: Files) -> Files:
    return {f"{folder}/{name}": content for name, content in files.items()}


def jpgs() -> Files:
    train = tar({"train/cat/0.jpg": jpg((1, 2, 3)), "train/dog/1.jpg": jpg((9, 9, 9))}, "xz")
    return {
        "cifar10/cifar10_jpg_train.tar.xz": train,
        "cifar10/cifar10_jpg_test.tar.xz": tar({"test/cat/0.jpg": jpg((4, 5, 6))}, "xz"),
    }


def load_jpgs(files: Files) -> object:
    sums = {
        Path(name).name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)[::-1]
    }
    return checked(replace(SOURCES["CIFAR10"], jpg=sums, num_rows=3))


def weights() -> bytes:
    save = pytest.importorskip("safetensors.numpy").save
    return save({"bert.embeddings.weight": np.ones((4, 3), np.float32)})


def damaged_header(rng: np.random.Generator, content: bytes) -> bytes:
    """Damage the json header of a file of safetensors, and give its true length."""
    size = int.from_bytes(content[:8], "little")
    header = damaged_json(rng, content[8 : 8 + size].rstrip())
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def load_arrays(files: Files) -> object:
    (content,) = files.values()
    path = cache.data_folder() / "openml" / "task-31.npz"
    path.with_suffix(".sha256").write_text(hashlib.sha256(content).hexdigest())
    return checked(replace(SOURCES["CreditG"], num_rows=4))


def nested_xml(rng: np.random.Generator, content: bytes) -> bytes:
    place = int(rng.integers(content.find(b"<sp>"), content.rfind(b"</play>")))
    depth = 2_000
    return content[:place] + b"<l>" * depth + b"</l>" * depth + content[place:]


BYTES, LINES, JSON, ARRAYS = damaged_bytes, damaged_lines, damaged_json, damaged_arrays
TINY = {"max_len": 6, "sizes": {}}

CASES: dict[str, Callable[[], Case]] = {
    "arff": lambda: Case(
        {"credit.g.arff": ARFF}, (BYTES, LINES), with_sha256("CreditG", num_rows=4), ("arff",)
    ),
    "csv": lambda: Case(
        {"transfusion.data": CSV}, (BYTES, LINES), with_sha256("BloodTransfusion", num_rows=3)
    ),
    "openml cache": lambda: Case(
        {"openml/task-31.npz": npz(features=np.ones((4, 2)), labels=np.array([0, 1, 1, 0]))},
        (BYTES, ARRAYS),
        load_arrays,
    ),
    "femnist json": lambda: Case(
        {
            "femnist/train/a.json": leaf(PIXELS, [0, 61]),
            "femnist/test/a.json": leaf(PIXELS, [3, 4]),
        },
        (BYTES, JSON, JSON),
        source_of("FEMNIST"),
    ),
    "femnist packed": lambda: Case(
        {"leaf_femnist.npz": PACKED}, (BYTES, ARRAYS, ARRAYS), with_sha256("FEMNIST")
    ),
    "cifar binary": lambda: Case(
        {"cifar10/cifar-10-binary.tar.gz": tar(CIFAR, "gz")},
        (BYTES, inside_gzip(BYTES), inside_tar(BYTES, "gz")),
        with_sha256("CIFAR10", num_rows=6),
    ),
    "cifar jpg": lambda: Case(jpgs(), (BYTES, inside_tar(BYTES, "xz")), load_jpgs, ("PIL",)),
    "citation graph": lambda: Case(
        {"gnn_npz/cora.npz": GRAPH},
        (BYTES, ARRAYS, ARRAYS),
        with_git_ids("Cora", num_rows=3, num_features=3, num_classes=2),
    ),
    "tu": lambda: Case(
        {f"mini_graph_dc/ENZYMES/ENZYMES_{part}.txt": text for part, text in TU.items()},
        (BYTES, LINES, LINES),
        with_git_ids("ENZYMES", num_rows=2, num_classes=2),
    ),
    "molecules": lambda: Case(
        {"mini_graph_dc/clintox.csv": MOLECULES},
        (BYTES, LINES),
        with_git_ids("ClinTox"),
        ("rdkit",),
    ),
    "sst2": lambda: Case(
        below("sst2/glue", SST2), (BYTES, LINES), source_of("SST2", **TINY), ("tokenizers",)
    ),
    "cola": lambda: Case(
        below("cola/raw", COLA), (BYTES, LINES), source_of("CoLA", **TINY), ("tokenizers",)
    ),
    "cola archive": lambda: Case(
        {"archives/cola_public_1.1.zip": zipped(below("cola_public/raw", COLA))},
        (BYTES, inside_zip(BYTES), inside_zip(LINES)),
        source_of("CoLA", **TINY),
        ("tokenizers",),
    ),
    "vocabulary": lambda: Case(
        below("cola/raw", COLA) | {"bert_tiny/vocab.txt": VOCABULARY},
        (BYTES, LINES),
        source_of("CoLA", **TINY),
        ("tokenizers",),
    ),
    "twitter archive": lambda: Case(
        {"sent140/sentiment140.zip": zipped(TWEETS)},
        (BYTES, inside_zip(BYTES), inside_zip(LINES)),
        source_of("Twitter"),
    ),
    "twitter json": lambda: Case(
        {"sent140/data/x.json": leaf([TWEET, TWEET], [0, 1])},
        (BYTES, JSON, JSON),
        source_of("Twitter"),
    ),
    "twitter packed json": lambda: Case(
        {"sent140/data/x.json.gz": gzip.compress(leaf([TWEET, TWEET], [0, 1]))},
        (BYTES, inside_gzip(BYTES), inside_gzip(JSON)),
        source_of("Twitter"),
    ),
    "leaf json": lambda: Case(
        {"x.json": json.dumps(LEAF).encode()},
        (BYTES, JSON),
        lambda _: read_file(cache.data_folder() / "x.json"),
    ),
    "shakespeare json": lambda: Case(
        {"shakespeare/x.json": leaf(TEXTS, ["f", "e"])},
        (BYTES, JSON, JSON),
        source_of("Shakespeare"),
    ),
    "plays": lambda: Case(
        {"shakespeare/playshakespeare_editions/ps_hamlet.xml": PLAY},
        (BYTES, nested_xml),
        source_of("Shakespeare"),
    ),
    "archive of plays": lambda: Case(
        {"shakespeare/playshakespeare_editions.tar.xz": tar({"p/ps_hamlet.xml": PLAY}, "xz")},
        (BYTES, inside_tar(BYTES, "xz")),
        with_sha256("Shakespeare"),
    ),
    "ratings": lambda: Case(
        {"netflix/mv_1.txt": RATINGS, "netflix/mv_2.txt": RATINGS.replace(b":", b"1:")},
        (BYTES, LINES),
        source_of("FedNetflix", num_rows=None),
    ),
    "bert weights": lambda: Case(
        {WEIGHTS: weights()},
        (BYTES, damaged_header, damaged_header),
        lambda _: pretrained_weights(SHAPES),
        ("safetensors",),
    ),
}


def tu(part: str, text: bytes) -> Files:
    return {f"mini_graph_dc/ENZYMES/ENZYMES_{part}.txt": text}


def pixels(pixel: Any = 0.5, label: Any = 1, count: int = 784) -> Files:
    """FEMNIST with one writer, one of whose cells is something else."""
    image = [0.5] * (count - 1) + [0.25]
    text = leaf([image, image], [1, label]).decode().replace("0.25", json.dumps(pixel))
    return {"femnist/train/a.json": text.encode()}


def tweets(sample: list[str], label: int) -> Files:
    return {"sent140/data/x.json": leaf([sample], [label])}


def of_leaf(**changes: Any) -> Files:
    return {"x.json": json.dumps(LEAF | changes).encode()}


def of_two(b: Any) -> Files:
    return of_leaf(user_data={**LEAF["user_data"], "b": b})


def of_cifar(changed: bytes | None) -> Files:
    rows = {name: content for name, content in CIFAR.items() if name != "data_batch_3.bin"}
    whole = rows if changed is None else rows | {"data_batch_3.bin": changed}
    return {"cifar10/cifar-10-binary.tar.gz": tar(whole, "gz")}


REFUSED: list[tuple[str, Mapping[str, bytes | None], str]] = [
    ("arff", {"credit.g.arff": ARFF + b"3,red,no\n"}, "4 rows.*download CreditG"),
    ("csv", {"transfusion.data": CSV[:-1] + b",1\n"}, "download BloodTransfusion"),
    ("citation graph", {"gnn_npz/cora.npz": npz(labels=np.zeros(3))}, "download Cora"),
    ("tu", tu("node_labels", b"5\n6\n"), "4 nodes have a graph but 2 have a label.*ENZYMES"),
    ("tu", tu("graph_indicator", b"1\n2\n1\n2\n"), "in order in the 2 graphs.*ENZYMES"),
    ("tu", tu("graph_indicator", b"1\n1\n2\n3\n"), "in order in the 2 graphs.*ENZYMES"),
    *(
        ("tu", tu("A", line), "join two of the 4 nodes.*ENZYMES")
        for line in (b"1, 6\n", b"0, 2\n", b"1\n", b"")
    ),
    ("tu", tu("A", b"# 1\n" + TU["A"]), "is damaged.*ENZYMES"),
    *(
        ("femnist json", pixels(pixel), "femnist|FEMNIST")
        for pixel in (float("nan"), None, "0.5", 1.1, -0.1)
    ),
    *(
        ("femnist json", pixels(label=label), "femnist|FEMNIST")
        for label in (1.9, "true", "NaN", 62, 10**20)
    ),
    ("femnist json", pixels(count=783), r"writer a.*784 pixels in \[0, 1\]"),
    ("femnist packed", {"leaf_femnist.npz": gzip.compress(b"x")}, "download FEMNIST"),
    ("cifar binary", of_cifar(None), r"data_batch_3\.bin.*download CIFAR10"),
    ("cifar binary", of_cifar(CIFAR["data_batch_3.bin"][:-1]), r"data_batch_3\.bin.*CIFAR10"),
    ("sst2", {"sst2/glue/dev.tsv": b"label\ttext\n1\tgood\n"}, "column `sentence`.*SST2"),
    ("sst2", {"sst2/glue/dev.tsv": None}, r"dev\.tsv is missing.*download SST2"),
    ("cola", {"cola/raw/in_domain_dev.tsv": b"gj04\t1\tgood\n"}, "four columns.*CoLA"),
    ("cola", {"cola/raw/in_domain_dev.tsv": b"gj04\t2\t\tgood\n"}, "0 or 1.*CoLA"),
    ("twitter json", tweets(["only", "three", "cells"], 1), "tweet of a"),
    ("twitter json", tweets(TWEET, 4), "tweet of a"),
    *(
        ("shakespeare json", {"shakespeare/x.json": leaf([x], [y])}, "80 characters.*preprocess")
        for x, y in (("x" * 79, "x"), ("x" * 80, "xy"), ("x" * 80, ""))
    ),
    *(
        ("ratings", {"netflix/mv_1.txt": line}, r"mv_1\.txt.*line \d: must be.*download FedNetflix")
        for line in (
            b"10,3,2005-05-13\n",
            b"7:\n10,6,2005-05-13\n",
            b"7:\n10,3\n",
            b"x:\n",
            b"7:\n10,0,x\n",
        )
    ),
    *(
        ("leaf json", {"x.json": text}, r"x\.json is damaged.*preprocess\.sh")
        for text in (b"", json.dumps({k: LEAF[k] for k in ("users", "num_samples")}).encode())
    ),
    ("leaf json", of_leaf(hierarchies=["g"]), r"x\.json is damaged.*preprocess"),
    ("leaf json", of_leaf(num_samples=[2, 2]), "`num_samples` must count"),
    ("leaf json", of_leaf(num_samples=[3]), "`num_samples` must count"),
    ("leaf json", of_leaf(num_samples=[2, 1.0]), "an integer of 64 bits is needed, got 1.0"),
    ("leaf json", of_leaf(users=["a"], num_samples=[2]), "`users` must name everybody"),
    ("leaf json", of_leaf(users=["a", "a"], num_samples=[2, 2]), "`users` must name everybody"),
    ("leaf json", of_leaf(users=["a", "c"]), "x.json is damaged"),
    ("leaf json", of_leaf(users="ab"), "a list is needed, got str"),
    ("leaf json", of_two({"x": "t", "y": [1]}), "a list is needed"),
    ("leaf json", of_two({"x": [1, 2], "y": [1]}), "x.json is damaged"),
    ("leaf json", of_two({"x": [[float("nan")]], "y": [1]}), "NaN is no"),
]


@pytest.fixture(autouse=True)
def _vocabulary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sentences take the vocabulary in the data folder, else a whole one, whatever its checksum."""
    whole = tmp_path / "vocab.txt"
    whole.write_bytes(VOCABULARY)

    monkeypatch.setattr(
        "fedhpo_gym.data.sentences.vocabulary_file",
        lambda _: cache.find_data("bert_tiny/vocab.txt") or whole,
    )


def placed(folder: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    monkeypatch.setenv(cache.ENV_VAR, str(folder))


def made(name: str) -> Case:
    case = CASES[name]()
    for module in case.needs:
        pytest.importorskip(module)
    return case


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_file_loads_or_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = made(name)
    placed(tmp_path / "whole", case.files, monkeypatch)
    assert case.load(case.files) is not None, "the whole files can be read"
    refused, undocumented = 0, []
    names = list(case.files) if name != "vocabulary" else ["bert_tiny/vocab.txt"]
    for mutant in range(MUTANTS):
        rng = stream(SEED, f"mutation of {name}", mutant)
        file = names[rng.integers(len(names))]
        mutation = case.mutations[rng.integers(len(case.mutations))]
        files = case.files | {file: mutation(rng, case.files[file])}
        placed(tmp_path / str(mutant), files, monkeypatch)
        try:
            case.load(files)
        except FedHPOError as error:
            refused += 1
            if "\n" in str(error) or len(str(error)) > LONGEST:
                undocumented.append(f"{mutant}: no line to print: {error}"[:300])
        except BaseException as error:  # noqa: BLE001 - collected, whatever it is
            undocumented.append(f"{mutant}: {mutation}: {type(error).__name__}: {error}"[:300])
    assert undocumented == []
    assert refused > MUTANTS / 5, "the damage is real"


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_a_damage_is_refused_by_its_name(
    name: str,
    changes: Mapping[str, bytes | None],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = made(name)
    files = {k: v for k, v in {**case.files, **changes}.items() if v is not None}
    placed(tmp_path, files, monkeypatch)
    with pytest.raises(DamagedDataError, match=words):
        case.load(files)
