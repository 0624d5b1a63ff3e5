"""Texts: sparse bags of words and tokens, on made-up files and on the real ones."""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.data import SparseRows, load_dataset, make_dataset
from fedhpo_gym.data.leaf import LeafData, UserSamples, write_files
from fedhpo_gym.data.sentences import COLA, SST2, remaining_rows
from fedhpo_gym.data.twitter import TWITTER, bags_of_words, make_vocabulary, split_words
from fedhpo_gym.testing import DatasetConformance
from stored_files import zipped

TEXTS = ("To be, or not to be", "that is THE query", "", "don't you   see? You don't")

# ------------------------------------------------------------------------------ bags of words


def test_words_are_lower_case_and_keep_inner_apostrophes() -> None:
    assert split_words("Don't panic, it's 'fine'!") == ["don't", "panic", "it's", "fine"]


def test_the_vocabulary_is_ranked() -> None:
    assert make_vocabulary(TEXTS, 5) == ("be", "don't", "to", "you", "is")
    assert len(make_vocabulary(TEXTS, 100)) == 11


def test_bags_count_the_words_of_the_vocabulary() -> None:
    vocabulary = make_vocabulary(TEXTS, 4)
    rows = bags_of_words(TEXTS, vocabulary)
    dense = rows[np.arange(4)]
    assert rows.shape == dense.shape == (4, 4)
    for text, row in zip(TEXTS, dense, strict=True):
        counts = Counter(split_words(text))
        assert row.tolist() == [counts[word] for word in vocabulary]


@given(st.data())
def test_sparse_rows_are_the_rows_of_the_matrix(data: st.DataObject) -> None:
    n, d = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    cells = st.sampled_from([0.0, 0.0, 1.0, 2.5, -3.0])
    matrix = np.array(data.draw(st.lists(cells, min_size=n * d, max_size=n * d))).reshape(n, d)
    row, column = np.nonzero(matrix)
    sparse = SparseRows(
        np.searchsorted(row, np.arange(n + 1)).astype(np.int64),
        column.astype(np.int32),
        matrix[row, column].astype(np.float32),
        d,
    )
    rows = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=8)), dtype=np.int64)
    np.testing.assert_array_equal(sparse[rows], matrix[rows])
    assert len(sparse) == n


def test_parts_of_a_data_set_belong_together() -> None:
    x, y = np.zeros((3, 2)), np.zeros(3, dtype=np.int64)
    with pytest.raises(InvalidArgumentError, match=r"\[3, 3, 2\]"):
        make_dataset("x", x, y, 1, users=np.zeros(2, dtype=np.int64))
    plain = make_dataset("x", x, y, 1)
    assert plain.fingerprint != make_dataset("x", x, y, 1, users=y.copy()).fingerprint
    with pytest.raises(ValueError, match="read-only"):
        plain.features[np.arange(3)][0], plain.labels[0] = 1, 1


# ------------------------------------------------------------------------------------ Twitter


@pytest.mark.usefixtures("real_data")
class TestTwitter(DatasetConformance):
    name = "Twitter"


@pytest.mark.usefixtures("real_data")
def test_the_real_tweets() -> None:
    dataset = load_dataset("Twitter")
    assert dataset.users is not None
    sizes = np.bincount(dataset.users)
    assert dataset.features.shape == (16_025, 10_000)
    assert (len(sizes), sizes.min(), sizes.max()) == (2_875, 3, 55)
    assert np.bincount(dataset.labels).tolist() == [6_308, 9_717]


def tweet(text: str) -> list[str]:
    return ["1", "Mon", "NO_QUERY", "me", text, text]


def test_leafs_tweets_are_sorted_by_user(data_folder: Path) -> None:
    data = LeafData(
        {
            "b": UserSamples((tweet("so so sad"), tweet("happy")), (0, 1)),
            "a": UserSamples((tweet("happy so happy"),), (1,)),
        }
    )
    write_files(data_folder / "sent140" / "data" / "all_data", "x", data)
    dataset = load_dataset("Twitter")
    # Words by frequency: happy and so three times, sad once.
    assert dataset.features[np.arange(3)].tolist() == [[2, 1, 0], [0, 2, 1], [1, 0, 0]]
    assert dataset.labels.tolist() == [1, 0, 1]
    assert dataset.users is not None
    assert dataset.users.tolist() == [0, 1, 1]


def test_the_publishers_tweets_are_downloaded(data_folder: Path, publisher: Any) -> None:
    members = {
        "training.1600000.processed.noemoticon.csv": (
            '"4","1","Mon","NO_QUERY","zoe","happy, \xe9"\n"0","2","Mon","NO_QUERY","al","sad"\n'
        ).encode("latin-1"),
        "testdata.manual.2009.06.14.csv": (
            b'"2","3","Mon","q","al","neutral"\n"4","4","Mon","q","al","happy"\n'
        ),
    }
    publisher.content = zipped(members)
    dataset = load_dataset("Twitter")
    assert publisher.asked == [TWITTER.url]
    assert dataset.labels.tolist() == [0, 1, 1]
    assert dataset.users is not None
    assert dataset.users.tolist() == [0, 0, 1]
    assert dataset.features[np.arange(3)].tolist() == [[0, 1, 0], [1, 0, 0], [1, 0, 1]]
    assert (data_folder / "sent140" / "sentiment140.zip.sha256").exists()


# ------------------------------------------------------------------------------ SST-2 and CoLA


@pytest.mark.usefixtures("real_data")
class TestCoLA(DatasetConformance):
    name = "CoLA"


@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize(
    ("name", "sizes"), [("SST2", [67_349, 872, 1_821]), ("CoLA", [8_551, 1_043, 1_063])]
)
def test_the_real_sentences_are_as_many_as_the_paper_counts(name: str, sizes: list[int]) -> None:
    pytest.importorskip("tokenizers")
    dataset = load_dataset(name)
    assert dataset.fixed_split is not None
    assert np.bincount(dataset.fixed_split).tolist() == sizes
    assert sum(sizes) == {"SST2": 70_042, "CoLA": 10_657}[name]  # Table 1 of FedHPO-Bench
    tokens = dataset.features[np.arange(sum(sizes))]
    assert tokens.shape[1] == 64
    assert (tokens[:, 0] == 101).all(), "[CLS]"
    assert ((tokens == 102).sum(axis=1) == 1).all(), "one [SEP]"
    padding = tokens == 0
    assert (np.diff(padding.astype(int), axis=1) >= 0).all(), "nothing follows padding"
    assert tokens.max() < 30_522


@pytest.fixture
def vocabulary(monkeypatch: pytest.MonkeyPatch, data_folder: Path) -> None:
    """A vocabulary of eight word pieces."""
    pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "##ly", "film"]
    path = data_folder / "bert_tiny" / "vocab.txt"
    path.parent.mkdir()
    path.write_text("\n".join(words) + "\n", encoding="utf-8")
    monkeypatch.setattr("fedhpo_gym.data.sentences.vocabulary_file", lambda _: path)


def small(monkeypatch: pytest.MonkeyPatch, source: Any) -> None:
    shortened = {source.name: replace(source, max_len=6, sha256=None, sizes={})}
    monkeypatch.setattr("fedhpo_gym.data.catalogue.SOURCES", shortened)


SST2_FILES = {
    "train.tsv": b"sentence\tlabel\nGood film \t1\nbadly\t0\n",
    "dev.tsv": b'label\tcontent\n1\tgood good "good film film\n',
    "test.tsv": b"index\tsentence\n0\tfilm\n",
}
SST2_TOKENS = [[2, 4, 7, 3, 0, 0], [2, 5, 6, 3, 0, 0], [2, 4, 4, 1, 4, 3]]


@pytest.mark.usefixtures("vocabulary")
@pytest.mark.parametrize("packed", [False, True])
def test_sst2_files_become_tokens(
    packed: bool, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, SST2)
    folder = data_folder / "sst2" / "glue"
    folder.mkdir(parents=True)
    for name, content in SST2_FILES.items():
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    dataset = load_dataset("SST2")
    assert dataset.features[np.arange(3)].tolist() == SST2_TOKENS
    assert dataset.labels.tolist() == [1, 0, 1]
    assert dataset.fixed_split is not None
    assert dataset.fixed_split.tolist() == [0, 0, 1], "test sentences without labels are left out"


@pytest.mark.usefixtures("vocabulary", "data_folder")
def test_sst2_is_read_from_the_publishers_archive(
    monkeypatch: pytest.MonkeyPatch, publisher: Any
) -> None:
    small(monkeypatch, SST2)
    publisher.content = zipped({f"SST-2/{name}": text for name, text in SST2_FILES.items()})
    assert load_dataset("SST2").features[np.arange(3)].tolist() == SST2_TOKENS
    assert publisher.asked == [SST2.url]


COLA_FILES = {
    "in_domain_train.tsv": b"gj04\t1\t\tgood film\nbc01\t0\t*\tfilm bad film\n",
    "in_domain_dev.tsv": b"gj04\t0\t*\tbad\n",
    "out_of_domain_dev.tsv": b"m_02\t1\t\tfilm\n",
}


@pytest.mark.usefixtures("vocabulary")
def test_colas_test_sentences_are_what_is_left(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, COLA)
    folder = data_folder / "cola" / "raw"
    folder.mkdir(parents=True)
    complete = {
        "in_domain.tsv": b"gj04\t1\t\tgood film\nbc01\t0\t*\tfilm bad] film\ngj04\t0\t*\tbad\n"
        b"gj04\t1\t\tgood film\n",
        "out_of_domain.tsv": b"m_02\t0\t\tbadly\nm_02\t1\t\tfilm\n",
    }
    for name, content in (COLA_FILES | complete).items():
        (folder / name).write_bytes(content)
    dataset = load_dataset("CoLA")
    assert dataset.fixed_split is not None
    assert dataset.fixed_split.tolist() == [0, 0, 1, 1, 2, 2]
    tokens = dataset.features[np.arange(6)][:, 1:4].tolist()
    assert tokens[4:] == [[4, 7, 3], [5, 6, 3]], "one `good film` is left, and `badly`"
    assert dataset.labels.tolist() == [1, 0, 0, 1, 1, 0]


@pytest.mark.usefixtures("vocabulary", "data_folder")
def test_the_public_cola_has_no_test_split(monkeypatch: pytest.MonkeyPatch, publisher: Any) -> None:
    small(monkeypatch, COLA)
    members = {f"cola_public/raw/{name}": content for name, content in COLA_FILES.items()}
    publisher.content = zipped(members)
    dataset = load_dataset("CoLA")
    assert publisher.asked == [COLA.url]
    assert dataset.fixed_split is not None
    assert dataset.fixed_split.tolist() == [0, 0, 1, 1]


def test_a_corrected_sentence_takes_its_old_form_with_it() -> None:
    complete = [("a", "1", "", "we could not] work"), ("a", "0", "", "we could not work"), ("b",)]
    known = [("a", "1", "", "we could not work")]
    assert remaining_rows(complete, known) == complete[1:]
    assert remaining_rows(complete[1:], known) == complete[1:], "another label is another sentence"
