"""What travels in which distribution, and what is said where the second is not installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

from fedhpo_gym import __version__
from fedhpo_gym.cli import ERROR, main
from fedhpo_gym.cli.health import cards_of_ids
from fedhpo_gym.core import archive
from fedhpo_gym.core.archive import EMBEDDED_FOLDER, second_folder
from fedhpo_gym.core.errors import MissingDataError
from fedhpo_gym.stored import catalogue
from fedhpo_gym.stored.catalogue import list_samples, list_tables, open_sample, open_table
from fedhpo_gym.stored.remembered import SUFFIX
from fedhpo_gym.stored.surrogate import list_surrogates, open_surrogate

ROOT = Path(__file__).parents[1]
CORE_BYTES = 45_000_000
"""What of results may travel with the code."""


@pytest.fixture
def core_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the second distribution, as where it is not installed."""
    monkeypatch.setattr(archive, "second_folder", lambda: None)
    catalogue._read.cache_clear()
    yield
    catalogue._read.cache_clear()


def test_the_core_is_light_and_every_card_is_in_it() -> None:
    assert sum(path.stat().st_size for path in EMBEDDED_FOLDER.iterdir()) < CORE_BYTES
    second = second_folder()
    assert second is not None
    cards = {*EMBEDDED_FOLDER.glob("*.json")} - {*EMBEDDED_FOLDER.glob(f"*{SUFFIX}")}
    named = {archive.arrays_path(card, json.loads(card.read_text())) for card in cards}
    assert named == {*EMBEDDED_FOLDER.glob("*.npz"), *second.glob("*.npz")}


def test_the_version_of_the_core_stands_everywhere() -> None:
    core, second = (
        tomllib.loads(path.read_text())["project"]
        for path in (ROOT / "pyproject.toml", ROOT / "data" / "pyproject.toml")
    )
    assert core["dynamic"] == ["version"], "it is read from fedhpo_gym/core/__init__.py"
    assert second["version"] == __version__
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert core["optional-dependencies"]["tables"] == [f"{second['name']}=={second['version']}"]


@pytest.mark.usefixtures("core_alone")
def test_without_the_second_an_id_names_the_line_that_brings_it() -> None:
    with pytest.raises(MissingDataError, match=r"on no index.*`pip install ./data`$"):
        gym.make("FedHPO-LR-CreditG-v0")
    with pytest.raises(MissingDataError, match=r"numbers of MLP-.*pip install ./data`$"):
        open_sample("MLP-Car-v1-fedavg-standardized").codes("seed")
    with pytest.raises(MissingDataError, match=r"pip install ./data"):
        gym.make("FedHPO-B-LR-v1")
    # What it is and how good it is, cards say.
    assert open_table("LR-CreditG-fedavg").card["health"]


@pytest.mark.slow
@pytest.mark.usefixtures("core_alone")
def test_without_the_second_commands_do_what_they_can(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["list", "FedHPO-LR-CreditG-v0"]) == 0
    assert "tabular" not in capsys.readouterr().out
    assert main(["show", "FedHPO-LR-CreditG-v0"]) == 0
    assert "\ntabular: no; the numbers of LR-CreditG-fedavg are in" in capsys.readouterr().out
    names = {card.name for card in cards_of_ids(())}
    assert {one.removesuffix(".table.json") for one in names} & {*list_tables()} == {
        name for name in list_tables() if "-v1-" in name
    }
    assert re.search(r"\d\d tables and pools are left out", capsys.readouterr().err)
    few = tuple(f"FedHPO-{one}-v0" for one in ("LR-CreditG", "LR-KC1", "BERT-SST2", "GNN-PubMed"))
    monkeypatch.setattr("fedhpo_gym.studies.suites.SUITES", {"paper": few})
    assert main(["compare", "paper", "--agents", "random", "--out", str(tmp_path)]) == ERROR
    said = capsys.readouterr().err
    assert "that are not: 2 need `pip install ./data` in" in said
    assert "; 2 lack other numbers or data, FedHPO-BERT-SST2-v0 the first" in said
    assert not [one for one in recwarn if "out of date" in str(one.message)]


@pytest.mark.usefixtures("core_alone")
def test_without_the_second_all_of_version_1_answers() -> None:
    newest = [name for name in list_tables() if "-v1-" in name]
    assert len(newest) == 9
    for name in newest:
        open_table(name).require_installed()
    surrogates = list_surrogates()
    assert len(surrogates) > 30
    for name in surrogates:
        open_surrogate(name)
    assert len(list_samples()) > 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Copy what is built: pip builds in the folder itself."""
    folder = tmp_path / "source"
    shutil.copytree(ROOT / "fedhpo_gym", folder / "fedhpo_gym")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.mark.installs
@pytest.mark.slow
def test_a_natural_federation_needs_its_extra_and_no_folder(tmp_path: Path, source: Path) -> None:
    """In a fresh environment, from the package index, it answers as here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "fresh"], check=True)
    fresh = tmp_path / "fresh" / "bin" / "python"
    asked = f"{source}[compiled,natural]", "--constraint", ROOT / "constraints.txt"
    pip = [sys.executable, "-m", "pip", "--python", fresh, "install", "--no-compile", "--quiet"]
    subprocess.run([*pip, *asked], check=True)
    code = (
        "import gymnasium, fedhpo_gym\n"
        "env = gymnasium.make('FedHPO-LR-ExamLondon-v1', seed=1, fidelity={'round': 3})\n"
        "env.reset(seed=0)\nenv.action_space.seed(0)\n"
        "print(env.step(env.action_space.sample())[4]['objectives'])"
    )
    told = []
    for python, path in ((fresh, ""), (sys.executable, str(ROOT))):
        env = {**os.environ, "FEDHPO_GYM_DATA": str(tmp_path), "PYTHONPATH": path}
        run = [python, "-c", code]
        told.append(subprocess.run(run, cwd=tmp_path, env=env, check=True, capture_output=True))
    assert told[0].stdout == told[1].stdout != b""


@pytest.mark.slow
def test_an_installed_second_is_found_from_anywhere(tmp_path: Path, source: Path) -> None:
    """Both as wheels in one folder: what is found lies there, and answers as in the checkout."""
    pytest.importorskip("setuptools")
    shutil.copytree(ROOT / "data", source / "data")
    for folder in (source, source / "data"):
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
        subprocess.run([*command, "-q", "-w", tmp_path, folder], check=True, timeout=300)
    wheels = sorted(tmp_path.glob("*.whl"))
    assert [path.name.partition("-")[0] for path in wheels] == ["fedhpo_gym", "fedhpo_gym_data"]
    for path in wheels:
        zipfile.ZipFile(path).extractall(tmp_path / "site")
    files = {one for one in (source / "fedhpo_gym").rglob("*") if one.is_file()}
    package = {one.relative_to(source) for one in files if "__pycache__" not in one.parts}
    assert not {one for one in package if not (tmp_path / "site" / one).exists()}
    code = (
        "import gymnasium as gym, fedhpo_gym, fedhpo_gym.core.archive as a\n"
        "print(fedhpo_gym.__file__, a.second_folder())\n"
        "env = gym.make('FedHPO-LR-CreditG-v0')\n"
        "env.reset(seed=0); env.action_space.seed(0)\n"
        "print(env.step(env.action_space.sample())[1])"
    )
    env = {"PYTHONPATH": str(tmp_path / "site"), "PATH": ""}
    run = [sys.executable, "-c", code]
    said = subprocess.run(run, cwd=tmp_path, env=env, check=True, capture_output=True, text=True)
    places, reward = said.stdout.splitlines()
    assert places.count(str(tmp_path / "site")) == 2
    here = gym.make("FedHPO-LR-CreditG-v0")
    here.reset(seed=0)
    here.action_space.seed(0)
    assert float(reward) == here.step(here.action_space.sample())[1]
