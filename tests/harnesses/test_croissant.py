"""Tables with Croissant files."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

mlc = pytest.importorskip("mlcroissant", reason="run `pip install '.[croissant]'`")
parquet = pytest.importorskip("pyarrow.parquet", reason="run `pip install '.[croissant]'`")
pytestmark = pytest.mark.filterwarnings("ignore")

from fedhpo_gym.core.errors import InvalidArgumentError  # noqa: E402
from fedhpo_gym.harnesses.croissant import write_table  # noqa: E402
from known_optimum import BEST, CREDIT, OPTIMUM  # noqa: E402


@pytest.fixture(name="file", scope="module")
def fixture_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(CREDIT, tmp_path_factory.mktemp("croissant"))


def test_rows_are_what_environments_answer(file: Path) -> None:
    table = parquet.read_table(file.with_suffix(".parquet"))
    assert table.num_rows == 432 * 20 * 5 * 3
    columns = {name: table[name].to_numpy() for name in table.column_names}
    at_best = np.logical_and.reduce([columns[name] == value for name, value in BEST.items()])
    at_best &= (columns["round"] == 500) & (columns["client_sample_rate"] == 1.0)
    assert columns["val_loss"][at_best].mean() == pytest.approx(OPTIMUM, rel=1e-12)
    rows = np.random.default_rng(0).choice(table.num_rows, 40, replace=False).tolist()
    for seed in (1, 2, 3):
        env = gym.make(CREDIT, seed=seed, disable_env_checker=True)
        for row in (one for one in rows if columns["seed"][one] == seed):
            env.reset(seed=0)
            space = env.get_wrapper_attr("search_space")
            action = space.encode({name: columns[name][row].item() for name in space.names})
            info = env.step(action)[4]
            assert columns["diverged"][row] == info["diverged"]
            assert columns["time_s"][row] == info["cost"]["time_s"]
            assert columns["test_loss"][row] == pytest.approx(info["test"]["loss"])
            if not info["diverged"]:
                assert columns["val_loss"][row] == pytest.approx(info["objectives"]["val_loss"])


def test_their_validator_and_reader_take_it(file: Path) -> None:
    command = [Path(sys.executable).with_name("mlcroissant"), "validate", "--jsonld", file]
    said = subprocess.run(command, check=True, timeout=200, capture_output=True, text=True)
    assert "Done" in said.stdout + said.stderr
    read = mlc.Dataset(jsonld=file)
    assert not read.metadata.issues.errors
    assert not read.metadata.issues.warnings
    (row,) = islice(read.records("rows"), 1)
    assert row["rows/round"] == 1
    assert json.loads(file.read_text())["citeAs"]


@pytest.mark.parametrize(("name", "value"), [("backend", "surrogate"), ("fidelity", {"round": 9})])
def test_tables_are_written_at_every_fidelity(name: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{name}` must be left out, as the file holds"):
        write_table(CREDIT, tmp_path, **{name: value})
