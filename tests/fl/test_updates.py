"""Algorithms whose clients send updates, beside a loop of logistic regression in plain numpy.

The loop shares the draws with the engine (federation, who takes part, minibatches, the first
weights, noise) and no arithmetic: it is in double precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba")

from fedhpo_gym.datasets.records import make_dataset
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.federations.federation import Federation, make_user_federation
from fedhpo_gym.fl.algorithms import get_algorithm
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import LogisticRegression
from fedhpo_gym.fl.packing import Course
from fedhpo_gym.seeding import stream
from plain_draws import client_order, draw_round

ROUNDS = 5
Weights = NDArray[np.float64]


@pytest.fixture(scope="module")
def federation() -> Federation:
    rng = np.random.default_rng(3)
    users = np.repeat(np.arange(6), (50, 31, 25, 20, 9, 3))
    labels = rng.integers(3, size=len(users))
    features = rng.normal(size=(len(users), 4)) * 2 + labels[:, None]
    return make_user_federation(make_dataset("made", features, labels, 3, users), seed=1)


def course(sampled: float = 0.6, **changes: float) -> Course:
    config = {"learning_rate": 0.1, "weight_decay": 0.01, "batch_size": 8, "step_size": 2}
    return Course({**config, **changes}, sampled, 1)


def engine(federation: Federation, algorithm: str, *courses: Course, rounds: int = ROUNDS) -> Any:
    """Return (courses, rounds, clients, splits, metrics)."""
    batch = CourseBatch(
        {1: federation}, LogisticRegression, get_algorithm(algorithm), courses, horizon=ROUNDS
    )
    return batch.advance(rounds).metrics


class Loop:
    """One course, client after client.

    Attributes:
        world: (classes, features + 1) the global model.
    """

    def __init__(self, federation: Federation, course: Course) -> None:
        bound = 1 / np.sqrt(federation.features.shape[1])
        shape = federation.num_classes, federation.features.shape[1] + 1
        drawn = stream(federation.seed, "init").uniform(-bound, bound, shape)
        self.world: Weights = drawn.astype(np.float32).astype(float)
        self.federation, self.course = federation, course
        self.sizes = federation.num_samples[:, 0]
        self.x = np.hstack([federation.features, np.ones((len(federation.features), 1))])
        self.x = self.x.astype(float)

    def __getattr__(self, name: str) -> Any:
        """Return a hyperparameter."""
        return self.course.configuration[name]

    def of(self, name: str, default: float = 0.0) -> float:
        return float(self.course.configuration.get(name, default))

    def rate(self, index: int) -> float:
        return float(self.learning_rate * self.of("rate_decay", 1.0) ** (index / (ROUNDS - 1)))

    def clients(self, index: int) -> list[int]:
        number = Fidelity(0, self.course.client_sample_rate).sampled_clients(len(self.sizes))
        return sorted(client_order(1, index, len(self.sizes))[:number].tolist())

    def error(self, model: Weights, rows: NDArray[np.int64]) -> tuple[Weights, float]:
        """Return the gradient and the value of the mean cross-entropy."""
        z = self.x[rows] @ model.T
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        hits = np.eye(len(model))[self.federation.labels[rows]]
        slope: Weights = (p - hits).T @ self.x[rows] / len(rows)
        return slope, float(-np.log(p[hits > 0]).mean())

    def update(self, client: int, index: int, shift: Any = 0.0) -> tuple[Weights, int]:
        """Return how a client moves the model, and in how many steps."""
        size, epochs = self.course.value("batch_size", 8), int(self.step_size)
        drawn = draw_round(self.federation, index, np.array([client]), size, epochs)
        local, move, steps = self.world.copy(), np.zeros_like(self.world), 0
        for rows, count in zip(drawn.rows[:, 0], drawn.sizes[:, 0], strict=True):
            slope = self.error(local, rows[:count])[0] + self.weight_decay * local + shift
            move = self.of("momentum") * move + slope
            local -= self.rate(index) * move
            steps += 1
        return local - self.world, steps

    def losses(self) -> list[list[float]]:
        """Return (clients, splits)."""
        clients = self.federation.clients
        return [[self.error(self.world, rows)[1] for rows in own] for own in clients]


def same(found: Any, losses: Any) -> None:
    """Compare in single precision; some rounds of training multiply its errors."""
    np.testing.assert_allclose(found[..., 0], np.array(losses), rtol=2e-4, atol=2e-5)


def fednova(federation: Federation, course: Course) -> list[Any]:
    loop, found = Loop(federation, course), []
    moved: Any = 0.0
    for index in range(ROUNDS):
        clients = loop.clients(index)
        share = loop.sizes[clients] / loop.sizes[clients].sum()
        mean: Any = 0.0
        length = 0.0
        for p, client in zip(share, clients, strict=True):
            update, steps = loop.update(client, index)
            # What a step's gradient adds up to: itself, and what momentum repeats of it.
            own = sum(loop.of("momentum") ** k for s in range(steps) for k in range(s + 1))
            mean, length = mean + p * update / own, length + p * own
        moved = loop.server_momentum * moved + length * mean
        loop.world = loop.world + loop.server_learning_rate * moved
        found.append(loop.losses())
    return found


NOVA = {"server_momentum": 0.0, "server_learning_rate": 1.0}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"server_momentum": 0.7, "server_learning_rate": 0.5},
        {"momentum": 0.9, "rate_decay": 0.1, "learning_rate": 0.03},
    ],
)
def test_fednova_equals_a_plain_loop(federation: Federation, given: dict[str, float]) -> None:
    chosen = course(**{**NOVA, **given})
    found = engine(federation, "fednova", course(**NOVA, step_size=1), chosen)[1]
    same(found, fednova(federation, chosen))


def test_fednova_is_fedavg_where_clients_take_equally_many_steps(federation: Federation) -> None:
    alike, given = {"batch_size": 64, "step_size": 3}, {**NOVA, "momentum": 0.5}
    found = engine(federation, "fednova", course(**given, **alike))
    expected = engine(federation, "fedavg", course(momentum=0.5, **alike))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    others = (engine(federation, name, course(**given))[..., 0] for name in ("fednova", "fedavg"))
    assert not np.allclose(*others, rtol=1e-2)
