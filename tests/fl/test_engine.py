"""Laws of the engine: parity with plain FedAvg, batch invariance, isolation, determinism."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.data import Dataset  # noqa: E402
from fedhpo_gym.data.federation import Federation, make_federation  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch, Curves  # noqa: E402
from fedhpo_gym.fl.models import LogisticRegression  # noqa: E402
from fedhpo_gym.fl.models.torch_model import sum_classes  # noqa: E402
from plain_course import plain_course  # noqa: E402

Federations = dict[int, Federation]


@pytest.fixture(scope="module", params=[2, 3], ids=["2-classes", "3-classes"])
def federations(request: pytest.FixtureRequest) -> Federations:
    classes = request.param
    rng = np.random.default_rng(classes)
    labels = rng.integers(classes, size=700)
    features = rng.normal(size=(700, 7)) * 3 + labels[:, None]
    table = Dataset("made", features, labels, classes, "")
    return {seed: make_federation(table, seed) for seed in (1, 2)}


def course(
    lr: float = 0.1,
    wd: float = 0.001,
    batch: int = 16,
    epochs: int = 2,
    rate: float = 1.0,
    seed: int = 1,
    **server: float,
) -> Course:
    config = {"learning_rate": lr, "weight_decay": wd, "batch_size": batch, "step_size": epochs}
    return Course({**config, **server}, rate, seed)


def run(
    federations: Federations, courses: list[Course], rounds: int = 6, algorithm: str = "fedavg"
) -> Curves:
    batch = CourseBatch(federations, LogisticRegression, get_algorithm(algorithm), courses)
    return batch.advance(rounds)


MIXED = [
    course(lr, wd, batch, epochs, rate, seed)
    for (lr, wd), (batch, epochs), (rate, seed) in itertools.product(
        [(0.01, 0.0), (0.3, 0.001)], [(4, 1), (16, 3), (256, 2)], [(0.2, 1), (0.6, 2), (1.0, 1)]
    )
]


@pytest.mark.fast(5)
@pytest.mark.parametrize("index", range(0, len(MIXED), 4))
def test_engine_equals_plain_fedavg(federations: Federations, index: int) -> None:
    chosen = MIXED[index]
    expected = plain_course(federations[chosen.seed], [chosen] * 6).metrics
    found = run(federations, MIXED).metrics[index]
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("momentum", "rate"), [(0.9, 0.5), (0.0, 1.0)])
def test_fedopt_equals_plain_server_sgd(
    federations: Federations, momentum: float, rate: float
) -> None:
    chosen = course(server_momentum=momentum, server_learning_rate=rate)
    expected = plain_course(federations[1], [chosen] * 6, "fedopt").metrics
    found = run(federations, [chosen], algorithm="fedopt").metrics[0]
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def test_advancing_in_parts_equals_advancing_at_once(federations: Federations) -> None:
    whole = run(federations, MIXED, 6).metrics
    batch = CourseBatch(federations, LogisticRegression, get_algorithm("fedavg"), MIXED)
    parts = [batch.advance(n).metrics for n in (1, 2, 3)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


def test_a_snapshot_can_be_continued_again_and_again(federations: Federations) -> None:
    courses = [*MIXED, course(lr=1e30, wd=1e30)]
    batch = CourseBatch(federations, LogisticRegression, get_algorithm("fedavg"), courses)
    batch.advance(2)
    snapshot = batch.snapshot()
    first = batch.advance(3)
    batch.restore(snapshot)
    again = batch.advance(3)
    np.testing.assert_array_equal(again.metrics, first.metrics)
    np.testing.assert_array_equal(again.diverged_at, first.diverged_at)


def test_a_diverged_course_is_frozen_and_touches_no_neighbour(federations: Federations) -> None:
    wild = course(lr=1e30, wd=1e30)
    calm = [course(lr=lr) for lr in (0.01, 0.1)]
    curves = run(federations, [calm[0], wild, calm[1]])
    np.testing.assert_array_equal(curves.metrics[[0, 2]], run(federations, calm).metrics)
    assert curves.diverged_at[1] >= 1
    assert (curves.diverged_at[[0, 2]] == 0).all()
    assert np.isfinite(curves.metrics).all()
    stopped = curves.metrics[1, curves.diverged_at[1] - 1 :]
    assert (stopped == stopped[0]).all()
    assert ((curves.metrics[..., 1:] >= 0) & (curves.metrics[..., 1:] <= 1)).all()


@pytest.mark.parametrize("classes", [1, 2, 4, 5, 7, 10, 15, 16, 62])
@pytest.mark.parametrize("columns", [1, 5, 16, 48, 64, 97, 320, 2708])
def test_classes_are_summed_one_after_the_other(classes: int, columns: int) -> None:
    values = torch.rand((classes, 3, columns), generator=torch.Generator().manual_seed(0))
    alone = torch.cat([sum_classes(values[:, i : i + 1].contiguous()) for i in range(3)])
    assert torch.equal(sum_classes(values), alone)
    expected = np.add.accumulate(values.numpy(), axis=0)[-1]
    np.testing.assert_array_equal(alone.numpy(), expected)


def test_the_seed_matters(federations: Federations) -> None:
    one, two = run(federations, [course(seed=1), course(seed=2)]).metrics
    assert not np.array_equal(one, two)
