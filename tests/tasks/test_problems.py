"""What any tuning problem has, shown on one for which nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.identity import Identity
from fedhpo_gym.data import Dataset, load_dataset, make_dataset
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.data.partitions import PARTITIONS, get_partition
from fedhpo_gym.data.ratings import make_ratings, ratings_dataset
from fedhpo_gym.evaluation.records import (
    CLASSIFICATION,
    Evaluation,
    Evaluations,
    Fidelity,
    MetricSpec,
)
from fedhpo_gym.objectives import NO_PRIVACY, OBJECTIVES
from fedhpo_gym.objectives.performance import performance_objective
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.tasks import TASKS, Problem, Task, get_task
from fedhpo_gym.tasks.federated import TEST_SEEDS, TRAIN_SEEDS

DRAWN_ANEW = {
    "lda": {"clients", "split"},
    "community": {"clients", "split"},
    "user": {"split"},
    "user-80-10-10": {"split"},
    "skewed": {"clients", "split"},
    "unseen": {"clients", "split"},
    "task": {"split"},
}
"""What the seed of an instance draws of the data, by partition."""

STARS = MetricSpec("squared_error", "stars^2", True, (0.0, 16.0))
HITS = MetricSpec("hits", "1", False, (0.0, 0.5), complement="misses")


@dataclass(frozen=True, kw_only=True)
class Recorded(Problem):
    """A problem whose results somebody else has published."""

    suite: str

    @property
    def name(self) -> str:
        """Name of the suite."""
        return f"Recorded-{self.suite}"

    @property
    def space(self) -> SearchSpace:
        """One number."""
        return SearchSpace((Dimension("x", 0.0, 1.0, "float", bins=3),))


def recorded(**changes: Any) -> Recorded:
    """Return the problem, with other fields where they are given."""
    fidelities = SearchSpace((Dimension("epoch", 1, 9, "int", bins=3, scope="fidelity"),))
    fields = {"suite": "A", "fidelity_space": fidelities, "budget_s": 60.0, "citation": "nobody"}
    return Recorded(**{**fields, **changes})


def test_a_problem_needs_no_data_model_or_algorithm() -> None:
    problem = recorded(metrics=(STARS, HITS), splits=("val", "test"), seen_splits=("val",))
    assert (problem.id, problem.table_name) == ("FedHPO-Recorded-A-v0", "Recorded-A")
    assert problem.variant(version=2).table_name == "Recorded-A-v2"
    assert problem.metric_names == ("squared_error", "hits")
    assert [d.grid for d in problem.stored_fidelity_space().dimensions] == [(1, 5, 9)]
    identity = problem.identity
    assert identity == Identity("Recorded-A", "Recorded-A", 0)
    assert Identity.from_card(identity.to_card()) == identity
    assert identity.arguments == problem.id


def test_its_objectives_are_those_of_its_metrics() -> None:
    problem = recorded(metrics=(STARS, HITS), splits=("val", "test"), seen_splits=("val",))
    assert {*problem.objectives} - {*OBJECTIVES} == {
        "val_squared_error", "val_misses", "test_squared_error", "test_misses",
    }  # fmt: skip
    assert not [name for name in problem.objectives if "fairness" in name or "loss" in name]
    squared, misses = (problem.objectives[f"val_{name}"] for name in ("squared_error", "misses"))
    assert (squared.unit, squared.minimize, squared.bounds) == ("stars^2", True, (0.0, 16.0))
    assert (misses.unit, misses.minimize, misses.bounds) == ("1", True, (0.5, 1.0))


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.key)
def test_federated_problems_have_the_named_objectives(task: Task) -> None:
    assert isinstance(task, Problem)
    assert list(task.objectives) == list(OBJECTIVES)
    bounds = {name: objective.bounds for name, objective in OBJECTIVES.items()}
    own = {name: objective.bounds for name, objective in task.objectives.items()}
    assert own == {**bounds, "time_s": (0.0, task.budget_s)}
    assert task.metrics == CLASSIFICATION
    assert set(task.seen_splits) < set(task.splits)


def test_an_objective_reads_its_metric() -> None:
    best = np.arange(9.0).reshape(1, 1, 3, 3) / 10
    ones = np.ones((1, 1, 3), dtype=np.int64)
    flags = np.zeros(1, dtype=np.bool_)
    one = Evaluation(best, None, ones, np.ones(1, np.int64), flags, (1,), Fidelity(1, 1.0))
    found = Evaluations.stack([one])
    values = {
        f"{split}_{measure}": performance_objective(split, measure).compute(found, NO_PRIVACY)
        for split in ("train", "val", "test")
        for measure in ("loss", "error", "f1")
    }
    assert values["train_loss"] == 0.0
    assert values["val_error"] == pytest.approx(0.6)
    assert values["test_f1"] == pytest.approx(0.8)


def test_the_stored_rounds_are_the_tasks() -> None:
    task = get_task("LR-CreditG-v0").variant(stored_rounds=(2, 7, 9999))
    assert task.stored_fidelity_space()["round"].grid == (2, 7, 500)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": ()}, "`metrics` must be at least one"),
        ({"metrics": (STARS, STARS)}, "`metrics` must be .* different names"),
        ({"seen_splits": ("val", "secret")}, r"`seen_splits` must be among .*'secret'"),
        ({"version": -1}, "`version`"),
        ({"seeds": ()}, "`seeds`"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        recorded(**changes)


@pytest.mark.parametrize("bounds", [(1.0, 0.0), (0.0, float("inf")), (float("nan"), 1.0)])
def test_bounds_of_a_metric_are_finite_and_in_order(bounds: tuple[float, float]) -> None:
    with pytest.raises(InvalidArgumentError, match="`bounds` must be finite and increasing"):
        MetricSpec("x", "1", True, bounds)
    assert STARS.worst == 16.0
    assert HITS.worst == 0.0


# --------------------------------------- what train and test instances have in common, and what not

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
