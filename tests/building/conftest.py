"""A made-up table and, once per session, its surrogate."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedhpo_gym.stored.surrogate import Surrogate
from fedhpo_gym.stored.table import Table
from stored_files import NAME, fit_everything, write_made_up_table


@pytest.fixture(scope="session")
def fitted_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table and the surrogate fitted on it."""
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("tables")
    write_made_up_table(folder)
    return fit_everything(folder, NAME)


@pytest.fixture
def tables(fitted_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, as the folder of the user's tables."""
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(fitted_folder))
    return fitted_folder


@pytest.fixture
def table(tables: Path) -> Table:
    return Table(tables / f"{NAME}.table.json")


@pytest.fixture
def surrogate(tables: Path) -> Surrogate:
    return Surrogate(tables / f"{NAME}.surrogate.json")
