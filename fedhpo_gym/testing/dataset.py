"""The laws of a data set."""
# ruff: noqa: S101 - asserting is what a law does

from __future__ import annotations

import hashlib
from typing import ClassVar

import numpy as np
import pytest

from fedhpo_gym.core.errors import MissingDataError, MissingDependencyError
from fedhpo_gym.data import SOURCES, Dataset, Source, SparseRows, load_dataset
from fedhpo_gym.data.federation import make_federation

SEEDS = (1, 2, 3)
DTYPES = {"float64", "float32", "uint8", "int16", "int32"}


class DatasetConformance:
    """Laws of a data set in the catalogue. They are skipped where its files are not.

    Attributes:
        name: key in `SOURCES`.
    """

    name: ClassVar[str]

    @property
    def source(self) -> Source:
        """The entry in the catalogue."""
        return SOURCES[self.name]

    def load(self) -> Dataset:
        """Return the data set, or skip the law."""
        try:
            return load_dataset(self.name)
        except (MissingDataError, MissingDependencyError) as error:
            pytest.skip(str(error))

    def test_its_entry_says_where_it_comes_from(self) -> None:
        source = self.source
        assert source.name == self.name
        assert source.licence
        assert source.citation
        assert source.origin

    def test_it_has_the_documented_shape(self) -> None:
        dataset, source = self.load(), self.source
        assert len(dataset.features) == len(dataset.labels) > 0
        assert source.num_rows in (None, len(dataset.labels))
        assert dataset.num_classes == source.num_classes
        assert set(dataset.labels.tolist()) <= set(range(source.num_classes))
        assert str(dataset.features.dtype) in DTYPES
        assert str(dataset.labels.dtype) == "int64"
        assert all(np.isfinite(array).all() for array in dataset.arrays)

    def test_every_sample_has_its_user_and_split(self) -> None:
        dataset = self.load()
        if dataset.users is not None:
            assert str(dataset.users.dtype) == "int64"
            assert len(dataset.users) == len(dataset.labels)
            assert set(dataset.users.tolist()) == set(range(dataset.users.max() + 1))
        if dataset.fixed_split is not None:
            assert str(dataset.fixed_split.dtype) == "int8"
            assert len(dataset.fixed_split) == len(dataset.labels)
            assert set(dataset.fixed_split.tolist()) <= {-1, 0, 1, 2}

    def test_no_feature_is_the_label(self) -> None:
        dataset = self.load()
        if isinstance(dataset.features, SparseRows) or dataset.features.ndim > 2:
            pytest.skip("features are no columns")
        for column in dataset.features.T:
            assert not np.array_equal(column, dataset.labels)

    def test_nobody_can_write_into_it(self) -> None:
        assert not any(array.flags.writeable for array in self.load().arrays)

    def test_its_fingerprint_is_that_of_its_content(self) -> None:
        first = self.load()
        content = b"".join(array.tobytes() for array in first.arrays)
        assert first.fingerprint == hashlib.sha256(content).hexdigest()
        load_dataset.cache_clear()
        again = self.load()
        assert again is not first
        assert again.fingerprint == first.fingerprint

    @pytest.mark.parametrize("seed", SEEDS)
    def test_it_can_be_federated(self, seed: int) -> None:
        dataset = self.load()
        if dataset.users is not None:
            pytest.skip("its users are the clients")
        federation = make_federation(dataset, seed)
        rows = np.concatenate([part for client in federation.clients for part in client])
        assert sorted(rows.tolist()) == list(range(len(dataset.labels)))
