"""Tables with natural clients: what is said of them, how they are read, and who holds what."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhpo_gym.datasets import SOURCES, load_dataset, make_dataset
from fedhpo_gym.datasets.natural import RARE, encoded
from fedhpo_gym.errors import DamagedDataError, InvalidArgumentError, MissingDataError
from fedhpo_gym.federations.federation import (
    make_federation,
    make_skewed_federation,
    make_unseen_federation,
)
from fedhpo_gym.keel import KEEL, KeelTable
from fedhpo_gym.natural import NATURAL, NaturalTable

MADE_UP = NATURAL[0]._replace(categories=("colour",), logs=("income",))
QUICK = ("ExamLondon", "HotelMarket", "Sp500", "CovidTesting")


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(t, id=t.name, marks=() if t.name in QUICK else pytest.mark.slow)
        for t in NATURAL
    ],
)
def test_the_description_is_that_of_the_file(
    table: NaturalTable, shared_datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas = pytest.importorskip("pandas")
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(shared_datasets))
    frame = pandas.read_csv(
        shared_datasets / "natural" / f"{table.file}.csv.xz",
        dtype=str,
        keep_default_na=False,
    )
    numbers = frame.drop(columns=["client", "target", *table.categories])
    numbers = numbers.apply(pandas.to_numeric, errors="coerce")
    known = numbers.loc[:, (numbers.min() >= 0) & (numbers.nunique() > 2)]
    skew = known.skew(axis=0)
    assert {name for name in known if skew[name] > 3} == set(table.logs)
    counts = frame["target"].value_counts()
    shares = counts / counts.sum()
    assert -(shares * np.log(shares)).sum() == pytest.approx(table.entropy, abs=1e-6)
    assert (len(frame), frame["client"].nunique()) == (table.rows, table.clients)
    data = load_dataset(table.name)  # which compares classes, clients and columns
    assert len(np.unique(data.labels)) == table.classes
    words = [frame[name].value_counts() for name in table.categories]
    columns = sum((w >= RARE).sum() + (w < RARE).any() for w in words)
    assert data.features.shape[1] == columns + (1 + numbers.isna().any()).sum() == table.width


def test_cells_become_columns_by_hand() -> None:
    colours = ["red"] * RARE + [""] * RARE + ["blue"] * (RARE - 1) + ["tan"]
    incomes = ["", "0", *["1"] * (3 * RARE - 2)]
    blank, red, rare, income, unknown = encoded(
        MADE_UP, ["colour", "income"], [np.array(colours), np.array(incomes)]
    )
    for column, value in ((blank, [""]), (red, ["red"]), (rare, ["blue", "tan"])):
        np.testing.assert_array_equal(column, np.isin(colours, value))
    np.testing.assert_allclose(income[1:4], [0.0, np.log(2.0), np.log(2.0)])
    assert np.isnan(income[0])
    assert unknown.tolist() == [1.0] + [0.0] * (len(colours) - 1)


def test_a_missing_number_becomes_the_mean_of_the_training_rows() -> None:
    features = np.arange(800.0).reshape(400, 2)
    features[3, 0] = features[8, 0] = np.nan
    data = make_dataset("made up", features, np.arange(400) % 2, 2)
    plain, scaled = (
        make_federation(data, 1, 1, preprocessing=how) for how in ("label_encoded", "standardized")
    )
    assert isinstance(plain.features, np.ndarray)
    assert isinstance(scaled.features, np.ndarray)
    train = plain.clients[0][0]
    mean = np.nanmean(features[train, 0])
    np.testing.assert_allclose(plain.features[[3, 8], 0], mean, rtol=1e-6)
    np.testing.assert_allclose(scaled.features[train].mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose(scaled.features[train].std(axis=0), 1.0, rtol=1e-6)
    np.testing.assert_allclose(scaled.features[[3, 8], 0], 0.0, atol=1e-6)


@pytest.mark.parametrize("training", [6, 3, 1])
def test_unseen_users_are_in_one_split_each_and_nobody_is_lost(training: int) -> None:
    users = np.repeat(np.arange(10), np.arange(3, 13))[np.random.default_rng(0).permutation(75)]
    data = make_dataset("made up", np.zeros((75, 1)), np.zeros(75, np.int64), 1, users)
    drawn = [make_unseen_federation(data, seed, training) for seed in (1, 1, 2)]
    first, again, other = ([[r.tolist() for r in c] for c in f.clients] for f in drawn)
    assert first == again != other
    rows = sorted(r for client in first for split in client for r in split)
    assert rows == list(range(75))
    split_of = [{int(u) for c in first for u in users[c[s]]} for s in range(3)]
    sizes = (training, (10 - training) // 2, 10 - training - (10 - training) // 2)
    assert tuple(map(len, split_of)) == sizes
    assert len(set.union(*split_of)) == 10
    assert all(len(np.unique(users[client[0]])) == 1 for client in first)


@pytest.mark.parametrize("table", KEEL, ids=lambda table: table.name)
def test_a_table_of_keel_is_what_is_said_of_it(
    table: KeelTable, shared_datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(shared_datasets))
    with np.load(shared_datasets / "keel" / f"{table.file}.npz") as arrays:
        codes, labels = arrays["x"], arrays["y"]
    data = load_dataset(table.name)
    assert data.users is None
    np.testing.assert_array_equal(data.labels, labels)
    shares = np.bincount(labels) / len(labels)
    assert -(shares * np.log(shares)).sum() == pytest.approx(table.entropy, abs=1e-6)
    assert isinstance(data.features, np.ndarray)
    assert data.features.shape == (table.rows, table.width)
    assert (data.features.sum(axis=1) == codes.shape[1]).all()  # one column of each feature
    alike = np.unique(data.features, axis=0), np.unique(codes, axis=0)
    assert len(alike[0]) <= len(alike[1])
    columns = data.features.sum(axis=0)
    assert sorted(columns[columns >= RARE]) == sorted(
        [c for x in codes.T for c in np.unique(x, return_counts=True)[1] if c >= RARE]
        + [c for x in codes.T if (c := _rare(x)) >= RARE]
    )


def _rare(codes: NDArray[np.int8]) -> int:
    counts = np.unique(codes, return_counts=True)[1]
    return int(counts[counts < RARE].sum())


@pytest.mark.parametrize("alpha", [0.1, 0.5, 100.0])
def test_a_skewed_deal_loses_nobody_and_leaves_nobody_empty(alpha: float) -> None:
    labels = np.arange(1200) % 4
    data = make_dataset("made up", np.zeros((1200, 1)), labels, 4)
    dealt = [make_skewed_federation(data, seed, 12, alpha) for seed in (1, 1, 2)]
    first, again, other = ([[r.tolist() for r in c] for c in f.clients] for f in dealt)
    assert first == again != other
    assert sorted(r for client in first for split in client for r in split) == list(range(1200))
    sizes = dealt[0].num_samples.sum(axis=1)
    assert sizes.min() >= 8
    assert dealt[0].num_samples.min() >= 1


def test_labels_are_the_more_skewed_the_smaller_alpha_and_sizes_differ() -> None:
    data = make_dataset("made up", np.zeros((4000, 1)), np.arange(4000) % 4, 4)
    distance, spread = [], []
    for alpha in (0.1, 1.0, 100.0):
        found = []
        for seed in range(5):
            dealt = make_skewed_federation(data, seed, 10, alpha)
            rows = [np.concatenate(client) for client in dealt.clients]
            shares = [np.bincount(data.labels[r], minlength=4) / len(r) for r in rows]
            found.append(np.mean([abs(one - 0.25).sum() / 2 for one in shares]))
            spread.append(np.std([len(r) for r in rows]) / 400)
        distance.append(np.mean(found))
    assert distance[0] > distance[1] + 0.1 > distance[2] + 0.2
    # Where labels decide nothing; the deviation of Dirichlet(2, ..., 2) of ten is 0.65 of its mean.
    assert np.mean(spread[-5:]) > 0.4
    with pytest.raises(InvalidArgumentError, match="8 of 4000 samples of made up, got 501"):
        make_skewed_federation(data, 1, 501)


def test_unseen_users_need_users_to_leave_out() -> None:
    data = make_dataset("x", np.zeros((4, 1)), np.zeros(4, np.int64), 1, np.arange(4))
    with pytest.raises(InvalidArgumentError, match="must leave two of 4 users out, got 3"):
        make_unseen_federation(data, 1, 3)


def test_a_file_that_is_missing_or_another_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(tmp_path))
    with pytest.raises(MissingDataError) as caught:
        SOURCES["ExamLondon"].read()
    for words in ("exam_london.csv.xz", "mlmRev/Exam", "1226a949", str(tmp_path / "natural")):
        assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    (tmp_path / "natural").mkdir()
    (tmp_path / "natural" / "exam_london.csv.xz").write_bytes(lzma.compress(b"client,target\n"))
    with pytest.raises(DamagedDataError, match=r"1226a949.*fedhpo-gym download ExamLondon"):
        SOURCES["ExamLondon"].read()


def test_the_page_lists_every_table_with_its_figures() -> None:
    page = (Path(__file__).parents[2] / "docs" / "natural.md").read_text(encoding="utf-8")
    for one in NATURAL:
        figures = f"{one.rows:,} | {one.clients} | {one.classes} | {one.width}"
        assert f"| {one.name} | {one.source} | {one.client} | {figures} | {one.target} |" in page
    for table in KEEL:
        figures = f"{table.rows:,} | {table.clients} | {table.classes} | {table.width}"
        assert f"| {table.name} | {figures} |" in page
