"""What train and test instances have in common, and what not: the documentation is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.data import Dataset, load_dataset, make_dataset
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.partitions import PARTITIONS, get_partition
from fedhpo_gym.data.ratings import make_ratings, ratings_dataset
from fedhpo_gym.tasks import TASKS
from fedhpo_gym.tasks.federated import DRAWN_ANEW, TEST_SEEDS, TRAIN_SEEDS

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "environments.md"


def table() -> Dataset:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1000, 3))
    return make_dataset("made", features, rng.integers(2, size=1000), 2)


def ratings() -> Dataset:
    return ratings_dataset("made", make_ratings(num_users=40, num_items=30, mean_ratings=12.0))


def drawn(federation: Federation, what: str) -> list[frozenset[int]]:
    """Return the samples of every client, or of every client's training data."""
    if what == "split":
        return [frozenset(client[0].tolist()) for client in federation.clients]
    return [frozenset(np.concatenate(client).tolist()) for client in federation.clients]


@pytest.mark.parametrize(
    ("partition", "data", "clients"),
    [
        ("lda", table, 5),
        ("user", ratings, 40),
        ("user-80-10-10", ratings, 40),
        ("unseen", ratings, 20),
    ],
)
def test_what_a_seed_draws(partition: str, data: Any, clients: int) -> None:
    compare(partition, data(), clients)


@pytest.mark.parametrize(
    ("partition", "name", "libraries"),
    [("community", "Cora", ["networkx", "scipy"]), ("task", "GraphDC", ["rdkit"])],
)
def test_what_a_seed_draws_of_graphs(
    partition: str,
    name: str,
    libraries: list[str],
    shared_datasets: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for library in libraries:
        pytest.importorskip(library)
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(shared_datasets))
    compare(partition, load_dataset(name), 5)


def compare(partition: str, data: Dataset, clients: int) -> None:
    one, other = (
        get_partition(partition)(data, seed, clients, 0.5, "label_encoded")
        for seed in (TRAIN_SEEDS[0], TEST_SEEDS[0])
    )
    for what in ("clients", "split"):
        anew = drawn(one, what) != drawn(other, what)
        assert anew == (what in DRAWN_ANEW[partition])


def test_every_partition_says_what_it_draws() -> None:
    assert set(DRAWN_ANEW) == set(PARTITIONS)
    assert {task.partition for task in TASKS.values()} <= set(DRAWN_ANEW)


def test_the_guide_names_the_problems_whose_clients_stay() -> None:
    text = " ".join(GUIDE.read_text(encoding="utf-8").split())
    assert "do not overlap" not in text
    begin = text.index("Where users or tasks are the clients")
    sentence = text[begin : text.index("same clients.", begin)]
    for task in TASKS.values():
        stays = "clients" not in DRAWN_ANEW[task.partition]
        named = task.dataset in sentence or ("ratings" in task.tags and "ratings" in sentence)
        assert stays == named, task.name


def test_a_guess_of_the_middle_star() -> None:
    """Stars 1 to 5, all equally frequent, against a constant 3: (4 + 1 + 0 + 1 + 4) / 5."""
    for task in TASKS.values():
        expected = 2.0 if task.model == "MF" else np.log(task.num_classes)
        assert task.chance_loss == expected
