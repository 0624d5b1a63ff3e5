"""What FederatedScope says of its clients, as arrays."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from federatedscope_peer import RECORDED
from fedhpo_gym.backends.federatedscope.configuration import (
    client_metrics,
    client_updates,
    is_finite,
    parse_cohorts,
    sample_counts,
)
from fedhpo_gym.core.errors import WorkerLostError
from fedhpo_gym.evaluation.records import METRICS, SPLITS

COUNTS = np.ones((2, 3), dtype=np.int64)
NAMES = [f"{split}_{name}" for split in SPLITS for name in ("avg_loss", "acc", "f1")]


def said(values: NDArray[np.floating]) -> dict[str, dict[str, float]]:
    """Return what clients with (clients, splits, metrics) would say."""
    return {
        str(client + 1): dict(zip(NAMES, of_client.ravel().tolist(), strict=True))
        for client, of_client in enumerate(values)
    }


losses = st.one_of(st.floats(min_value=0.0, width=32, allow_infinity=True), st.just(np.nan))
shares = st.one_of(st.floats(0.0, 1.0, width=32), st.just(np.nan))


@given(st.lists(st.tuples(losses, shares, shares).map(list), min_size=6, max_size=6))
def test_a_round_trip_over_the_wire(values: list[list[float]]) -> None:
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train_avg_loss", -np.inf), ("val_avg_loss", -0.1), ("test_acc", 1.5), ("val_acc", -0.5),
        ("train_f1", np.inf), ("test_f1", -np.inf), ("val_avg_loss", [1.0]), ("val_acc", 10**400),
        ("test_acc", True), ("test_f1", None),
    ],
)  # fmt: skip
def test_what_no_metric_can_be_is_an_error(name: str, value: object) -> None:
    clients: Any = said(np.ones((2, 3, 3)))
    clients["2"][name] = value
    with pytest.raises(WorkerLostError, match=f"`{name}` must be a number"):
        client_metrics(clients, COUNTS)


def test_a_loss_beyond_float32_diverges_and_rounding_is_no_fault() -> None:
    clients = said(np.ones((2, 3, 3)))
    clients["1"] |= {"train_avg_loss": 1e300, "val_acc": 1.0 + 1e-9}
    found = client_metrics(clients, COUNTS)
    assert found[0, 0, 0] == np.inf
    assert found[0, 1, 1] == 1.0


@pytest.mark.parametrize("count", ["3", [3], 2.5, -1, np.inf, np.nan, 10**400, True])
def test_counts_are_whole_numbers(count: object) -> None:
    with pytest.raises(WorkerLostError, match="`val_total` must be"):
        sample_counts({"1": {"train_total": 3.0, "val_total": count}}, 1)


@pytest.mark.parametrize("names", [["1"], ["1", "3"], ["1", "2", "3"], []])
def test_counts_are_of_all_clients_and_no_others(names: list[str]) -> None:
    with pytest.raises(WorkerLostError, match="`clients` must be 1 to 2"):
        sample_counts({name: {"train_total": 3} for name in names}, 2)


@pytest.mark.parametrize(
    "cohort",
    [None, 3, [1, 2], [[1]], [[1], [2], [1]], [[1], [0]], [[1], [3]], [[1], [1, 1]], [[1], []],
     [[1], [True]], [[1], [1.0]], [[1], ["2"]], [[1], [10**400]]],
)  # fmt: skip
def test_cohorts_are_clients_of_each_round(cohort: object) -> None:
    assert parse_cohorts([[1], [2, 1]], 2, 2) == [[0], [1, 0]]
    with pytest.raises(WorkerLostError, match="`cohorts` must be 2 lists"):
        parse_cohorts(cohort, 2, 2)


@pytest.mark.parametrize("name", ["0", "3", "²", "9" * 5000, "-1", ""])
def test_updates_are_of_known_clients(name: str) -> None:
    with pytest.raises(WorkerLostError, match="`clients` must be 1 to 2"):
        list(client_updates({"clients": {name: {}}}, 2))


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
