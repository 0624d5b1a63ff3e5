"""FedEx as an agent: alone, personalised, and inside any optimizer."""

from __future__ import annotations

from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from wrapped_fedex import (
    NOTHING_LEARNED,
    Neighbourhood,
    WrappedTrial,
    perturbed_arms,
    row_problem,
    row_space,
    wrapped_search,
)

from fedhpo_gym.agents import (
    Agent,
    SearchProblem,
    Step,
    agent_class,
    make_agent,
    read_problem,
    run_episode,
)
from fedhpo_gym.agents.clients import ArmFeedback, ArmGrid, listed_arms
from fedhpo_gym.agents.fedex import FedEx, FedExSettings
from fedhpo_gym.agents.fedex_personalised import (
    Adam,
    PersonalisedFedEx,
    PersonalPolicy,
    PersonalSettings,
    backward_pass,
    forward_pass,
    initial_parameters,
)
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.space import Dimension, SearchSpace
from problems import BowlClients, box_problem

SPACE = SearchSpace(
    (
        Dimension("step_size", 0.01, 1.0, "float", log=True),
        Dimension("batch_size", 16, 64, "int", values=(16, 32, 64)),
    )
)


def bowls(steps: int = 60, clients: int = 12) -> BowlClients:
    return BowlClients(np.tile([0.5, -0.25], (clients, 1)), sampled=6, steps=steps)


def mean_losses(env: BowlClients, name: str, seed: int) -> np.ndarray:
    for _ in run_episode(env, make_agent(name, env, seed), seed=seed):
        pass
    return np.array([losses.mean() for losses in env.played])


@pytest.mark.parametrize("name", ["fedex", "fedex-personalised"])
def test_the_losses_of_the_clients_fall(name: str) -> None:
    first, last = [], []
    for seed in range(2):
        losses = mean_losses(bowls(), name, seed)
        first.append(losses[:5].mean())
        last.append(losses[-10:].mean())
    assert np.mean(last) < 0.5 * np.mean(first)


def test_it_finds_the_best_arm_and_sampled_clients_play_arms() -> None:
    arms = listed_arms([[0.5, -0.25], [-1, -1], [1, 1], [-0.5, 0.5]])
    env = bowls()
    agent = FedEx(read_problem(env, 0), arms=arms, settings=FedExSettings(gamma=1.0))
    allowed = arms.factors[0].astype(np.float32).tolist()
    for step in run_episode(env, agent, seed=0):
        assert all(row in allowed for row in step.action.tolist())
    np.testing.assert_array_equal(agent.best_actions()[3], np.float32([0.5, -0.25]))
    assert agent.policy.certainty() > 0.9
    assert len(agent.policy.traces.after) == env.steps


def test_a_grid_is_learned_one_factor_at_a_time() -> None:
    arms = ArmGrid((np.array([[-0.9], [0.5]]), np.array([[-0.25], [0.9], [0.2]])))
    assert (arms.sizes, arms.width) == ((2, 3), 2)
    env = bowls(steps=150)
    agent = FedEx(read_problem(env, 0), arms=arms, settings=FedExSettings(gamma=1.0, eta0=0.3))
    list(run_episode(env, agent, seed=0))
    assert agent.policy.mle() == (1, 0)


def test_it_learns_from_clients_that_report_and_punishes_divergence() -> None:
    env = bowls()
    agent = FedEx(read_problem(env, 0), settings=FedExSettings(diff=True))
    action = agent.ask({"sampled": np.array([1, 0, 1, 1] + [0] * 8)})
    info = {
        "val_loss_before": np.array([2.0, 0, 3.0, 4.0] + [0] * 8),
        "val_loss_after": np.array([1.0, 0, np.nan, 3.0] + [0] * 8),
        "num_val_samples": np.array([3, 9, 9, 1] + [9] * 8),
    }
    agent.tell(Step(action, 0.0, info=info))
    # The third client diverged: twice the highest finite loss, which is 4. Its arm loses most.
    assert agent.policy.traces.after == pytest.approx([(3 * 1.0 + 9 * 8.0 + 1 * 3.0) / 13])
    with pytest.raises(InvalidArgumentError, match="per_client=True"):
        agent.tell(Step(action, 0.0))
    with pytest.raises(InvalidArgumentError, match="per_client=True"):
        agent.ask({})


def test_without_a_single_report_it_learns_nothing() -> None:
    env = bowls()
    agent = FedEx(read_problem(env, 0))
    before = agent.policy.to_dict()
    action = agent.ask({"sampled": np.zeros(12)})
    nothing = {name: np.zeros(12) for name in ("val_loss_before", "val_loss_after")}
    agent.tell(Step(action, 0.0, info={**nothing, "num_val_samples": np.ones(12)}))
    assert agent.policy.to_dict() == before


def test_arms_of_another_width_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="`arms` must have 2 coordinates"):
        FedEx(read_problem(bowls(), 0), arms=listed_arms([[0.0], [1.0]]))
    with pytest.raises(InvalidArgumentError, match="`factors`"):
        listed_arms([[2.0]])
    with pytest.raises(InvalidArgumentError, match="`factors`"):
        ArmGrid(())


def test_perturbed_arms_surround_their_centre() -> None:
    rng = np.random.default_rng(0)
    centre = SPACE.encode({"step_size": 0.1, "batch_size": 32})
    arms = perturbed_arms(centre, 200, 0.1, rng, SPACE).factors[0]
    np.testing.assert_array_equal(arms[0], centre)
    moves = np.abs(arms[:, 0] - centre[0])
    assert 0.19 < moves.max() <= 0.2, "a tenth of the range [-1, 1] either way"
    configs = [SPACE.decode(arm) for arm in arms]
    counts = [sum(c["batch_size"] == b for c in configs) for b in (16, 32, 64)]
    assert min(counts) > 50, "integers on a grid reach their neighbours"
    assert len({c["step_size"] for c in configs}) == 200


def test_perturbed_arms_end_at_the_edge_and_one_arm_is_the_centre() -> None:
    rng = np.random.default_rng(0)
    arms = perturbed_arms([1.0, 1.0], 50, 0.6, rng, SPACE).factors[0]
    assert arms.max() <= 1.0
    assert {SPACE.decode(arm)["batch_size"] for arm in arms} == {16, 32, 64}
    np.testing.assert_array_equal(perturbed_arms([0.3], 1, 0.1, rng).factors[0], [[0.3]])
    still = perturbed_arms([0.3, 0.0], 9, 0.0, rng, SPACE).factors[0]
    assert (still == [0.3, 0.0]).all()


def test_wrong_neighbourhoods_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidArgumentError, match="`number`"):
        perturbed_arms([0.0], 0, 0.1, rng)
    with pytest.raises(InvalidArgumentError, match="`epsilon`"):
        perturbed_arms([0.0], 2, 1.1, rng)
    with pytest.raises(InvalidArgumentError, match="`centre`"):
        perturbed_arms([0.0], 2, 0.1, rng, SPACE)


def eight_bowls(steps: int = 25) -> BowlClients:
    return BowlClients(np.tile([0.5, -0.25], (8, 1)), sampled=4, steps=steps)


def trials(name: str, number: int, seed: int = 0, **options: Any) -> list[WrappedTrial]:
    env = eight_bowls()
    outer = agent_class(name)(row_problem(env, seed))
    settings = FedExSettings(gamma=1.0)
    search = wrapped_search(env, outer, seed, Neighbourhood(settings=settings, **options))
    return list(islice(search, number))


def test_one_arm_is_the_optimizer_alone() -> None:
    for trial in trials("random", 3, arms=1):
        assert trial.arms.sizes == (1,)
        assert len(trial.steps) == len(trial.traces.after) == 25
        assert all((step.action == trial.centre).all() for step in trial.steps)
        loss = ((trial.centre - np.array([0.5, -0.25])) ** 2).sum() + 0.1
        assert trial.score == pytest.approx(-loss, rel=1e-5)
        np.testing.assert_array_equal(trial.best, trial.centre)


def test_wrapping_gets_equal_training_and_improves_on_the_centre() -> None:
    plain, wrapped = (trials("random", 6, arms=arms, epsilon=0.3) for arms in (1, 27))
    for before, after in zip(plain, wrapped, strict=True):
        np.testing.assert_array_equal(after.centre, before.centre)
        np.testing.assert_array_equal(after.arms.factors[0][0], after.centre)
        assert len(after.steps) == len(before.steps)
        assert after.score > before.score


def test_the_optimizer_learns_from_what_it_is_told() -> None:
    wrapped = trials("optuna-tpe", 30, arms=3)
    distances = [np.abs(trial.centre - [0.5, -0.25]).sum() for trial in wrapped]
    assert np.mean(distances[-8:]) < 0.7 * np.mean(distances[:10])


def test_the_seed_decides_everything() -> None:
    def scores(seed: int) -> list[float]:
        return [trial.score for trial in trials("random", 2, seed)]

    assert scores(1) == scores(1)
    assert scores(1) != scores(2)


def test_grids_of_the_space_are_kept() -> None:
    env = eight_bowls()
    space = SearchSpace(
        (
            Dimension("step_size", 0.01, 1.0, "float", log=True),
            Dimension("batch_size", 16, 64, "int", values=(16, 32, 64)),
        )
    )
    outer = agent_class("random")(row_problem(env, 0))
    trial = next(wrapped_search(env, outer, 0, space=space))
    cells = {round(float(x), 6) for x in trial.arms.factors[0][1:, 1]}
    assert cells <= {round(space["batch_size"].encode(v), 6) for v in (16, 32, 64)}


class Listener(Agent):
    """Asks for the centre and keeps what it is told."""

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        self.told: list[float] = []

    def ask(self, observation: Any) -> np.ndarray:
        return np.zeros(2, np.float32)

    def tell(self, step: Step) -> None:
        self.told.append(step.reward)


def test_every_neighbourhood_is_drawn_anew_and_explored_anew() -> None:
    env = eight_bowls()
    listener = Listener(row_problem(env, 0))
    first, second = islice(wrapped_search(env, listener, 0), 2)
    assert not np.array_equal(first.arms.factors[0][1:], second.arms.factors[0][1:])
    still = Neighbourhood(epsilon=0.0)
    first, second = islice(wrapped_search(env, listener, 0, still), 2)
    np.testing.assert_array_equal(first.arms.factors[0], second.arms.factors[0])
    assert first.traces.mle != second.traces.mle


class Mute(BowlClients):
    """No client has validation data."""

    def step(self, action: Any) -> Any:
        *outcome, info = super().step(action)
        return (*outcome, {**info, "num_val_samples": np.zeros(len(self.optima))})


def test_a_course_nobody_reports_on_gets_the_worst_score() -> None:
    env = Mute(np.zeros((3, 2)), sampled=2, steps=4)
    listener = Listener(row_problem(env, 0))
    trial = next(wrapped_search(env, listener, 0))
    assert listener.told == [NOTHING_LEARNED] == [trial.score]


def test_other_spaces_are_refused() -> None:
    env = eight_bowls()
    with pytest.raises(InvalidArgumentError, match="per_client=True"):
        row_space(gym.spaces.Box(-1, 1, (2,)))
    outer = agent_class("random")(box_problem(gym.spaces.Box(-1, 1, (3,))))
    with pytest.raises(InvalidArgumentError, match="`outer` must act in"):
        next(wrapped_search(env, outer, 0))


def test_hand_gradients_equal_finite_differences() -> None:
    rng = np.random.default_rng(0)
    parameters = initial_parameters((4, 7, 5), (3, 2), rng)
    encodings = rng.standard_normal((6, 4))
    slopes = [rng.standard_normal((6, arms)) for arms in (3, 2)]

    def loss() -> float:
        log_theta = forward_pass(parameters, encodings).log_theta
        return float(sum((s * logs).sum() for s, logs in zip(slopes, log_theta, strict=True)))

    gradients = backward_pass(parameters, forward_pass(parameters, encodings), slopes)
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
    before = forward_pass(parameters, encodings).log_theta[0]
    parameters["layer0.weight"] *= 10.0
    np.testing.assert_allclose(forward_pass(parameters, encodings).log_theta[0], before)
    parameters["head0.weight"] *= 2.0
    assert not np.allclose(forward_pass(parameters, encodings).log_theta[0], before)


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
