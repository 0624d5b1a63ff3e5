"""Noise of evaluation: laws, formulas, and an independent computation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.noise import Noise, count_reporting_clients, exchange_samples
from fedhpo_gym.evaluation.records import Evaluations
from fedhpo_gym.objectives import COST_NAMES, NO_PRIVACY, OBJECTIVES, Spending, get_objective

BOUNDS = np.array([[0.0, 10.0], [0.0, 1.0], [0.0, 1.0]])
CLIENTS = 20
VAL, ACCURACY = 1, 1


def rngs(number: int, seed: int = 0) -> list[np.random.Generator]:
    return [stream(seed, "test", row) for row in range(number)]


def made_up(number: int, seeds: int = 1, equal: bool = False) -> Evaluations:
    """Return `number` times the same evaluation of clients that differ."""
    rng = np.random.default_rng(4)
    samples = (
        np.full((seeds, CLIENTS, 3), 10) if equal else rng.integers(1, 30, (seeds, CLIENTS, 3))
    )
    right = rng.binomial(samples[..., VAL], rng.uniform(0, 1, (seeds, CLIENTS)))
    best = rng.uniform(0, 3, (seeds, CLIENTS, 3, 3))
    best[..., 1:] = rng.uniform(0, 1, (seeds, CLIENTS, 3, 2))
    best[..., VAL, ACCURACY] = right / samples[..., VAL]
    return evaluations(np.stack([best] * number), samples)


def evaluations(best: Any, samples: Any) -> Evaluations:
    """Return evaluations after one round."""
    rounds = np.ones(best.shape[:2], int)
    fidelity = {"round": rounds[:, 0], "client_sample_rate": np.ones(len(best))}
    return Evaluations(best, samples, rounds, rounds < 0, np.arange(best.shape[1]), fidelity)


def test_all_clients_are_the_truth_bit_for_bit() -> None:
    truth = made_up(4, seeds=3)
    assert Noise(clients=1.0, bias=2.0).apply(truth, rngs(4), BOUNDS) is truth
    # Through the whole machinery: a share so close to 1 that its whole part is everybody.
    heard = Noise(clients=1 - 1e-12).apply(truth, rngs(4), BOUNDS)
    assert heard is not truth
    for name in ("val_loss", "train_f1", "fairness_std", "fairness_worst"):
        compute = get_objective(name).compute
        assert compute(heard, NO_PRIVACY).tolist() == compute(truth, NO_PRIVACY).tolist()


def plain_cohort(noise: Noise, accuracy: Any, samples: Any, rng: np.random.Generator) -> set[int]:
    """Draw one client after the other with the probabilities of the paper."""
    left = [i for i in range(len(accuracy)) if samples[i, 0] > 0 and samples[i, 1] > 0]
    number = max(1, math.floor(noise.clients * len(left) + 1e-9))
    found: set[int] = set()
    for _ in range(number):
        weights = np.array([(1.0001 - (1.0 - accuracy[i])) ** noise.bias for i in left])
        found.add(left.pop(rng.choice(len(left), p=weights / weights.sum())))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("bias", [0.0, 1.0, 3.0])
def test_cohorts_are_distributed_as_clients_drawn_one_by_one(bias: float) -> None:
    number, noise = 3000, Noise(clients=0.3, bias=bias)
    accuracy = np.linspace(0.0, 1.0, 7)
    samples = np.ones((7, 3), int)
    samples[6, 0] = 0  # never drawn
    many = np.broadcast_to(accuracy, (number, 1, 7))
    found = noise.cohorts(many, np.broadcast_to(samples, (number, 1, 7, 3)), rngs(number))[:, 0]
    assert (found.sum(axis=1) == 1).all()
    pairs = Noise(clients=0.5, bias=bias)
    twice = pairs.cohorts(many, np.broadcast_to(samples, (number, 1, 7, 3)), rngs(number))[:, 0]
    assert (twice.sum(axis=1) == 3).all()
    rng = np.random.default_rng(1)
    for marks, how in ((found, noise), (twice, pairs)):
        expected = np.zeros(7)
        for _ in range(number):
            for client in plain_cohort(how, accuracy, samples, rng):
                expected[client] += 1
        shares = np.stack([marks.sum(axis=0), expected]) / number
        spread = np.sqrt(2 * np.maximum(shares.mean(axis=0) * (1 - shares.mean(axis=0)), 1e-4))
        assert (np.abs(shares[0] - shares[1]) < 4.5 * spread / number**0.5).all()


@given(
    st.integers(1, 40),
    st.floats(0.01, 1.0),
    st.sampled_from([0.0, 1.0, 2.5, 80.0]),
    st.integers(0, 2**32 - 1),
)
def test_cohorts_are_those_who_wait_least(n: int, share: float, bias: float, seed: int) -> None:
    """Each seed sorted alone; a bias so large that clients wait for ever alike makes ties."""
    rng = np.random.default_rng(seed)
    accuracy = rng.choice([0.0, 1e-3, 0.5, 1.0, np.nan], (2, 3, n)).astype(np.float32)
    samples = rng.integers(0, 4, (2, 3, n, 3))
    noise = Noise(clients=share, bias=bias)
    found = noise.cohorts(accuracy, samples, rngs(2, seed))
    for row, draws in enumerate(rngs(2, seed)):
        drawn = draws.standard_exponential((3, n))
        for s in range(3):
            error = 1 - np.nan_to_num(accuracy[row, s])
            with np.errstate(divide="ignore", over="ignore"):
                waits = (drawn[s] / (1.0001 - error) ** bias).tolist()
            able = [i for i in range(n) if samples[row, s, i, 0] and samples[row, s, i, 1]]
            chosen = sorted(able, key=waits.__getitem__)[: max(1, int(share * len(able) + 1e-9))]
            assert np.flatnonzero(found[row, s]).tolist() == sorted(chosen)


def test_unbiased_clients_give_unbiased_means() -> None:
    number = 4000
    truth = made_up(number, equal=True)
    heard = Noise(clients=0.2).apply(truth, rngs(number), BOUNDS)
    assert (count_reporting_clients(heard) == 4).all()
    clients = truth.clients("val", "loss")[0, 0]
    # Of a mean of n out of N without replacement: s^2 / n (1 - n / N).
    variance = clients.var(ddof=1) / 4 * (1 - 4 / CLIENTS)
    found = heard.mean("val", "loss")
    assert abs(found.mean() - clients.mean()) < 4 * math.sqrt(variance / number)
    assert found.var() == pytest.approx(variance, rel=0.1)
    biased = Noise(clients=0.2, bias=3.0).apply(truth, rngs(number), BOUNDS)
    assert biased.mean("val", "accuracy").mean() > truth.mean("val", "accuracy")[0] + 0.1
    assert biased.mean("test", "accuracy").tolist() == truth.mean("test", "accuracy").tolist()


def test_private_means_weigh_clients_alike_and_clip_them() -> None:
    truth = made_up(2, seeds=2)
    truth.best[..., VAL, 0] *= 10.0
    heard = Noise(epsilon=1.0).apply(truth, rngs(2), BOUNDS)
    expected = np.minimum(truth.best[..., VAL, 0], 10.0).mean(axis=(1, 2))
    assert heard.mean("val", "loss") == pytest.approx(expected)


@pytest.mark.slow
def test_laplace_noise_has_the_variance_of_its_formula() -> None:
    number, evaluations, epsilon, clients = 10_000, 16, 100.0, 20.0
    each = np.full((number, 2, 1), 1.0 / clients)
    found = Noise(epsilon=epsilon).laplace(each, evaluations, rngs(number))
    scale = 2 * evaluations / (clients * epsilon)  # two numbers share what a trial may spend
    assert found.shape == (number, 2)
    assert found.var(axis=0) == pytest.approx([2 * scale**2] * 2, rel=0.12)
    assert np.abs(found.mean(axis=0)).max() < 4 * math.sqrt(2 * scale**2 / number)
    three = Noise(epsilon=epsilon).laplace(np.repeat(each[:, :1], 3, axis=2), 16, rngs(number))
    assert three.var() == pytest.approx(2 * (scale / 2) ** 2 / 3, rel=0.12)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_one_client_changes_no_more_than_the_sensitivity(name: str) -> None:
    objective = OBJECTIVES[name]
    if name.startswith("test_"):
        assert objective.sensitivity is None
        return
    assert objective.sensitivity is not None
    rng = np.random.default_rng(0)
    spent, reached = Spending(NO_PRIVACY, lambda: dict.fromkeys(COST_NAMES, 7.0)), 0.0
    for clients in (2, 3, 7):
        bound = float(objective.sensitivity(np.array([float(clients)]))[0])
        best = rng.choice([0.0, 0.5, 1.0], (400, 1, clients, 3, 3))
        best[: clients + 2, ...] = np.tri(clients + 2, clients, -1)[:, None, :, None, None]
        best[..., 0] *= 10.0
        other = best.copy()
        other[:, :, 0, :, 0] = 10.0 - other[:, :, 0, :, 0]
        other[:, :, 0, :, 1:] = 1.0 - other[:, :, 0, :, 1:]
        samples = np.ones((1, clients, 3), int)
        values = [objective.compute(evaluations(one, samples), spent) for one in (best, other)]
        change = float(np.abs(values[0] - values[1]).max())
        assert change <= bound + 1e-9
        reached = max(reached, change / bound if bound else 1.0)
    if objective.sensitivity(np.array([3.0]))[0] < 1.0:
        assert reached == pytest.approx(1.0)  # the bound is tight


def test_exchanged_samples_keep_all_right_answers_and_sizes() -> None:
    rng = np.random.default_rng(2)
    samples = rng.integers(0, 40, (3, 25))
    right = rng.binomial(samples, 0.3)
    accuracy = np.where(samples > 0, right / np.maximum(samples, 1), np.nan)
    for share in (0.0, 0.5, 1.0):
        found = exchange_samples(accuracy, samples, share, stream(1, "test"))
        now = np.nan_to_num(found) * samples
        np.testing.assert_allclose(now, np.rint(now), atol=1e-9)
        np.testing.assert_array_equal(np.rint(now).sum(axis=1), right.sum(axis=1))
    np.testing.assert_array_equal(
        exchange_samples(accuracy, samples, 0.0, stream(1, "test")), accuracy
    )


@pytest.mark.slow
def test_exchanging_everything_makes_clients_random_samples() -> None:
    """Of K right among M answers, a client of n gets hypergeometric many: mean and variance."""
    samples = np.array([[5, 10, 15, 20]])
    accuracy = np.array([[0.0, 0.0, 1.0, 1.0]])
    drawn = (
        np.array([exchange_samples(accuracy, samples, 1.0, rng)[0] for rng in rngs(4000)]) * samples
    )
    share, size = 35 / 50, samples[0]
    variance = size * share * (1 - share) * (50 - size) / 49
    assert np.abs(drawn.mean(axis=0) - size * share).max() < 4 * math.sqrt(variance.max() / 4000)
    assert drawn.var(axis=0) == pytest.approx(variance, rel=0.1)


def test_noise_exchanges_the_validation_samples_of_every_evaluation() -> None:
    truth = made_up(2, seeds=2)
    heard = Noise(iid=1.0).apply(truth, rngs(2), BOUNDS)
    weights = truth.num_samples[..., VAL]
    for row, rng in enumerate(rngs(2)):
        accuracy = truth.best[row, ..., VAL, ACCURACY]
        expected = exchange_samples(accuracy, weights, 1.0, rng)
        np.testing.assert_array_equal(heard.best[row, ..., VAL, ACCURACY], expected)
        assert (expected != accuracy).any()


def test_what_is_no_count_of_answers_cannot_be_exchanged() -> None:
    with pytest.raises(InvalidArgumentError, match="correct"):
        exchange_samples(np.array([[0.37, 0.5]]), np.array([[10, 10]]), 0.5, stream(0, "test"))


BAD: list[dict[str, Any]] = [
    {"clients": 0.0},
    {"clients": 1.1},
    {"clients": math.nan},
    {"bias": -1.0},
    {"iid": 2.0},
    {"epsilon": 0.0},
    {"epsilon": "much"},
    {"evaluations": 3},
    {"evaluations": 1.5, "epsilon": 1.0},
    {"evaluations": 0, "epsilon": 1.0},
    {"client": 0.5},
]


@pytest.mark.parametrize("given", BAD, ids=str)
def test_bad_noise_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="noise"):
        Noise.of(given)
