"""Downloads: whole or not at all, verified, and never over plain http."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.cli import main
from fedhpo_gym.core.errors import DamagedDataError, MissingDataError
from fedhpo_gym.data import SOURCES, cache, load_dataset
from fedhpo_gym.stored import table

CONTENT = b"what the publisher sends" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
URL, REPAIR = "https://example.org/data.bin", "fedhpo-gym download X"


def fetch(path: Path, sha256: str | None = None, url: str = URL) -> Path:
    with cache.verified_file(url, path, sha256, REPAIR):
        return path


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_file_is_downloaded_once_and_refused_if_it_changes_later(
    sha256: str | None, tmp_path: Path, publisher: Any
) -> None:
    publisher.content, path = CONTENT, tmp_path / "new" / "data.bin"
    for _ in range(2):
        assert fetch(path, sha256).read_bytes() == CONTENT
    assert publisher.asked == [URL]
    assert not list(tmp_path.rglob("*.part"))
    path.write_bytes(CONTENT + b"!")
    with pytest.raises(DamagedDataError, match=REPAIR):
        fetch(path, sha256)


def test_a_wrong_or_broken_download_is_not_kept(tmp_path: Path, publisher: Any) -> None:
    publisher.content = CONTENT[:-1] + b"?"
    with pytest.raises(DamagedDataError, match=f"expected {SHA256}.*{REPAIR}"):
        fetch(tmp_path / "data.bin", SHA256)
    publisher.content, publisher.promised = CONTENT[:100], str(len(CONTENT))
    with pytest.raises(MissingDataError, match=r"100 of 24000 bytes.*put the file at"):
        fetch(tmp_path / "data.bin")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["http://localhost/x", "file:///etc/hostname", "ftp://localhost/x"])
def test_only_https_is_opened(url: str, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError):
        fetch(tmp_path / "data.bin", url=url)
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------- computed from files


def test_arrays_are_computed_once_per_state_of_their_files(tmp_path: Path) -> None:
    source, made = tmp_path / "source", []

    def make() -> dict[str, Any]:
        made.append(source.read_text())
        return {"x": np.arange(len(made[-1]))}

    for text in ("one", "one", "three"):
        if not source.exists() or source.read_text() != text:
            source.write_text(text)
        arrays = cache.derive_arrays("made", [source], make, REPAIR)
        assert len(arrays["x"]) == len(text)
    assert made == ["one", "three"]


def test_equal_arrays_give_equal_files(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.npz", "b.npz")]
    for path in paths:
        cache.write_arrays(path, {"x": np.arange(5), "s": np.array(["é"])})
    assert paths[0].read_bytes() == paths[1].read_bytes()
    again = cache.read_arrays(paths[0], REPAIR)
    assert again["x"].tolist() == [0, 1, 2, 3, 4]
    assert again["s"].tolist() == ["é"]


# ---------------------------------------------------------------------------- the table of licences

PAGE = Path(__file__).parents[2] / "docs" / "datasets.md"
KINDS = {"tables": "table", "samples": "sample", "surrogates": "surrogate"}


def rows() -> dict[str, list[str]]:
    """Return the cells of each line of the table, by data set."""
    table = PAGE.read_text(encoding="utf-8").partition("\n## Licences\n")[2]
    lines = [line for line in table.splitlines() if line[:1] == "|"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {name: others for name, *others in cells}


def shipped(name: str) -> set[str]:
    """Return what kinds of stored numbers the package has for a data set."""
    folder = Path(table.__file__).parent / "data"
    cards = [path.name.rsplit(".", 2) for path in folder.glob("*.json")]
    return {
        kind for card, kind, _ in cards if kind in KINDS.values() and card.split("-")[1] == name
    }


def test_every_data_set_is_in_the_table() -> None:
    assert list(rows()) == list(SOURCES)


@pytest.mark.parametrize("name", SOURCES)
def test_the_table_says_what_the_catalogue_says(name: str) -> None:
    _, terms, is_open, numbers, passed_on = rows()[name]
    assert terms
    assert is_open == ("yes" if SOURCES[name].open_licence else "no")
    kinds = {KINDS[word] for word in numbers.split(", ") if word in KINDS}
    assert kinds == shipped(name)
    if kinds:
        assert passed_on.startswith("yes" if SOURCES[name].open_licence else "open question")


def test_a_download_marks_what_has_no_open_licence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = SOURCES["MadeRatings"]
    for is_open in (True, False):
        source = replace(made, open_licence=is_open, licence="for research")
        for module in ("fedhpo_gym.data", "fedhpo_gym.data.catalogue"):
            monkeypatch.setattr(f"{module}.SOURCES", {"MadeRatings": source})
        load_dataset.cache_clear()
        assert main(["download", "MadeRatings"]) == 0
        assert ("no open licence (for research)" in capsys.readouterr().out) is not is_open
