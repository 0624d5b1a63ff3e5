"""The table of licences: complete, and of one mind with the catalogue and the stored numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedhpo_gym.cli import main
from fedhpo_gym.data import SOURCES, load_dataset
from fedhpo_gym.stored import table

PAGE = Path(__file__).parents[2] / "docs" / "licences.md"
KINDS = {"tables": "table", "samples": "sample", "surrogates": "surrogate"}


def rows() -> dict[str, list[str]]:
    """Return the cells of each line of the table, by data set."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {name: others for name, *others in cells}


def shipped(name: str) -> set[str]:
    """Return what kinds of stored numbers the package has for a data set."""
    folder = Path(table.__file__).parent / "data"
    cards = [path.name.rsplit(".", 2) for path in folder.glob("*.json")]
    return {kind for card, kind, _ in cards if card.split("-")[1] == name}


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
