"""Tables that were packed after they were published keep the names by which records know them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedhpo_gym.backends import make_backend
from fedhpo_gym.cli.surrogates import _is_fitted
from fedhpo_gym.core.errors import DamagedDataError
from fedhpo_gym.stored.catalogue import EMBEDDED, open_sample
from fedhpo_gym.stored.table import Table
from fedhpo_gym.tasks import get_task

SEGMENT = (
    "99c76cfe3e92d4193893cdd18549f327eb5043f0b652c0549cfb719299015d5f",
    "20b380d201201aca1dba1028726d6bfcca7e702c2cb365d10699bc226e7d6be2",
)
"""Digest of the card, and checksum of the arrays, that were published in format 1."""


def test_published_records_still_name_the_numbers_in_the_package() -> None:
    backend = make_backend("tabular", get_task("LR-Segment-v0"))
    former = {f"table-sha256:{sha256}" for sha256 in SEGMENT}
    assert former < {*backend.former_fingerprints}
    assert backend.fingerprint not in former
    card = EMBEDDED / "GNN-Cora-v1-fedavg.surrogate.json"
    assert _is_fitted(card, open_sample("GNN-Cora-fedavg"))


def test_former_names_are_covered_by_the_digest(tmp_path: Path) -> None:
    card = EMBEDDED / "LR-Segment-fedavg.table.json"
    text = card.read_text(encoding="utf-8").replace(Table(card).former[1], "0" * 64)
    changed = tmp_path / card.name
    changed.write_text(text, encoding="utf-8")
    with pytest.raises(DamagedDataError, match="digest"):
        Table(changed)
