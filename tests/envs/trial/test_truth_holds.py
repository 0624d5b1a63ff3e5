"""No query beats a truth: random ones, and those of a search that the truth does not use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.envs.trial import truth
from fedhpo_gym.envs.trial import truth as truths
from fedhpo_gym.testing.truths import TOLERANCE, lowest_regret

SMALL = "FedHPO-LR-CreditG-v1"


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        (SMALL, {}),
        (SMALL, {"backend": "surrogate"}),
        ("FedHPO-GNN-Cora-v1", {"constraints": {"fairness_std": 0.1}}),
    ],
)
def test_no_query_beats_the_truth(env_id: str, arguments: dict[str, Any]) -> None:
    assert lowest_regret(env_id, 3_000, **arguments) >= -TOLERANCE


@pytest.mark.slow
def test_no_query_beats_the_truth_of_a_wide_space() -> None:
    assert lowest_regret("FedHPO-MLP-Car-v1") >= -TOLERANCE


@pytest.mark.slow
def test_a_truth_without_the_search_is_beaten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truths, "STARTS", 1)
    monkeypatch.setattr(truths, "ROUNDS", 1)
    monkeypatch.setattr(truth, "_known", type(truth._known)())
    assert lowest_regret("FedHPO-MLP-Digits-v1", 20_000) < -TOLERANCE


def test_the_search_is_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truths, "MAX_QUERIES", 300)
    monkeypatch.setattr(truths, "ROUNDS", 5)
    found = []
    for _ in range(2):
        monkeypatch.setattr(truth, "_known", type(truth._known)())
        found.append(fedhpo_gym.truth(SMALL, backend="surrogate").values)
    assert np.array_equal(*found)


@pytest.mark.parametrize(("most", "places"), [(truths.MOST_METRICS, 64), (1, 8)])
def test_a_search_starts_from_fewer_places_where_answers_are_large(
    most: int, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truths, "MOST_METRICS", most)
    monkeypatch.setattr(truths, "ROUNDS", 1)
    monkeypatch.setattr(truths, "DRAWS", 100)
    monkeypatch.setattr(truth, "_known", type(truth._known)())
    found = fedhpo_gym.truth(SMALL, backend="surrogate", fidelity={"round": 27})
    assert len(found.values) == found.on_lattice + 100 + places
