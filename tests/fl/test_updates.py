"""Algorithms whose clients send updates; DP-FedAvg beside a loop in plain numpy.

The loop shares the draws with the engine (federation, who takes part, minibatches, the first
weights, noise) and no arithmetic: it is in double precision.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba")

from fedhpo_gym.algorithms import get_algorithm
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation, make_user_federation
from fedhpo_gym.data.records import make_dataset
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import LogisticRegression
from fedhpo_gym.objectives import planned_noise
from fedhpo_gym.tasks import get_task
from fedhpo_gym.tasks.work import work_of
from plain_course import client_order, draw_round

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


def normal(purpose: str, name: str, index: int, shape: tuple[int, ...]) -> Weights:
    """Return the engine's normal numbers at the end of a round: quantiles of uniform ones."""
    rng = stream(1, f"{purpose} {name}", index + 1)
    uniform = np.maximum(rng.random(shape), 2.0**-54)
    return np.vectorize(NormalDist().inv_cdf, otypes=[float])(uniform)


def dpfedavg(federation: Federation, course: Course, noise: float) -> list[Any]:
    loop, found = Loop(federation, course), []
    expected = Fidelity(0, course.client_sample_rate).sampled_clients(len(loop.sizes))
    clip, moved, b = loop.update_clip, 0.0, loop.of("count_noise", 5.0)
    rate = loop.of("clip_rate")
    z = (noise**-2 - (2 * b * noise) ** -2) ** -0.5 if rate and noise else noise
    for index in range(ROUNDS):
        drawn = stream(1, "poisson", index).random(len(loop.sizes))
        total, below = np.zeros_like(loop.world), 0.0
        for client in np.flatnonzero(drawn < expected / len(loop.sizes)).tolist():
            update, _ = loop.update(client, index)
            length = np.sqrt((update**2).sum())
            total += update * min(1.0, clip / length)
            below += float(length <= clip) - 0.5
        total += z * clip * normal("dpfedavg", "weight", index, loop.world.shape)
        moved = loop.server_momentum * moved + total / expected
        loop.world = loop.world + loop.server_learning_rate * moved
        below += b * noise * float(normal("dpfedavg", "count", index, (1, 1))[0, 0])
        share = min(max(below / expected + 0.5, 0.0), 1.0)
        clip *= np.exp(-rate * (share - loop.of("clip_quantile", 0.5)))
        found.append(loop.losses())
    return found


PRIVATE = {"update_clip": 0.4, "server_momentum": 0.0, "server_learning_rate": 1.0}


@pytest.mark.parametrize("sampled", [0.5, 1.0])
@pytest.mark.parametrize(
    "given",
    [
        {"noise_multiplier": 0.0, "update_clip": 100.0},
        {"noise_multiplier": 0.0, "clip_rate": 0.5, "clip_quantile": 0.3},
        {"noise_multiplier": 0.4, "server_momentum": 0.6, "server_learning_rate": 0.5},
        {"noise_multiplier": 0.3, "clip_rate": 0.7, "count_noise": 1.0},
        {"epsilon": 200.0, "delta": 1e-3},
    ],
)
def test_dpfedavg_equals_a_plain_loop(
    federation: Federation, given: dict[str, float], sampled: float
) -> None:
    chosen = course(sampled, **{**PRIVATE, **given})
    noise = given.get("noise_multiplier", 0.0)
    if "epsilon" in given:
        noise = planned_noise(200.0, 1e-3, ROUNDS, sampled)
    found = engine(federation, "dpfedavg", course(**PRIVATE), chosen)[1]
    same(found, dpfedavg(federation, chosen, noise))


def test_rounds_of_nobody_move_by_noise_alone(federation: Federation) -> None:
    # One of six clients is expected, and so there are rounds of nobody, and of two.
    drawn = [(stream(1, "poisson", index).random(6) < 1 / 6).sum() for index in range(ROUNDS)]
    assert {0, 1} <= set(drawn)
    still = course(0.2, **PRIVATE, noise_multiplier=0.0)
    batch = CourseBatch({1: federation}, LogisticRegression, get_algorithm("dpfedavg"), [still])
    before = batch.evaluate()
    for count in drawn:
        assert batch.sampled()[0].sum() == count
        batch.advance(1)
        assert np.array_equal(batch.evaluate(), before) == (count == 0)
        before = batch.evaluate()
    noisy = course(0.2, **PRIVATE, noise_multiplier=0.5)
    same(engine(federation, "dpfedavg", noisy)[0], dpfedavg(federation, noisy, 0.5))


def test_control_variates_travel_and_cost_no_computation() -> None:
    plain, double = (
        get_task("LR-CreditG-v1").variant(algorithm=name) for name in ("fedavg", "scaffold")
    )
    once, twice = (
        task.system.cost(work_of(task, {"batch_size": 8, "step_size": 2}, 10, 0.6))
        for task in (plain, double)
    )
    assert twice.upload_bytes == 2 * once.upload_bytes > 0
    assert twice.download_bytes == 2 * once.download_bytes > 0
    assert twice.computation_s == once.computation_s
    assert twice.communication_s > once.communication_s


def test_variates_begin_at_nothing_and_a_diverged_course_has_none(federation: Federation) -> None:
    good, bad = (
        course(server_learning_rate=1.0),
        course(server_learning_rate=1.0, learning_rate=1e30),
    )
    batch = CourseBatch({1: federation}, LogisticRegression, get_algorithm("scaffold"), [good, bad])
    batch.advance(2)
    first, second = batch.snapshot()
    assert first is not None
    assert second is not None
    assert np.abs(first.variates["weight"]).max() > 0
    # The mean of all variates is the server's.
    mean = np.asarray(first.variates["weight"]).mean(axis=1)
    np.testing.assert_allclose(mean, first.server["variate of weight"], rtol=1e-4, atol=1e-6)
    assert second.diverged_at == 1
    assert not np.any(second.variates["weight"])
    batch.restart([0, 1])
    state = batch.snapshot()[0]
    assert state is not None
    assert not np.any(state.variates["weight"])
