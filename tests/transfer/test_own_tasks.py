"""FedHPO-B behind HPO-B's interface: methods written for HPO-B run on our tasks unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import InvalidArgumentError, MissingDataError
from fedhpo_gym.stored.meta_data import open_meta_data
from fedhpo_gym.transfer import HPOBHandler
from made_meta_data import OWN, SHARED

POOL = SHARED + OWN


pytestmark = pytest.mark.usefixtures("only_made_meta_data")


class LastOfPending:
    """A method as HPO-B's users write it."""

    def observe_and_suggest(self, X_obs: Any, y_obs: Any, X_pen: Any = None) -> int:  # noqa: N803
        assert np.shape(X_obs)[1] == np.shape(X_pen)[1]
        assert len(X_obs) == len(y_obs)
        return len(X_pen) - 1


def test_a_method_of_hpob_runs_unchanged() -> None:
    handler, data = HPOBHandler(), open_meta_data("LR")
    assert handler.get_search_spaces() == ["LR"]
    assert sorted(handler.get_datasets("LR")) == ["Tuna", "Wine-5-label"]
    found = handler.evaluate(LastOfPending(), "LR", "Tuna", "test2", n_trials=6)
    task = data.index("Tuna")
    scores = data.scores[task, :, -1, -1]
    scaled = (scores - scores.min()) / np.ptp(scores)
    observed = data.arrays["initial"][task, 2].tolist()
    expected = [max(scaled[observed])]
    for place in [place for place in reversed(range(POOL)) if place not in observed][:6]:
        observed.append(place)
        expected.append(max(scaled[observed]))
    assert found == pytest.approx(expected)


def test_tables_are_features_and_scores() -> None:
    handler, data = HPOBHandler(mode="v3"), open_meta_data("LR")
    assert handler.meta_train_data is not None
    table = handler.meta_train_data["LR"]["MplsStops"]
    task = data.index("MplsStops")
    np.testing.assert_array_equal(table["X"], data.features[task])
    np.testing.assert_array_equal(np.ravel(table["y"]), data.scores[task, :, -1, -1])
    assert handler.get_search_space_dim("LR") == data.features.shape[2] == 15
    point = data.features[task, 4]
    decoded, known = handler.decode("LR", point), data.configuration(task, 4)
    assert decoded.keys() == known.keys()
    for name, value in known.items():
        same = value if isinstance(value, str) else pytest.approx(value, rel=1e-5)
        assert decoded[name] == same


def test_more_training_tasks_are_those_of_the_lower_rate() -> None:
    plain, more = HPOBHandler(mode="v3"), HPOBHandler(mode="v3-train-augmented")
    assert plain.meta_train_data is not None
    assert more.meta_train_data is not None
    added = {*more.meta_train_data["LR"]} - {*plain.meta_train_data["LR"]}
    assert added == {f"{name}@lower-rate" for name in plain.meta_train_data["LR"]}
    own = np.ravel(plain.meta_train_data["LR"]["MplsStops"]["y"])
    lower = np.ravel(more.meta_train_data["LR"]["MplsStops@lower-rate"]["y"])
    assert (lower <= own).all()
    assert (lower < own).any()
    everything = HPOBHandler(mode="v2")
    assert len(everything.get_datasets("LR")) == 6
    run = HPOBHandler(mode="v1").evaluate
    assert len(run(LastOfPending(), "LR", "MplsStops@lower-rate", "test0", n_trials=3)) == 4


@pytest.mark.parametrize("point", [np.zeros(14), np.zeros((0, 15)), np.full(15, 7.0)])
def test_a_point_of_another_shape_is_refused(point: np.ndarray) -> None:
    with pytest.raises(InvalidArgumentError, match="`x` must be 15 numbers"):
        HPOBHandler().decode("LR", point)


def test_what_has_no_surrogate_says_so() -> None:
    with pytest.raises(MissingDataError, match="no surrogate"):
        HPOBHandler().evaluate_continuous(LastOfPending(), "LR", "Tuna", "test0", n_trials=2)
