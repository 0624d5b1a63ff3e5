"""Tables: what is loaded, from where, and how damage shows."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.cli import make_parser
from fedhpo_gym.core.errors import (
    DamagedDataError,
    MissingDataError,
    MissingDependencyError,
    UnknownNameError,
)
from fedhpo_gym.data import SOURCES, Dataset, TableSource, cache, load_dataset
from fedhpo_gym.data.federation import make_federation
from fedhpo_gym.data.tables import encode_columns, local_file, read_columns
from fedhpo_gym.stored.catalogue import list_tables, open_table
from fedhpo_gym.testing import DatasetConformance

FINGERPRINT = "data_fingerprint"
# What the documentation of each data set says: samples, features, classes, largest class.
DOCUMENTED = {
    "CreditG": (1000, 20, 2, 700),
    "Vehicle": (846, 18, 4, 218),
    "KC1": (2109, 21, 2, 1783),
    "BloodTransfusion": (748, 4, 2, 570),
    "Australian": (690, 14, 2, 383),
    "Car": (1728, 6, 4, 1210),
    "Segment": (2310, 19, 7, 330),
    "BreastCancer": (569, 30, 2, 357),
    "Digits": (1797, 64, 10, 183),
}
TABLES = {n: source for n, source in SOURCES.items() if isinstance(source, TableSource)}
REAL = [name for name, source in TABLES.items() if source.file]


def assert_repair_command(message: str, name: str) -> None:
    (command,) = re.findall(r"`fedhpo-gym (download [^`]*)`", message)
    assert make_parser().parse_args(command.split()).names == [name]


# ------------------------------------------------------------------------------ the catalogue


def conformance(name: str) -> type[DatasetConformance]:
    """Return the conformance class of a data set."""
    marks = [pytest.mark.usefixtures("real_data")] if TABLES[name].file else []
    body = {"name": name, "pytestmark": marks, "__module__": __name__}
    return type(f"Test{name}", (DatasetConformance,), body)


for _name in TABLES:
    globals()[f"Test{_name}"] = conformance(_name)
del _name


def test_every_data_set_is_documented() -> None:
    assert set(DOCUMENTED) == set(TABLES)


def assert_documented(name: str) -> None:
    table = load_dataset(name)
    samples, features, classes, largest = DOCUMENTED[name]
    assert table.features.shape == (samples, features)
    assert table.num_classes == classes
    assert np.bincount(table.labels).max() == largest


@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize("name", REAL)
def test_the_real_tables_are_as_documented(name: str) -> None:
    assert_documented(name)


@pytest.mark.parametrize("name", [name for name in TABLES if name not in REAL])
def test_the_bundled_tables_are_as_documented(name: str) -> None:
    pytest.importorskip("sklearn")
    assert_documented(name)


@pytest.mark.parametrize("name", REAL)
def test_the_real_files_have_their_checksum(name: str, real_data: Path) -> None:
    path = local_file(TABLES[name])
    assert path is not None
    assert real_data in path.parents


@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize("table", [f"LR-{name}-fedavg" for name in TABLES])
def test_embedded_tables_were_computed_on_this_data(table: str) -> None:
    if table not in list_tables():
        pytest.skip(f"{table} is not embedded")
    assert load_dataset(table.split("-")[1]).fingerprint == open_table(table).card[FINGERPRINT]


def test_an_unknown_table_suggests_a_known_one() -> None:
    with pytest.raises(UnknownNameError, match="'CreditG'"):
        load_dataset("CreditX")


# ------------------------------------------------------------------------------- plain files


@pytest.mark.parametrize("subfolder", ["", "tabular"])
def test_a_file_with_a_wrong_checksum_is_refused(
    subfolder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.ENV_VAR, str(tmp_path))
    path = tmp_path / subfolder / "credit.g.arff"
    path.parent.mkdir(exist_ok=True)
    path.write_text("@relation credit", encoding="utf-8")
    with pytest.raises(DamagedDataError, match="sha256") as caught:
        load_dataset("CreditG")
    assert str(path) in str(caught.value)
    assert_repair_command(str(caught.value), "CreditG")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({cache.ENV_VAR: "/a/b"}, "/a/b"),
        ({"HOME": "/home/me", cache.ENV_VAR: "~/data"}, "/home/me/data"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/fedhpo_gym/datasets"),
        ({"HOME": "/home/me"}, "/home/me/.cache/fedhpo_gym/datasets"),
    ],
)
def test_the_data_folder(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], expected: str
) -> None:
    for name in (cache.ENV_VAR, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cache.data_folder() == Path(expected)


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(MissingDependencyError, match=r"'no_such_module'.*'\.\[data\]'"):
        cache.require("no_such_module", "data")


# --------------------------------------------------------------------------------- encoding


def test_a_csv_file_has_numbers_only(tmp_path: Path) -> None:
    path = tmp_path / "made.csv"
    path.write_text("size, weight, label\n1.5, 10, 4\n\n2, 20, 2\n3, 30, 4\n", encoding="utf-8")
    features, labels = encode_columns(read_columns(path))
    assert features.tolist() == [[1.5, 10.0], [2.0, 20.0], [3.0, 30.0]]
    assert labels.tolist() == [1, 0, 1]


def test_nominal_features_follow_the_declared_order_and_classes_the_sorted_one(
    tmp_path: Path,
) -> None:
    pytest.importorskip("arff")
    path = tmp_path / "made.arff"
    path.write_text(
        "@relation made\n@attribute size real\n@attribute colour {red, blue, green}\n"
        "@attribute label {yes, no}\n@data\n1.5,red,no\n2,blue,yes\n3,green,no\n2,red,no\n",
        encoding="utf-8",
    )
    features, labels = encode_columns(read_columns(path))
    assert features.tolist() == [[1.5, 0.0], [2.0, 1.0], [3.0, 2.0], [2.0, 0.0]]
    assert labels.tolist() == [0, 1, 0, 0]
    assert (str(features.dtype), str(labels.dtype)) == ("float64", "int64")


# ----------------------------------------------------------------------------- preprocessing


def made_table(shift_held_out: float = 0.0, seed: int = 1) -> Dataset:
    """Return a table whose rows outside the training split of a seed may be shifted."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=900)
    features = rng.normal(5.0, 3.0, size=(900, 4))
    features[:, 3] = 7.0
    plain = Dataset("made", features, labels, 2, "made")
    if not shift_held_out:
        return plain
    federation = make_federation(plain, seed)
    held_out = np.concatenate([part for client in federation.clients for part in client[1:]])
    shifted = features.copy()
    shifted[held_out] += shift_held_out
    return Dataset("made", shifted, labels, 2, "made")


def test_standardized_training_data_have_no_mean_and_unit_variance() -> None:
    federation = make_federation(made_table(), 1, preprocessing="standardized")
    train = federation.features[np.concatenate([client[0] for client in federation.clients])]
    np.testing.assert_allclose(train.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(train.std(axis=0)[:3], 1.0, atol=1e-5)
    assert (train[:, 3] == 0).all(), "a constant feature stays finite"


def test_standardizing_looks_at_training_data_only() -> None:
    one, two = (
        make_federation(table, 1, preprocessing="standardized")
        for table in (made_table(), made_table(shift_held_out=1000.0))
    )
    train = np.concatenate([client[0] for client in one.clients])
    held_out = np.concatenate([part for client in one.clients for part in client[1:]])
    np.testing.assert_array_equal(one.features[train], two.features[train])
    assert (two.features[held_out] - one.features[held_out] > 100).any(axis=1).all()


def test_label_encoded_features_are_left_as_they_are() -> None:
    table = made_table()
    federation = make_federation(table, 1)
    np.testing.assert_array_equal(federation.features, table.features.astype(np.float32))


# ------------------------------------------------------------------------------------ OpenML


class FakeOpenML(SimpleNamespace):
    """What the package uses of the OpenML client, with a small table instead of a server."""

    def __init__(self, frame: Any, target: Any) -> None:
        self.folders: list[str] = []
        self.asked: list[int] = []
        self.config = SimpleNamespace(set_root_cache_directory=self.folders.append)
        self.tasks = SimpleNamespace(get_task=self.get_task)
        self.frame, self.target = frame, target
        self.fails = False

    def get_task(self, number: int, **_: Any) -> Any:
        self.asked.append(number)
        if self.fails:
            raise ConnectionError("no route to host")
        dataset = SimpleNamespace(get_data=self.get_data)
        return SimpleNamespace(target_name="class", get_dataset=lambda *_, **__: dataset)

    def get_data(self, target: str, **_: Any) -> tuple[Any, Any, list[bool], list[str]]:
        assert target == "class"
        return self.frame, self.target, [False, True], list(self.frame.columns)


@pytest.fixture
def openml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeOpenML:
    """Return a fake client; the data folder is empty and CreditG has eight rows."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "amount": np.arange(8, dtype=np.int64) * 10,
            "housing": pandas.Categorical(list("ownrown ")[:4] * 2, categories=list("wron")),
        }
    )
    target = pandas.Series(pandas.Categorical(["good", "bad"] * 4, categories=["good", "bad"]))
    fake = FakeOpenML(frame, target)
    monkeypatch.setitem(sys.modules, "openml", fake)
    monkeypatch.setenv(cache.ENV_VAR, str(tmp_path))
    source = replace(TABLES["CreditG"], num_rows=8)
    monkeypatch.setattr("fedhpo_gym.data.catalogue.SOURCES", {"CreditG": source})
    return fake


def test_a_download_is_encoded_and_cached(openml: FakeOpenML, tmp_path: Path) -> None:
    table = load_dataset("CreditG")
    assert table.features[:, 0].tolist() == [0, 10, 20, 30, 40, 50, 60, 70]
    # Values "o", "w", "n", "r" in the order w, r, o, n that the server declares.
    assert table.features[:4, 1].tolist() == [2, 0, 3, 1]
    assert table.labels.tolist() == [1, 0] * 4
    assert openml.asked == [31]
    assert all(str(tmp_path) in folder for folder in openml.folders)
    load_dataset.cache_clear()
    again = load_dataset("CreditG")
    assert again.fingerprint == table.fingerprint
    assert openml.asked == [31], "the second time it comes from the cache"


@pytest.mark.usefixtures("openml")
def test_a_cache_without_its_checksum_is_refused(tmp_path: Path) -> None:
    load_dataset("CreditG")
    load_dataset.cache_clear()
    for path in (tmp_path / "openml").glob("*.sha256"):
        path.unlink()
    with pytest.raises(DamagedDataError, match="missing"):
        load_dataset("CreditG")


def test_a_failed_download_says_what_to_do(openml: FakeOpenML, tmp_path: Path) -> None:
    openml.fails = True
    with pytest.raises(MissingDataError, match=r"could not be reached.*\(Conn") as caught:
        load_dataset("CreditG")
    assert_repair_command(str(caught.value), "CreditG")
    assert "credit.g.arff" in str(caught.value)
    assert cache.ENV_VAR in str(caught.value)
    assert not list(tmp_path.rglob("*.npz"))


def test_a_download_of_another_shape_is_refused_and_not_kept(
    openml: FakeOpenML, tmp_path: Path
) -> None:
    whole = openml.frame, openml.target
    openml.frame, openml.target = openml.frame[:7], openml.target[:7]
    with pytest.raises(DamagedDataError, match=r"8 rows.*7 rows"):
        load_dataset("CreditG")
    assert not list(tmp_path.rglob("*.npz"))
    openml.frame, openml.target = whole
    assert len(load_dataset("CreditG").labels) == 8


def test_without_the_client_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.ENV_VAR, str(tmp_path))
    monkeypatch.setitem(sys.modules, "openml", None)
    importlib.invalidate_caches()
    with pytest.raises(MissingDependencyError, match=r"'\.\[data\]'"):
        load_dataset("CreditG")
