"""Personalised FedEx: gradients against finite differences, and clients that disagree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedhpo_gym.agents import read_problem, run_episode
from fedhpo_gym.agents.clients import ArmFeedback, listed_arms
from fedhpo_gym.agents.fedex import FedEx
from fedhpo_gym.agents.fedex_personalised import (
    Adam,
    PersonalisedFedEx,
    PersonalPolicy,
    PersonalSettings,
    backward,
    forward,
    initial_parameters,
)
from fedhpo_gym.core.errors import InvalidArgumentError
from problems import BowlClients


def test_hand_gradients_equal_finite_differences() -> None:
    rng = np.random.default_rng(0)
    parameters = initial_parameters((4, 7, 5), (3, 2), rng)
    encodings = rng.standard_normal((6, 4))
    slopes = [rng.standard_normal((6, arms)) for arms in (3, 2)]

    def loss() -> float:
        log_theta = forward(parameters, encodings).log_theta
        return float(sum((s * logs).sum() for s, logs in zip(slopes, log_theta, strict=True)))

    gradients = backward(parameters, forward(parameters, encodings), slopes)
    assert gradients.keys() == parameters.keys()
    for name, value in parameters.items():
        numeric = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            kept = value[index]
            ends = []
            for step in (1e-6, -1e-6):
                value[index] = kept + step
                ends.append(loss())
            value[index] = kept
            numeric[index] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(gradients[name], numeric, atol=1e-7, err_msg=name)


def test_hidden_layers_have_spectral_norm_one() -> None:
    rng = np.random.default_rng(1)
    parameters = initial_parameters((4, 7, 5), (3,), rng)
    encodings = rng.standard_normal((6, 4))
    before = forward(parameters, encodings).log_theta[0]
    parameters["layer0.weight"] *= 10.0
    np.testing.assert_allclose(forward(parameters, encodings).log_theta[0], before)
    parameters["head0.weight"] *= 2.0
    assert not np.allclose(forward(parameters, encodings).log_theta[0], before)


def test_the_first_steps_of_adam_by_hand() -> None:
    adam = Adam(learning_rate=0.1, weight_decay=0.5)
    moved = adam.step({"w": np.array([2.0, -4.0])}, {"w": np.array([3.0, 1.0])})
    np.testing.assert_allclose(moved["w"], [1.9, -3.9])  # gradients 4 and -1: one unit each
    moved = adam.step(moved, {"w": np.array([0.0, 0.0])})
    first, second = 0.9 * 0.4 + 0.1 * 0.95, 0.999 * 0.016 + 0.001 * 0.95**2
    step = (first / (1 - 0.81)) / np.sqrt(second / (1 - 0.999**2))
    assert moved["w"][0] == pytest.approx(1.9 - 0.1 * step)


def test_an_update_moves_only_what_the_advantage_says() -> None:
    policy = PersonalPolicy(3, [4], seed=0, settings=PersonalSettings(gamma=1.0))
    start = np.exp(policy.log_theta([0, 1, 2])[0])
    np.testing.assert_allclose(start.sum(axis=1), 1.0)
    assert not np.allclose(start[0], start[1]), "clients have policies of their own"
    for _ in range(30):
        policy.update(
            [ArmFeedback((2,), 2.0, 1.0, client=0), ArmFeedback((1,), 2.0, 3.0, client=0)]
        )
    after = np.exp(policy.log_theta([0])[0][0])
    assert after[2] > start[0, 2]
    assert after[1] < start[0, 1]


def opposed(steps: int) -> BowlClients:
    """Half of the clients want one end, half of them the other."""
    return BowlClients(np.repeat([[0.8], [-0.8]], 4, axis=0), sampled=8, steps=steps)


@pytest.mark.slow
def test_clients_that_disagree_get_better_arms_than_one_policy_has_for_them() -> None:
    # The method learns slowly, and some seeds settle on one arm for all: hence a mean.
    arms = listed_arms([[0.8], [-0.8]])
    wanted = np.float32([0.8] * 4 + [-0.8] * 4)
    personal_losses, shared_losses, right = [], [], []
    for seed in range(5):
        env = opposed(300)
        agent = PersonalisedFedEx(read_problem(env, seed), arms=arms)
        list(run_episode(env, agent, seed=seed))
        personal_losses.append(np.mean(env.played[-20:]))
        right.append((agent.best_actions()[:, 0] == wanted).mean())
        shared = FedEx(read_problem(env, seed), arms=arms)
        list(run_episode(env, shared, seed=seed))
        shared_losses.append(np.mean(env.played[-20:]))
    assert np.mean(personal_losses) < 0.75 * np.mean(shared_losses)
    assert np.mean(right) >= 0.7


def test_sampling_follows_each_clients_distribution() -> None:
    policy = PersonalPolicy(2, [3, 2], seed=4)
    drawn = policy.sample(np.random.default_rng(0), np.repeat([0, 1], 8000))
    assert drawn.shape == (16_000, 2)
    for factor, logs in enumerate(policy.log_theta([0, 1])):
        for client, part in enumerate((drawn[:8000, factor], drawn[8000:, factor])):
            shares = np.bincount(part, minlength=logs.shape[1]) / 8000
            np.testing.assert_allclose(shares, np.exp(logs[client]), atol=0.02)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PersonalPolicy(0, [2], 0), "`clients`"),
        (lambda: PersonalPolicy(1, [], 0), "`sizes`|`clients`"),
        (lambda: PersonalSettings(learning_rate=0.0), "`learning_rate`"),
        (lambda: PersonalSettings(gamma=-0.1), "`gamma`"),
        (lambda: PersonalPolicy(1, [2], 0).update([ArmFeedback((0,), 1, 1, client=1)]), "`client`"),
        (lambda: PersonalPolicy(1, [2], 0).update([ArmFeedback((2,), 1, 1)]), "`arms`"),
        (lambda: PersonalPolicy(1, [2], 0).update([]), "`feedbacks`"),
    ],
)
def test_wrong_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()
