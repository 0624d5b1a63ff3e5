"""Exact look-up: the laws of every backend, and answers that are the table's own cells."""

from __future__ import annotations

import numpy as np
import pytest

from fedhpo_gym.backends import Backend
from fedhpo_gym.backends.tabular import Tabular
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.stored.catalogue import open_table
from fedhpo_gym.tasks import Task, get_task
from fedhpo_gym.testing import BackendConformance, plain
from stored_files import tiny  # noqa: F401 - a fixture


@pytest.mark.usefixtures("tiny")
class TestTabular(BackendConformance):
    def make(self) -> Backend:
        return Tabular(get_task("LR-BreastCancer-v0"))


@pytest.mark.usefixtures("tiny")
class TestTabularOneSeed(BackendConformance):
    rate = 0.2

    def make(self) -> Backend:
        return Tabular(get_task("LR-BreastCancer-v0"), seed=2)


def test_answers_are_the_cells_of_the_table(tiny: Task) -> None:  # noqa: F811
    backend, table = Tabular(tiny), open_table(tiny.table_name)
    values = table.values("best", "val", "accuracy")
    for index in np.ndindex(*table.space.grid_shape):
        names = zip(table.space.names, index, strict=True)
        configuration = {name: table.space[name].grid[i] for name, i in names}
        for r, rounds in enumerate(table.rounds):
            found = backend.evaluate(configuration, Fidelity(rounds, 1.0))
            expected = values[r, *index, table.rates.index(1.0)]
            np.testing.assert_array_equal(found.clients("val", "accuracy"), expected)


def test_seeds_are_kept_apart(tiny: Task) -> None:  # noqa: F811
    configuration = Tabular(tiny).space.decode(np.zeros(len(tiny.space)))
    fidelity = Fidelity(9, 1.0)
    together = Tabular(tiny).evaluate(configuration, fidelity)
    for row, seed in enumerate(tiny.seeds):
        alone = Tabular(tiny, seed=seed).evaluate(configuration, fidelity)
        np.testing.assert_array_equal(alone.best[0], together.best[row])
        np.testing.assert_array_equal(alone.num_samples[0], together.num_samples[row])
    assert plain(together.best[0]) != plain(together.best[1])


def test_a_seed_the_table_has_not(tiny: Task) -> None:  # noqa: F811
    with pytest.raises(InvalidArgumentError, match=r"seed.*\(1, 2, 3\).*got 4.*raw"):
        Tabular(tiny, seed=4)
