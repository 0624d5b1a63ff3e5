"""Shakespeare: one text, three ways into the same windows of characters."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.core.errors import DamagedDataError
from fedhpo_gym.data import load_dataset
from fedhpo_gym.data.leaf import LeafData, UserSamples, write_files
from fedhpo_gym.data.shakespeare import (
    LENGTH,
    LETTERS,
    SHAKESPEARE,
    encode_text,
    read_plays,
    to_leaf_letters,
)
from stored_files import tar

LONG = "O, that this too too solid flesh would melt, thaw and resolve itself into a dew, or so "
PLAY = f"""<?xml version="1.0" encoding="UTF-8"?><play><act>
<sp><speaker long="Hamlet">HAM.</speaker><l n="1">{LONG}</l><l>aye <foreign>there\u2019s</foreign>
   the rub</l></sp><stage><dir>Exit.</dir></stage>
<sp><speaker long="Ghost">GHOST.</speaker><l>Swear.</l></sp>
<sp><speaker long="Hamlet">HAM.</speaker><l>Caf\u00e9\u2060!</l></sp></act></play>"""
SAID = f"{LONG.strip()}\naye there's the rub\nCafe!"


def test_the_alphabet_is_leafs() -> None:
    assert len(set(LETTERS)) == len(LETTERS) == 80
    assert "".join(LETTERS[code] for code in encode_text(SAID)) == SAID
    assert to_leaf_letters("Où êtes-vous, “ami”?\t#") == 'Ou etes-vous, "ami"?  '


def test_a_roles_speeches_are_one_text(tmp_path: Path) -> None:
    path = tmp_path / "ps_hamlet.xml"
    path.write_text(PLAY, encoding="utf-8")
    assert read_plays([path]) == {("ps_hamlet", "Hamlet"): SAID, ("ps_hamlet", "Ghost"): "Swear."}


def xml_folder(data_folder: Path) -> None:
    folder = data_folder / "shakespeare" / "playshakespeare_editions"
    folder.mkdir(parents=True)
    (folder / "ps_hamlet.xml").write_text(PLAY, encoding="utf-8")


def xml_archive(data_folder: Path) -> str:
    path = data_folder / "shakespeare" / SHAKESPEARE.file
    path.parent.mkdir(parents=True)
    path.write_bytes(tar({"playshakespeare_editions/ps_hamlet.xml": PLAY.encode()}, "xz"))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("form", ["folder", "archive", "leaf"])
def test_three_forms_give_the_same_windows(
    form: str, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stride, sha256 = 3, ""
    if form == "folder":
        xml_folder(data_folder)
    elif form == "archive":
        sha256 = xml_archive(data_folder)
    else:
        windows = [SAID[i : i + LENGTH + 1] for i in range(0, len(SAID) - LENGTH, stride)]
        samples = UserSamples(tuple(w[:-1] for w in windows), tuple(w[-1] for w in windows))
        write_files(data_folder / "shakespeare", "x", LeafData({"ps_hamlet / Hamlet": samples}))
    source = replace(SHAKESPEARE, stride=stride, sha256=sha256)
    monkeypatch.setattr("fedhpo_gym.data.catalogue.SOURCES", {"Shakespeare": source})
    dataset = load_dataset("Shakespeare")
    codes = encode_text(SAID)
    starts = list(range(0, len(SAID) - LENGTH, stride))
    assert len(starts) > 5
    expected = np.stack([codes[start : start + LENGTH] for start in starts])
    np.testing.assert_array_equal(dataset.features[np.arange(len(starts))], expected)
    assert dataset.labels.tolist() == [codes[start + LENGTH] for start in starts]
    assert dataset.users is not None
    assert dataset.users.tolist() == [0] * len(starts), "the ghost says too little"


def test_a_changed_archive_is_refused(data_folder: Path) -> None:
    xml_archive(data_folder)
    with pytest.raises(DamagedDataError, match="fedhpo-gym download Shakespeare"):
        load_dataset("Shakespeare")


def test_the_real_plays(shared_datasets: Path) -> None:
    roles = read_plays([shared_datasets / "shakespeare" / SHAKESPEARE.file])
    assert len(roles) == 1_567
    assert len({play for play, _ in roles}) == 39, "the other files are poems"
    assert sum(text.count("\n") + 1 for text in roles.values()) == 98_426
    assert 4.4e6 < sum(map(len, roles.values())) < 4.6e6
    assert {letter for text in roles.values() for letter in text} <= set(LETTERS)
