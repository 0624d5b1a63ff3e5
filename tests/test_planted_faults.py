"""A law for each of the faults that were planted by hand and that no other test noticed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fedhpo_gym.agents import agent_class
from fedhpo_gym.agents.base import Step
from fedhpo_gym.envs.trial.evaluator import TrialStreams
from fedhpo_gym.envs.trial.ledger import TuningLedger
from fedhpo_gym.evaluation.noise import exchange_samples
from fedhpo_gym.evaluation.records import Fidelity, best_rounds
from fedhpo_gym.evaluation.stats import critical_difference, improvement_interval, wilcoxon_holm
from fedhpo_gym.objectives.privacy import epsilon_from_renyi
from fedhpo_gym.space.dimension import Dimension
from fedhpo_gym.systems import CROSS_SILO, DeviceModel, RoundRecord, Work, calibrate
from fedhpo_gym.systems.devices import Draw
from fedhpo_gym.tasks import get_task
from fedhpo_gym.testing import make_env
from fedhpo_gym.wrappers import IncumbentReward
from fedhpo_gym.wrappers.scalarization import volume
from problems import box_problem


def test_no_pair_differs_where_friedmans_test_does_not_reject() -> None:
    values = np.zeros((8, 2))
    values[:, 0] = [0.1, 0.2, -0.3, -0.4, -0.5, -0.6, -0.7, -0.8]
    assert wilcoxon_holm(values)[0, 1] < 0.05
    found = critical_difference(values, ["a", "b"])
    assert found.friedman.p_value > 0.05
    assert found.groups == ((0, 1),)


def test_equals_are_half_a_win_in_every_bootstrap() -> None:
    same = [np.ones(4), np.ones(3)]
    assert improvement_interval(same, [np.ones(5), np.ones(2)]) == (0.5, 0.5)


def test_total_variation_bounds_epsilon_by_the_square_of_delta() -> None:
    # -log(1 - 0.1^2) = 0.01005: up to there a divergence proves epsilon 0 at delta 0.1.
    assert epsilon_from_renyi((2,), (0.01,), 0.1) == 0.0
    by_hand = 0.02 + np.log(0.5) - (np.log(0.1) + np.log(2))
    assert epsilon_from_renyi((2,), (0.02,), 0.1) == pytest.approx(by_hand)


# ------------------------------------------------------------------------------------- clocks


def test_jobs_take_longer_where_bandwidth_varies() -> None:
    steady = DeviceModel(bandwidth_variation=0.0)
    varying = replace(steady, bandwidth_variation=0.5)
    work = Work.of_course(1000, 5, Fidelity(1, 0.4))
    means = [model.job_means(work).other_s for model in (steady, varying)]
    # The mean of 1 / x of a log-normal x is (1 + variation^2) over its mean.
    np.testing.assert_allclose(means[1], 1.25 * means[0], rtol=1e-12)


def test_streams_of_a_round_are_told_apart_by_name_key_and_seed() -> None:
    draws = [Draw(1, (2, 3)), Draw(1, (2, 4)), Draw(2, (2, 3))]
    found = [draw.stream(name).random() for draw in draws for name in ("dropout", "upload")]
    assert len(set(found)) == 6
    assert Draw(1, (2, 3)).stream("upload").random() == found[1]


def test_known_links_are_recovered_from_rounds_of_some_clients() -> None:
    truth = replace(
        CROSS_SILO,
        client_upload_bytes_per_s=3e5,
        client_download_bytes_per_s=1e12,
        server_upload_bytes_per_s=2e6,
        client_compute_mean_s=0.7,
    )
    found = []
    for parameters in (1000, 900_000):
        for rate in (0.2, 0.5, 1.0):
            work = Work.of_course(parameters, 10, Fidelity(1, rate))
            cost = truth.cost(work)
            found.append(RoundRecord(work, cost.communication_s, cost.computation_s))
    fitted = calibrate(found).system
    assert fitted.server_upload_bytes_per_s == pytest.approx(2e6, rel=1e-6)
    assert fitted.client_upload_bytes_per_s == pytest.approx(3e5, rel=1e-6)


# -------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_clients_exchange_just_their_share(share: float) -> None:
    accuracy, samples = np.array([[1.0, 0.0]]), np.array([[100_000, 100_000]])
    found = exchange_samples(accuracy, samples, share, np.random.default_rng(0))
    # A share of the right answers is pooled; half of the pool comes back.
    np.testing.assert_allclose(found, [[1 - share / 2, share / 2]], atol=0.01)


def test_repeated_questions_are_remembered_by_episode() -> None:
    trials = np.array([0, 5])
    draws = TrialStreams(trials, freeze_thaw=True)
    draws.restart(slice(None), np.array([7, 7]))
    together = [rng.random() for rng in draws.of(np.array([0, 1]), ["q", "q"])]
    assert together[0] != together[1]
    trials += 1
    again = [rng.random() for rng in draws.of(np.array([0, 1]), ["q", "q"])]
    assert again == together
    assert draws.of(np.array([0]), ["other"])[0].random() not in together


def test_of_equal_losses_the_first_round_is_best() -> None:
    metrics = np.zeros((1, 4, 2, 3, 3))
    metrics[0, :, :, 1, 0] = np.array([2.0, 1.0, 1.0, 1.5])[:, None]
    assert best_rounds(metrics, np.ones((2, 3), np.int64)).tolist() == [[0, 1, 1, 1]]


# ------------------------------------------------------------------------------ what is paid for


def test_nothing_is_earned_after_the_budget() -> None:
    reward = IncumbentReward(make_env(), kind="anytime", budget_s=100.0)
    gained = reward.value.rewards(np.zeros(3), np.ones(3), 1.0, np.array([50.0, 100.0, 250.0]), 1.0)
    assert gained.tolist() == [0.5, 0.0, 0.0]


def test_rounds_are_paid_once_where_courses_go_on() -> None:
    env = make_env(freeze_thaw=True, budget_rounds=162, fidelity={"round": 81}, grid=True)
    env.reset(seed=0)
    action = np.zeros(env.action_space.shape or (), np.float32)
    for _ in range(5):
        observation, _, terminated, _, info = env.step(action)
        assert info["fidelity"]["round"] == 81
        assert not terminated
        assert observation["remaining_budget"][0] == pytest.approx(0.5)
    assert env.step(-np.ones_like(action))[2]


def test_what_selection_reveals_is_of_whole_trials() -> None:
    task = get_task("LR-BloodTransfusion-v1").variant(algorithm="nbafl")
    query = ({}, Fidelity(100, 1.0))
    ledgers = [TuningLedger(1), TuningLedger(1)]
    ledgers[0].end(0, task, query, 100)
    ledgers[1].end(0, task, query, 40)
    whole, some = (ledger.info(0) for ledger in ledgers)
    assert some["selection_epsilon"] == whole["selection_epsilon"]
    assert some["renyi_2"] == pytest.approx(0.4 * whole["renyi_2"])


def test_no_more_than_the_best_third_is_promoted() -> None:
    box = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    agent: Any = agent_class("asha")(box_problem(box, 0, Dimension("round", 1, 27, "int")))
    asked: list[Any] = []
    again = []
    for number in range(5):
        action = agent.ask({})
        again.append(any(np.array_equal(action[:-1], other[:-1]) for other in asked))
        asked.append(action)
        agent.tell(Step(action, -float(number)))
    # After two results nobody is of the best third; after three one is, and it runs next.
    assert again == [False, False, False, True, False]


def test_nothing_is_worth_more_than_the_ideal_point() -> None:
    seen: Any = SimpleNamespace(ideal=np.zeros(2), nadir=np.ones(2), normalised=lambda error: error)
    assert volume(np.array([[-0.5, 0.5]]), seen) == pytest.approx(0.5)
    assert volume(np.array([[-1.0, -1.0]]), seen) == pytest.approx(1.0)
