"""Sparse rows by very many users: equal to dense rows, users without data, users left out."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.building.design import encode_curves  # noqa: E402
from fedhpo_gym.data.federation import Federation, make_user_federation  # noqa: E402
from fedhpo_gym.data.records import Dataset, SparseRows, make_dataset  # noqa: E402
from fedhpo_gym.evaluation.records import (  # noqa: E402
    METRICS,
    SPLITS,
    Evaluation,
    Evaluations,
    Fidelity,
    best_rounds,
)
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch, Curves  # noqa: E402
from fedhpo_gym.fl.models import LogisticRegression  # noqa: E402
from fedhpo_gym.objectives import COST_NAMES, NO_PRIVACY, OBJECTIVES, Spending  # noqa: E402
from plain_course import plain_course  # noqa: E402

WORDS = 30


def bags(users: int = 40) -> tuple[Dataset, Dataset]:
    """Return the same rows sparse and dense; user i has 1 to 9 of them, some without a word."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(users), rng.integers(1, 10, users))
    dense = rng.poisson(0.15, (len(owner), WORDS)).astype(np.float32)
    dense[3] = 0.0
    labels = (dense[:, 0] + dense[:, 1] + rng.normal(size=len(owner)) > 0.3).astype(np.int64)
    row, column = np.nonzero(dense)
    rows = SparseRows(
        np.searchsorted(row, np.arange(len(dense) + 1)),
        column.astype(np.int32),
        dense[row, column],
        WORDS,
    )
    sparse = make_dataset("made", rows, labels, 2, owner)
    return sparse, Dataset("made", dense, labels.copy(), 2, "", owner)


@pytest.fixture(scope="module")
def federations() -> tuple[Federation, Federation]:
    sparse, dense = (make_user_federation(data, 1, fractions=(0.8, 0.1)) for data in bags())
    return sparse, dense


def course(
    rate: float = 0.5, decay: float = 0.001, epochs: int = 2, sampled: float = 0.3
) -> Course:
    configuration = {"learning_rate": rate, "weight_decay": decay, "step_size": epochs}
    return Course(configuration, sampled, 1)


def run(federation: Federation, courses: list[Course], rounds: int = 5) -> Curves:
    algorithm = get_algorithm("fedavg")
    return CourseBatch({1: federation}, LogisticRegression, algorithm, courses).advance(rounds)


MIXED = [
    course(r, w, e, s) for r in (0.1, 2.0) for w in (0.0, 0.1) for e, s in ((1, 0.1), (3, 1.0))
]


def test_sparse_rows_train_as_dense_rows_do(federations: tuple[Federation, Federation]) -> None:
    small = Course({**course().configuration, "batch_size": 2}, 0.5, 1)
    sparse, dense = (run(federation, [*MIXED, small]).metrics for federation in federations)
    np.testing.assert_allclose(sparse, dense, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("index", range(0, len(MIXED), 3))
def test_sparse_rows_train_as_plain_fedavg_does(index: int) -> None:
    sparse, dense = (make_user_federation(data, 1, num_users=12) for data in bags())
    found = run(sparse, [MIXED[index]], 2).metrics[0]
    expected = plain_course(dense, [MIXED[index]] * 2).metrics
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def test_users_with_too_few_samples_leave_splits_empty_and_nothing_undefined(
    federations: tuple[Federation, Federation],
) -> None:
    federation = federations[0]
    samples = federation.num_samples
    assert (samples == 0).any(axis=0).tolist() == [False, True, True]
    curves = run(federation, [course()])
    assert np.isfinite(curves.metrics).all()
    assert (curves.metrics[:, :, samples == 0] == 0).all()
    best = best_rounds(curves.metrics, samples)[0, -1]
    metrics = curves.metrics[:, best]
    answer = Evaluation(
        metrics,
        None,
        samples[None],
        curves.rounds[[best]],
        np.zeros(1, dtype=bool),
        (1,),
        Fidelity(5, 0.3),
    )
    present = samples[:, 1] > 0
    expected = np.average(metrics[0, present, 1, 0], weights=samples[present, 1])
    assert answer.mean("val", "loss") == pytest.approx(expected)
    answers = Evaluations.stack([answer])
    spent = Spending(NO_PRIVACY, lambda: dict.fromkeys(COST_NAMES, 1.0))
    for objective in OBJECTIVES.values():
        assert np.isfinite(objective.compute(answers, spent)[0]), objective.name
    assert (
        OBJECTIVES["fairness_worst"].compute(answers, NO_PRIVACY)[0]
        == metrics[0, present, 1, 1].min()
    )
    for name, codes in encode_curves(
        curves.metrics, curves.rounds, np.array([1, 5]), samples, (SPLITS, METRICS)
    ):
        assert codes.dtype.kind == "u", name


def test_a_federation_of_some_users_takes_the_same_ones_under_every_seed() -> None:
    data = bags()[0]
    assert data.users is not None
    several = [make_user_federation(data, seed, num_users=12) for seed in (1, 2)]
    owners = [
        [{int(data.users[row]) for rows in client for row in rows} for client in one.clients]
        for one in several
    ]
    assert owners[0] == owners[1]
    assert all(len(owner) == 1 for owner in owners[0])
    assert len(set.union(*owners[0])) == 12
    assert (several[0].num_samples >= 1).all()
    assert several[0].clients[0][0].tolist() != several[1].clients[0][0].tolist()
    assert make_user_federation(data, 1, num_users=40).num_clients == 40
    assert make_user_federation(data, 1, num_users=41).num_clients == 40
