"""Federated Thompson sampling against exact Gaussian processes and plain Thompson sampling."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.agents import fts, read_problem, run_episode
from fedhpo_gym.agents.base import Step
from fedhpo_gym.agents.fts import (
    FTS,
    FederatedThompson,
    FTSSettings,
    draw_features,
    maximise,
    own_probability,
    sample_weights,
)
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from problems import BowlClients, box_problem

QUICK = FTSSettings(shared_features=30, own_features=40, candidates=200)


def bowl(point: np.ndarray, optimum: float = 0.3) -> float:
    """Return a value in [0, 1] that is 1 at the optimum, in two dimensions."""
    return 1.0 - 0.5 * float(((point - optimum) ** 2).sum())


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


def test_draws_have_the_posterior_of_the_gaussian_process_with_this_kernel() -> None:
    rng = np.random.default_rng(1)
    features = draw_features(2, 60, 0.4, rng)
    seen, new = features(rng.random((9, 2))), features(rng.random((5, 2)))
    values, noise = rng.standard_normal(9), 0.3
    draws = np.array([new @ sample_weights(seen, values, noise, rng) for _ in range(8000)])
    # Rasmussen and Williams, Eq. 2.25 and 2.26.
    gain = (new @ seen.T) @ np.linalg.inv(seen @ seen.T + noise * np.eye(9))
    np.testing.assert_allclose(draws.mean(axis=0), gain @ values, atol=0.05)
    covariance = new @ new.T - gain @ (seen @ new.T)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.05)


def test_draws_without_observations_are_those_of_the_prior() -> None:
    rng = np.random.default_rng(2)
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
        scores = np.array(values) / QUICK.spread
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
            errors.append(1.0 - bowl(policy.suggest(1)))
        return float(np.mean(errors))

    assert error_of_the_newcomer(0.0) < 0.3 * error_of_the_newcomer(1.0)


def test_the_mixing_probability_by_hand() -> None:
    assert [own_probability(t) for t in (0, 1, 2, 3)] == [0.75, 0.75, 1 - 1 / 9, 1 - 1 / 16]
    assert own_probability(10_000) == pytest.approx(1.0)


def test_only_sampled_functions_are_sent() -> None:
    policy = FederatedThompson(2, 2, 0, QUICK)
    policy.observe(0, [0.1, 0.2], 0.3)
    first = policy.message(0)
    assert first.shape == (30,)
    np.testing.assert_array_equal(policy.message(0), first)
    policy.observe(0, [0.3, 0.2], 0.9)
    assert not np.array_equal(policy.message(0), first)


def test_the_agent_lowers_the_clients_losses() -> None:
    env = BowlClients(np.tile([0.5, -0.25], (6, 1)), sampled=3, steps=40)
    agent = FTS(read_problem(env, 0), settings=QUICK)
    list(run_episode(env, agent, seed=0))
    losses = np.array([step.mean() for step in env.played])
    assert losses[-10:].mean() < 0.4, "1.08 is the mean of random points, 0.1 the lowest loss"
    observed = sum(len(values) for values in agent.policy.to_dict()["values"])
    assert observed == 3 * 40


OPTIMA = np.linspace(-1.0, 1.0, 4)
ALL = {"sampled": np.ones(4, np.float32)}


def steepest_descent(
    agent: FTS | None, seed: int, unit: float = 1.0, steps: int = 40
) -> np.ndarray:
    """Train one shared number on four parabolas; return (steps, clients) logarithms of rates.

    A client's rate is 10 to the power of twice its first coordinate. Rates above 2 move a client
    farther from its optimum than it was, and the server takes the mean. Without an agent, rates are
    uniform at random. Losses are in `unit`; the last row holds the model's mean loss instead.
    """
    rng, rows, model = np.random.default_rng(seed), [], 3.0
    for _ in range(steps):
        action = rng.uniform(-1, 1, (4, 2)) if agent is None else agent.ask(ALL)
        rows.append(2.0 * action[:, 0])
        models = model - 10.0 ** rows[-1] * (model - OPTIMA)
        if agent is not None:
            before, after = (unit * ((m - OPTIMA) ** 2 + 0.1) for m in (model, models))
            info = {"val_loss_before": before, "val_loss_after": after, "num_val_samples": [9] * 4}
            agent.tell(Step(action, 0.0, info=info))
        model = float(models.mean())
    return np.array([*rows, (model - OPTIMA) ** 2 + 0.1])


def quick_agent(seed: int) -> FTS:
    return FTS(box_problem(gym.spaces.Box(-1, 1, (4, 2), np.float32), seed), settings=QUICK)


@pytest.mark.parametrize("seed", range(5))
def test_clients_of_one_model_converge_where_random_ones_diverge(seed: int) -> None:
    assert steepest_descent(None, seed)[-1].mean() > 1e6
    rows = steepest_descent(quick_agent(seed), seed)
    assert rows[-1].mean() < 2.0, "0.66 is the lowest mean loss, 9.66 that of the first model"
    assert (rows[10:-1] > np.log10(2.0)).mean() < 0.17, "a third of random rates are too high"


def test_the_unit_of_the_losses_does_not_matter() -> None:
    runs = [steepest_descent(quick_agent(3), 3, 2.0**power, steps=20) for power in (0, 40, -40)]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])


def actions_after(loss: float) -> np.ndarray:
    """Return (steps, n) actions of a client whose loss is `loss` in the first step only."""
    agent = quick_agent(1)
    info = {"val_loss_before": [2.0] * 4, "num_val_samples": [9] * 4}
    actions = []
    for _ in range(14):
        action = agent.ask(ALL)
        losses = 0.5 + 0.2 * ((action - 0.2) ** 2).sum(axis=1)
        losses[0] = losses[0] if actions else loss
        agent.tell(Step(action, 0.0, info={**info, "val_loss_after": losses}))
        actions.append(action[0])
    return np.array(actions)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1e30, 3.4e38])
def test_where_a_client_diverged_it_does_not_return_however_high_its_loss_was(loss: float) -> None:
    actions = actions_after(loss)
    assert np.linalg.norm(actions[1:] - actions[0], axis=1)[QUICK.initial :].min() > 0.4
    np.testing.assert_allclose(actions, actions_after(1e20), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FederatedThompson(0, 1, 0), "`clients`"),
        (lambda: FTSSettings(noise=1e-20), "`noise`"),
        (lambda: FederatedThompson(1, 1, 0).suggest(1), "`client`"),
        (lambda: FederatedThompson(1, 1, 0).observe(0, [1.5], 0.0), "`point`"),
        (lambda: FederatedThompson(1, 1, 0).observe(0, [0.5, 0.5], 0.0), "`point`"),
        (lambda: FederatedThompson(1, 1, 0).observe(0, [0.5], float("nan")), "`value`"),
        (lambda: FederatedThompson(1, 1, 0).observe(0, [0.5], -1e9), "`value`"),
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
