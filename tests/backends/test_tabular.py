"""Exact look-up: the laws of every backend, and answers that are the table's own cells."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.backends import Backend, make_backend
from fedhpo_gym.backends.tabular import Tabular
from fedhpo_gym.cli import make_parser
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError, OffGridError
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.stored.catalogue import ENV_VAR, open_table
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


@pytest.mark.parametrize(
    ("changes", "fidelity", "message"),
    [
        ({"learning_rate": 0.5}, Fidelity(9, 1.0), r"configuration\['learning_rate'\].*1\.0"),
        ({"batch_size": 33}, Fidelity(9, 1.0), r"configuration\['batch_size'\].*32"),
        ({}, Fidelity(8, 1.0), r"fidelity\['round'\].*6, 9"),
        ({}, Fidelity(9, 0.9), r"fidelity\['client_sample_rate'\].*1\.0"),
    ],
)
def test_nothing_is_ever_the_nearest_neighbour(
    tiny: Task,  # noqa: F811
    changes: dict[str, float],
    fidelity: Fidelity,
    message: str,
) -> None:
    backend = Tabular(tiny)
    configuration = {**backend.space.decode(np.zeros(len(backend.space))), **changes}
    with pytest.raises(OffGridError, match=message):
        backend.evaluate(configuration, fidelity)


def test_a_seed_the_table_has_not(tiny: Task) -> None:  # noqa: F811
    with pytest.raises(InvalidArgumentError, match=r"seed.*\(1, 2, 3\).*got 4.*raw"):
        Tabular(tiny, seed=4)


@pytest.mark.parametrize("variant", [{}, {"algorithm": "fedopt", "alpha": 0.1}])
def test_a_missing_table_names_the_command_that_builds_it(
    variant: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_VAR, str(tmp_path))
    monkeypatch.setattr("fedhpo_gym.stored.catalogue.EMBEDDED", tmp_path)
    with pytest.raises(MissingDataError, match="raw") as caught:
        make_backend("tabular", get_task("LR-Car-v0").variant(**variant))
    (command,) = re.findall(r"`fedhpo-gym (build [^`]*)`", str(caught.value))
    parsed = make_parser().parse_args(command.split())
    assert parsed.id == "FedHPO-LR-Car-v0"
    assert parsed.algorithm == variant.get("algorithm", "fedavg")
    assert parsed.alpha == variant.get("alpha", 0.5)
