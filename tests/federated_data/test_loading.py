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
from fedhpo_gym.data.tables import encode_columns, read_columns
from fedhpo_gym.stored.catalogue import list_tables, open_table
from fedhpo_gym.testing import DatasetConformance

FINGERPRINT = "data_fingerprint"
TABLES = {n: source for n, source in SOURCES.items() if isinstance(source, TableSource)}


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


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(MissingDependencyError, match=r"'no_such_module'.*'\.\[data\]'"):
        cache.import_optional("no_such_module", "data")


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


def test_standardizing_looks_at_training_data_only() -> None:
    one, two = (
        make_federation(table, 1, preprocessing="standardized")
        for table in (made_table(), made_table(shift_held_out=1000.0))
    )
    train = np.concatenate([client[0] for client in one.clients])
    assert (one.features[train, 3] == 0).all(), "a constant feature stays finite"
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
    assert caught.value.__cause__ is None, "frames of the client would hide the line"
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


@pytest.mark.usefixtures("data_folder")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FEMNIST", r"preprocess\.sh.*fedhpo-gym download FEMNIST"),
        ("Shakespeare", "git clone.*fedhpo-gym download Shakespeare"),
        ("FedNetflix", "your copy.*fedhpo-gym download FedNetflix"),
    ],
)
def test_what_is_missing_says_where_it_comes_from(name: str, said: str) -> None:
    with pytest.raises(MissingDataError, match=said):
        load_dataset(name)
