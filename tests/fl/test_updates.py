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
from fedhpo_gym.algorithms.base import Context, Parameters
from fedhpo_gym.algorithms.fedavg import FedAvg
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.data.federation import Federation, make_user_federation
from fedhpo_gym.data.records import make_dataset
from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import LogisticRegression
from fedhpo_gym.fl.participants import poisson_clients
from fedhpo_gym.objectives import planned_noise
from fedhpo_gym.tasks import get_task
from fedhpo_gym.tasks.work import work_of
from fedhpo_gym.testing import ReferenceLoop

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


def same(found: Any, losses: Any) -> None:
    """Compare in single precision; some rounds of training multiply its errors."""
    np.testing.assert_allclose(found[..., 0], np.array(losses), rtol=2e-4, atol=2e-5)


def normal(purpose: str, name: str, index: int, shape: tuple[int, ...]) -> Weights:
    """Return the engine's normal numbers at the end of a round: quantiles of uniform ones."""
    rng = stream(1, f"{purpose} {name}", index + 1)
    uniform = np.maximum(rng.random(shape), 2.0**-54)
    return np.vectorize(NormalDist().inv_cdf, otypes=[float])(uniform)


def dpfedavg(federation: Federation, course: Course, noise: float) -> list[Any]:
    loop, found = ReferenceLoop(federation, course, ROUNDS), []
    expected = Fidelity(0, course.client_sample_rate).sampled_clients(len(loop.sizes))
    clip, moved, b = loop.update_clip, 0.0, loop.value_of("count_noise", 5.0)
    rate = loop.value_of("clip_rate")
    z = (noise**-2 - (2 * b * noise) ** -2) ** -0.5 if rate and noise else noise
    for index in range(ROUNDS):
        drawn = stream(1, "poisson", index).random(len(loop.sizes))
        total, below = np.zeros_like(loop.weights), 0.0
        for client in np.flatnonzero(drawn < expected / len(loop.sizes)).tolist():
            update, _ = loop.update(client, index)
            length = np.sqrt((update**2).sum())
            total += update * min(1.0, clip / length)
            below += float(length <= clip) - 0.5
        total += z * clip * normal("dpfedavg", "weight", index, loop.weights.shape)
        moved = loop.server_momentum * moved + total / expected
        loop.weights = loop.weights + loop.server_learning_rate * moved
        below += b * noise * float(normal("dpfedavg", "count", index, (1, 1))[0, 0])
        share = min(max(below / expected + 0.5, 0.0), 1.0)
        clip *= np.exp(-rate * (share - loop.value_of("clip_quantile", 0.5)))
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


class PoissonAverage(FedAvg):
    name = "poisson-average"
    poisson = True


def test_a_model_that_nobody_trains_stays(federation: Federation) -> None:
    kind = PoissonAverage()
    batch = CourseBatch({1: federation}, LogisticRegression, kind, [course(1 / 6)], horizon=9)
    found = batch.advance(9).metrics[0]
    takes_part = [len(poisson_clients((1, index), 1, 6)) > 0 for index in range(9)]
    assert not all(takes_part[1:])
    moved = (np.diff(found, axis=0) != 0).any(axis=(1, 2, 3))
    assert moved.tolist() == takes_part[1:]


class Moments(FedAvg):
    """Two moments that begin as one array, and the former model, which begins as the model."""

    name = "moments"

    def init_state(self, parameters: Parameters, context: Context) -> Parameters:
        state = {}
        for name, value in parameters.items():
            state[f"m {name}"] = state[f"v {name}"] = value - value
            state[f"former {name}"] = value
        return state

    def server_update(
        self, parameters: Parameters, average: Parameters, state: Parameters, context: Context
    ) -> tuple[Parameters, Parameters]:
        updated, after = {}, {}
        for name, value in parameters.items():
            move = average[name] - value + 0.1 * (value - state[f"former {name}"])
            after[f"m {name}"] = 0.9 * state[f"m {name}"] + 0.1 * move
            after[f"v {name}"] = np.sqrt(0.5) * state[f"v {name}"] + 0.1 * move**2
            after[f"former {name}"] = value
            updated[name] = value + after[f"m {name}"] / (after[f"v {name}"] ** 0.5 + 0.1)
        return updated, after


def test_a_course_goes_on_from_its_servers_state_wherever_it_is_put(federation: Federation) -> None:
    def batch() -> CourseBatch:
        return CourseBatch({1: federation}, LogisticRegression, Moments(), [course()], horizon=9)

    first, second = batch(), batch()
    first.advance(3)
    second.restore(first.snapshot())
    np.testing.assert_array_equal(second.advance(3).metrics, first.advance(3).metrics)


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
