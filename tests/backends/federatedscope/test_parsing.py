"""What FederatedScope says of its clients, as arrays."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from federatedscope_pretended import RECORDED
from fedhpo_gym.backends.federatedscope.parsing import client_metrics, is_finite, sample_counts
from fedhpo_gym.errors import WorkerLostError
from fedhpo_gym.evaluation.records import METRICS, SPLITS

COUNTS = np.ones((2, 3), dtype=np.int64)
NAMES = [f"{split}_{name}" for split in SPLITS for name in ("avg_loss", "acc", "f1")]


def said(values: NDArray[np.floating]) -> dict[str, dict[str, float]]:
    """Return what clients with (clients, splits, metrics) would say."""
    return {
        str(client + 1): dict(zip(NAMES, of_client.ravel().tolist(), strict=True))
        for client, of_client in enumerate(values)
    }


numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(numbers, min_size=18, max_size=18))
def test_a_round_trip_over_the_wire(values: list[float]) -> None:
    wanted = np.array(values, dtype=np.float32).reshape(2, len(SPLITS), len(METRICS))
    heard = json.loads(json.dumps(said(wanted)))
    found = client_metrics(heard, COUNTS)
    np.testing.assert_array_equal(found, wanted)
    assert is_finite(found) == np.isfinite(wanted).all()


def test_a_split_without_samples_is_not_asked_for() -> None:
    counts = np.array([[3, 0, 1], [2, 2, 2]])
    clients = said(np.ones((2, 3, 3)))
    for name in [name for name in clients["1"] if name.startswith("val")]:
        del clients["1"][name]
    found = client_metrics(clients, counts)
    assert (found[0, 1] == 0).all()
    assert (np.delete(found.reshape(6, 3), 1, axis=0) == 1).all()


def change(clients: Any, what: str) -> Any:
    if what == "a client":
        del clients["2"]
    elif what == "a metric":
        del clients["1"]["val_acc"]
    elif what == "text":
        clients["1"]["val_acc"] = "np.float64(0.5)"
    elif what == "a list":
        return list(clients)
    elif what == "a client too many":
        clients["3"] = clients["2"]
    elif what == "no mapping":
        clients["1"] = 0.5
    return clients


@pytest.mark.parametrize(
    "what", ["a client", "a metric", "text", "a list", "a client too many", "no mapping"]
)
def test_what_is_not_understood_is_an_error(what: str) -> None:
    with pytest.raises(WorkerLostError, match="unreadable"):
        client_metrics(change(said(np.ones((2, 3, 3))), what), COUNTS)


@pytest.mark.parametrize("name", ["current", "v0.1"])
def test_recorded_counts_are_those_of_the_federation(name: str) -> None:
    recorded = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    course = recorded["courses"][0]
    counts = sample_counts(course["first"], 5)
    assert counts.sum() == 569  # rows of the data set: nothing is lost on the way
    for message in course["rounds"]:
        np.testing.assert_array_equal(sample_counts(message["clients"], 5), counts)
        assert client_metrics(message["clients"], counts).shape == (5, 3, 3)
