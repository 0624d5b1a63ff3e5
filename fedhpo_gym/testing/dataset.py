"""The laws of a data set."""
# ruff: noqa: S101 - asserting is what a law does

from __future__ import annotations

import hashlib
from typing import ClassVar

import numpy as np
import pytest

from fedhpo_gym.errors import MissingDataError, MissingDependencyError
from fedhpo_gym.fl.datasets import TABLE_SOURCES, DataTable, TableSource, load_table
from fedhpo_gym.fl.federation import make_federation

SEEDS = (1, 2, 3)


class DatasetConformance:
    """Laws of a data set in the catalogue. They are skipped where its files are not.

    Attributes:
        name: key in `TABLE_SOURCES`.
    """

    name: ClassVar[str]

    @property
    def source(self) -> TableSource:
        """The entry in the catalogue."""
        return TABLE_SOURCES[self.name]

    def load(self) -> DataTable:
        """Return the table, or skip the law."""
        try:
            return load_table(self.name)
        except (MissingDataError, MissingDependencyError) as error:
            pytest.skip(str(error))

    def test_its_entry_says_where_it_comes_from(self) -> None:
        source = self.source
        assert source.name == self.name
        assert source.licence
        assert source.citation
        assert source.openml_task is not None or source.sklearn is not None
        if source.file is not None:
            assert source.sha256 is not None, "a file without a checksum"
            assert len(source.sha256) == 64

    def test_it_has_the_documented_shape(self) -> None:
        table, source = self.load(), self.source
        assert len(table.features) == len(table.labels) == source.num_rows
        assert table.num_classes == source.num_classes
        assert set(table.labels.tolist()) == set(range(source.num_classes))
        assert str(table.features.dtype) == "float64"
        assert str(table.labels.dtype) == "int64"
        assert np.isfinite(table.features).all()

    def test_no_feature_is_the_label(self) -> None:
        table = self.load()
        for column in table.features.T:
            assert not np.array_equal(column, table.labels)

    def test_nobody_can_write_into_it(self) -> None:
        table = self.load()
        assert not table.features.flags.writeable
        assert not table.labels.flags.writeable

    def test_its_fingerprint_is_that_of_its_content(self) -> None:
        first = self.load()
        content = first.features.tobytes() + first.labels.tobytes()
        assert first.fingerprint == hashlib.sha256(content).hexdigest()
        load_table.cache_clear()
        again = self.load()
        assert again is not first
        assert again.fingerprint == first.fingerprint

    @pytest.mark.parametrize("seed", SEEDS)
    def test_it_can_be_federated(self, seed: int) -> None:
        table = self.load()
        federation = make_federation(table, seed)
        rows = np.concatenate([part for client in federation.clients for part in client])
        assert sorted(rows.tolist()) == list(range(len(table.labels)))
