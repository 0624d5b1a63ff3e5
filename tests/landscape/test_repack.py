"""A table of format 1 becomes one of format 2: the same numbers, known by their former names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.backends import make_backend
from fedhpo_gym.cli import ERROR, main
from fedhpo_gym.cli.surrogates import _is_fitted
from fedhpo_gym.errors import DamagedDataError
from fedhpo_gym.landscape import HEALTH, health_on, repack, write_health
from fedhpo_gym.tables import Table, open_table
from fedhpo_gym.tables.locate import EMBEDDED, ENV_VAR
from fedhpo_gym.tables.stored import FORMAT
from fedhpo_gym.tasks import get_task
from made_up_table import write_made_up_table
from pairs import written_plainly

PUBLISHED = {
    "Segment": (
        "99c76cfe3e92d4193893cdd18549f327eb5043f0b652c0549cfb719299015d5f",
        "20b380d201201aca1dba1028726d6bfcca7e702c2cb365d10699bc226e7d6be2",
    ),
}
"""Digests of cards, and checksums of arrays, that were published in format 1."""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Return the card of a table of format 1 that states its health."""
    card = written_plainly(write_made_up_table(tmp_path / "made"), tmp_path / "mine")
    return write_health(card)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_bits_in_fewer_bytes(plain: Path) -> None:
    old = Table(plain)
    expected = {name: old.codes(name) for name in old.names}
    found = repack(plain)
    assert found is not None
    assert found.written
    new = Table(plain)
    assert (found.before, found.after) == (old.card["bytes"], new.card["bytes"])
    assert found.after <= 0.75 * found.before
    assert new.card["format"] == FORMAT
    assert {*new.names} == {*expected}
    for name, array in expected.items():
        assert new.codes(name).dtype == array.dtype
        np.testing.assert_array_equal(new.codes(name), array)
    assert len(content(plain.parent)) == 2
    assert repack(plain) is None


def test_its_former_names_and_its_health_stay(plain: Path) -> None:
    old = Table(plain)
    repack(plain)
    new = Table(plain)
    assert new.digest != old.digest
    assert {old.digest, old.sha256} < {*new.former}
    kept = {**old.card[HEALTH], "of": new.digest}
    assert health_on(new, "never") == kept


def test_what_saves_too_little_is_left_alone(plain: Path) -> None:
    before = content(plain.parent)
    found = repack(plain, least=0.99)
    assert found is not None
    assert not found.written
    assert content(plain.parent) == before


def test_a_number_that_would_change_is_noticed_before_anything_is_replaced(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedhpo_gym.tables.store import write_table

    def wrong(folder: Path, card: Any, arrays: Any) -> Path:
        changed = {**arrays, "best_val_loss": arrays["best_val_loss"].copy()}
        changed["best_val_loss"].flat[-1] ^= 1
        return write_table(folder, card, changed)

    before = content(plain.parent)
    monkeypatch.setattr("fedhpo_gym.landscape.repacking.write_table", wrong)
    with pytest.raises(DamagedDataError, match="'best_val_loss' would not come back as it is"):
        repack(plain)
    assert content(plain.parent) == before


def test_the_command(
    plain: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENV_VAR, str(plain.parent))
    monkeypatch.setattr("fedhpo_gym.tables.locate.EMBEDDED", plain.parent / "none")
    assert main(["repack", "--least", "0.99"]) == 0
    assert "kept; they would become" in capsys.readouterr().out
    assert main(["repack"]) == 0
    assert "bytes become" in capsys.readouterr().out
    assert main(["repack"]) == 0
    assert "in the newest format already" in capsys.readouterr().out
    assert main(["repack", "--least", "1"]) == ERROR
    assert "`--least` must be in [0, 1), got 1.0" in capsys.readouterr().err


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_records_still_name_the_numbers_in_the_package(name: str) -> None:
    backend = make_backend("tabular", get_task(f"LR-{name}-v0"))
    former = {f"table-sha256:{sha256}" for sha256 in PUBLISHED[name]}
    assert former < {*backend.former_fingerprints}
    assert backend.fingerprint not in former
    assert _is_fitted(
        EMBEDDED / f"LR-{name}-fedavg.surrogate.json", open_table(f"LR-{name}-fedavg")
    )


def test_former_names_are_covered_by_the_digest(plain: Path) -> None:
    repack(plain)
    text = plain.read_text(encoding="utf-8")
    plain.write_text(text.replace(Table(plain).former[1], "0" * 64), encoding="utf-8")
    with pytest.raises(DamagedDataError, match="digest"):
        Table(plain)
