"""Federated Thompson sampling against exact Gaussian processes and plain Thompson sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedhpo_gym.agents import fts, read_problem, run_episode
from fedhpo_gym.agents.fts import (
    FTS,
    FederatedThompson,
    FTSSettings,
    draw_features,
    maximise,
    own_probability,
    posterior,
    sample_weights,
)
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from problems import BowlClients

QUICK = FTSSettings(shared_features=30, own_features=40, candidates=200)


def bowl(point: np.ndarray, optimum: float = 0.3) -> float:
    return -float(((point - optimum) ** 2).sum())


def search(policy: FederatedThompson, rounds: int, optimum: float = 0.3) -> np.ndarray:
    """Let all clients search the same bowl; return (rounds, clients, n) what they tried."""
    tried = []
    for _ in range(rounds):
        points = np.array([policy.suggest(client) for client in range(policy.clients)])
        for client, point in enumerate(points):
            policy.observe(client, point, bowl(point, optimum))
        tried.append(points)
    return np.array(tried)


def test_who_is_restored_has_seen_what_the_other_saw_and_nothing_else() -> None:
    first, other = (FederatedThompson(2, 2, seed=0, settings=QUICK) for _ in range(2))
    search(first, 5)
    search(other, 4, optimum=0.8)
    other.restore(first.to_dict())
    assert other.to_dict() == first.to_dict()
    for client in range(2):
        np.testing.assert_array_equal(other.suggest(client), first.suggest(client))


def test_features_approximate_the_kernel_and_have_length_one() -> None:
    rng = np.random.default_rng(0)
    points = rng.random((12, 2))
    rows = draw_features(2, 40_000, 0.4, rng)(points)
    np.testing.assert_allclose((rows**2).sum(axis=1), 1.0)
    squares = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
    np.testing.assert_allclose(rows @ rows.T, np.exp(-squares / (2 * 0.4**2)), atol=0.03)


def test_the_posterior_is_that_of_the_gaussian_process_with_this_kernel() -> None:
    rng = np.random.default_rng(1)
    features = draw_features(2, 60, 0.4, rng)
    seen, new = features(rng.random((9, 2))), features(rng.random((5, 2)))
    values, noise = rng.standard_normal(9), 0.02
    mean, root = posterior(seen, values, noise)
    # The same in the space of functions: Rasmussen and Williams, Eq. 2.25 and 2.26.
    gain = (new @ seen.T) @ np.linalg.inv(seen @ seen.T + noise * np.eye(9))
    np.testing.assert_allclose(new @ mean, gain @ values, atol=1e-10)
    covariance = new @ new.T - gain @ (seen @ new.T)
    np.testing.assert_allclose(new @ root @ root.T @ new.T, covariance, atol=1e-10)


def test_draws_have_the_posteriors_mean_and_the_prior_without_observations() -> None:
    rng = np.random.default_rng(2)
    features = draw_features(1, 8, 0.5, rng)(rng.random((6, 1)))
    values = rng.standard_normal(6)
    draws = np.array([sample_weights(features, values, 0.3, rng) for _ in range(4000)])
    mean, root = posterior(features, values, 0.3)
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.08)
    np.testing.assert_allclose(np.cov(draws.T), root @ root.T, atol=0.08)
    nothing = np.empty((0, 8))
    prior = [sample_weights(nothing, np.empty(0), 0.3, rng) for _ in range(4000)]
    np.testing.assert_allclose(np.cov(np.array(prior).T), np.eye(8), atol=0.12)


def test_the_maximiser_finds_the_top_of_a_drawn_function() -> None:
    rng = np.random.default_rng(3)
    features = draw_features(2, 50, 0.3, rng)
    weights = rng.standard_normal(50)
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, 201)] * 2), axis=-1).reshape(-1, 2)
    found = features(maximise(features, weights, 1000, rng)[None]) @ weights
    assert found[0] >= (features(grid) @ weights).max() - 1e-3


def test_one_client_is_plain_thompson_sampling() -> None:
    policy = FederatedThompson(1, 2, seed=5, settings=QUICK)
    tried = search(policy, 10)[:, 0]
    points, values = list(tried[:3]), [bowl(point) for point in tried[:3]]
    for trial in range(3, 10):
        rng = stream(5, "fts", 0, trial)
        features = draw_features(2, 40, QUICK.length_scale, rng)
        scores = (np.array(values) - np.mean(values)) / np.std(values)
        weights = sample_weights(features(np.array(points)), scores, QUICK.noise, rng)
        point = maximise(features, weights, 200, rng)
        np.testing.assert_array_equal(point, tried[trial])
        points.append(point)
        values.append(bowl(point))


def test_clients_that_never_mix_search_as_if_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    together = search(FederatedThompson(3, 2, 5, QUICK), 8)
    monkeypatch.setattr(fts, "own_probability", lambda _: 1.0)
    apart = search(FederatedThompson(3, 2, 5, QUICK), 8)
    alone = search(FederatedThompson(1, 2, 5, QUICK), 8)
    np.testing.assert_array_equal(apart[:, 0], alone[:, 0])
    assert not np.array_equal(together, apart)


def test_a_new_client_that_mixes_learns_from_those_that_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def error_of_the_newcomer(probability: float) -> float:
        errors = []
        monkeypatch.setattr(fts, "own_probability", lambda _: 1.0)
        for seed in range(8):
            policy = FederatedThompson(2, 2, seed, FTSSettings(candidates=300))
            for trial in range(25):
                point = np.random.default_rng(trial).random(2)
                policy.observe(0, point, bowl(point))
            for corner in ([0.9, 0.9], [0.95, 0.9], [0.9, 0.95]):
                policy.observe(1, corner, bowl(np.array(corner)))
            monkeypatch.setattr(fts, "own_probability", lambda _: probability)
            errors.append(-bowl(policy.suggest(1)))
        return float(np.mean(errors))

    assert error_of_the_newcomer(0.0) < 0.3 * error_of_the_newcomer(1.0)


def test_the_mixing_probability_by_hand() -> None:
    assert [own_probability(t) for t in (0, 1, 2, 3)] == [0.75, 0.75, 1 - 1 / 9, 1 - 1 / 16]
    assert own_probability(10_000) == pytest.approx(1.0)


def test_only_sampled_functions_are_sent() -> None:
    policy = FederatedThompson(2, 2, 0, QUICK)
    policy.observe(0, [0.1, 0.2], 1.0)
    first = policy.message(0)
    assert first.shape == (30,)
    np.testing.assert_array_equal(policy.message(0), first)
    policy.observe(0, [0.3, 0.2], 2.0)
    assert not np.array_equal(policy.message(0), first)


def test_the_agent_lowers_the_clients_losses() -> None:
    env = BowlClients(np.tile([0.5, -0.25], (6, 1)), sampled=3, steps=40)
    agent = FTS(read_problem(env, 0), settings=QUICK)
    list(run_episode(env, agent, seed=0))
    losses = np.array([step.mean() for step in env.played])
    assert losses[-10:].mean() < 0.4 * losses[:6].mean()
    observed = sum(len(values) for values in agent.policy.to_dict()["values"])
    assert observed == 3 * 40


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FederatedThompson(0, 1, 0), "`clients`"),
        (lambda: FTSSettings(noise=0.0), "`noise`"),
        (lambda: FederatedThompson(1, 1, 0).suggest(1), "`client`"),
        (lambda: FederatedThompson(1, 1, 0).observe(0, [1.5], 0.0), "`point`"),
        (lambda: FederatedThompson(1, 1, 0).observe(0, [0.5, 0.5], 0.0), "`point`"),
        (lambda: FederatedThompson(1, 1, 0).observe(0, [0.5], float("nan")), "`value`"),
    ],
)
def test_wrong_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_the_initial_trials_do_not_count_towards_the_own_model() -> None:
    """The authors' p_t is 3/4 in the first two trials after the initial ones, then 8/9."""
    asked: list[int] = []

    def noted(trial: int) -> float:
        asked.append(trial)
        return own_probability(trial)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fts, "own_probability", noted)
        search(FederatedThompson(2, 2, seed=0, settings=QUICK), QUICK.initial + 3)
    assert sorted(set(asked)) == [0, 1, 2]
