"""The tasks of FedHPO-B: many, in three spaces, and split so that nothing is on two sides."""

from __future__ import annotations

import pytest

from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.tasks import get_task
from fedhpo_gym.tasks.meta import META_SPACES, META_SPLITS, in_space, meta_tasks, survey_of

FEWEST = {"LR": 70, "Joint": 40, "Private": 24}


@pytest.mark.parametrize("space", META_SPACES)
def test_a_space_has_many_tasks_of_one_search_space(space: str) -> None:
    tasks = meta_tasks(space)
    assert len({one.name for one in tasks}) == len(tasks) >= FEWEST[space]
    assert len({one.task.space for one in tasks}) == 1
    assert len({one.task.evaluated_rounds for one in tasks}) == 1
    assert {one.split for one in tasks} == {*META_SPLITS}


def test_no_data_set_and_no_survey_is_in_two_splits() -> None:
    splits: dict[str, set[str]] = {}
    for one in (one for space in META_SPACES for one in meta_tasks(space)):
        assert survey_of(one.task.dataset) == one.survey
        for name in (f"survey {one.survey}", f"data {one.task.dataset}"):
            splits.setdefault(name, set()).add(one.split)
    assert {name: found for name, found in splits.items() if len(found) > 1} == {}
    assert survey_of("Cracker") == survey_of("Tuna") != survey_of("CreditG") == "CreditG"


def test_tables_are_dealt_by_label_and_by_quantity() -> None:
    pytest.importorskip("torch")
    from fedhpo_gym.backends.training import task_federation
    from fedhpo_gym.building.meta_data import FEATURES, meta_features

    skew, bundled = FEATURES.index("label_skew"), {"BreastCancer", "Digits", "Wine", "Iris"}
    found: dict[str, list[float]] = {}
    for one in (one for one in meta_tasks("LR") if one.task.dataset in bundled):
        features = meta_features(one.task, task_federation(one.task, 1))
        found.setdefault(one.name.partition("-")[2], []).append(features[skew])
    for clients in (5, 20, 50):
        label, quantity = (sum(found[f"{clients}-{kind}"]) for kind in ("label", "quantity"))
        assert label > 3 * quantity


def test_any_table_can_be_put_into_a_space() -> None:
    task = get_task("FedHPO-LR-CreditG-v1")
    own = in_space(task, "Joint")
    assert own.space == meta_tasks("Joint")[0].task.space
    assert (own.dataset, own.num_clients, own.alpha) == ("CreditG", 5, task.alpha)
    with pytest.raises(InvalidArgumentError, match="rows of numbers"):
        in_space(get_task("FedHPO-CNN-FEMNIST-v1"), "Joint")
    with pytest.raises(UnknownNameError, match="search space"):
        meta_tasks("SVM")
