"""A stored meta-data set: its pools are what was computed, in an order that says nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.building import meta_data
from fedhpo_gym.core.errors import DamagedDataError, MissingDataError, UnknownNameError
from fedhpo_gym.stored.meta_data import LOSS, MetaData, explained_entropy, open_meta_data
from fedhpo_gym.tasks.meta import META_SPACES
from made_meta_data import NAMES, OWN, SHARED, made_tasks, write_made


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_made(tmp_path_factory.mktemp("meta"))


def test_a_place_of_a_pool_is_one_configuration_and_its_values(card: Path) -> None:
    data, arrays = MetaData(card), MetaData(card).arrays
    assert sorted(data.names) == sorted(NAMES)
    for task in range(len(NAMES)):
        assert sorted(arrays["order"][task].tolist()) == [*range(SHARED + OWN)]
        for place in (0, 7, SHARED + OWN - 1):
            stored = int(arrays["order"][task, place])
            configuration = data.configuration(task, place)
            encoded = data.space.encode(configuration)
            assert data.actions[task, place].tolist() == encoded.tolist()
            row = [configuration.get(name, np.nan) for name in data.space.names]
            known = arrays["shared"][stored] if stored < SHARED else None
            known = arrays["own"][task, stored - SHARED] if known is None else known
            numbers = data.space.numbers(configuration)
            row = [numbers.get(name, np.nan) for name in data.space.names]
            np.testing.assert_array_equal(row, known)
            measured = data.values[task, place, ..., :-3]
            np.testing.assert_array_equal(measured, arrays["values"][task, stored])
            np.testing.assert_array_equal(
                data.values[task, place, ..., -3:], arrays["costs"][task, stored]
            )
    orders = {tuple(order) for order in arrays["order"].tolist()}
    assert len(orders) == len(NAMES)


def test_scores_are_explained_entropy(card: Path) -> None:
    data = MetaData(card)
    losses = data.values[..., data.objectives.index(LOSS)]
    task, place = np.unravel_index(losses[:, :, -1, -1].argmin(), losses.shape[:2])
    entropy = made_tasks()[task].task.label_entropy
    expected = 1.0 - losses[task, place, -1, -1] / entropy
    assert data.scores[task, place, -1, -1] == pytest.approx(expected)
    assert (data.scores[losses > 1e30] == 0.0).all()
    assert (losses > 1e30).any()
    assert explained_entropy(np.array([0.5, 2.0]), np.array([1.0, 1.0])).tolist() == [0.5, 0.0]


@pytest.mark.parametrize("space", META_SPACES)
def test_more_rounds_never_raise_a_loss_unless_training_diverges(space: str) -> None:
    """A trial has all its values from the best of its rounds."""
    losses, test_losses = np.moveaxis(open_meta_data(space).values[..., :2], -1, 0)
    later, steps = losses[..., 1:], np.diff(losses, axis=-1)
    diverged = np.float32(later) == np.finfo(np.float32).max
    assert (steps[~diverged] <= 0).all()
    same = (steps == 0) & ~diverged
    assert same.sum() > 10_000
    assert (np.diff(test_losses, axis=-1)[same] == 0).all()


def test_source_tasks_leave_out_a_survey(card: Path) -> None:
    data = MetaData(card)
    everything = data.source_tasks()
    assert {one.name for one in everything} == {"CreditG-5-label", "Car-5-label", "MplsStops"}
    fewer = data.source_tasks("train", {"Minneapolis police"})
    assert {one.name for one in fewer} == {"CreditG-5-label", "Car-5-label"}
    index = data.index("Car-5-label")
    own = next(one for one in fewer if one.name == "Car-5-label")
    np.testing.assert_array_equal(own.scores, data.scores[index, :, -1, -1])


def test_initial_designs_are_five_times_five_places(card: Path) -> None:
    initial = MetaData(card).arrays["initial"]
    assert initial.shape == (len(NAMES), 5, 5)
    assert initial.max() < SHARED + OWN
    assert all(len({*design}) == 5 for design in initial.reshape(-1, 5).tolist())


def test_equal_parts_give_equal_files(card: Path, tmp_path: Path) -> None:
    other = write_made(tmp_path / "again")
    assert MetaData(other).fingerprint == MetaData(card).fingerprint
    assert sorted(path.name for path in card.parent.glob("*.npz")) == sorted(
        path.name for path in other.parent.glob("*.npz")
    )


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDHPO_GYM_TABLES", str(tmp_path))
    path = write_made(tmp_path / "made")
    path.rename(tmp_path / path.name)
    assert open_meta_data("LR").names
    with pytest.raises(UnknownNameError, match="search space"):
        open_meta_data("SVM")
    with pytest.raises(DamagedDataError, match="meta-data LR"):
        _ = MetaData(tmp_path / path.name).arrays
    with pytest.raises(MissingDataError, match="same command again"):
        meta_data._read_task(tmp_path / "nothing.npz")
