"""FedEx as an agent on a per-client environment, and the arms it chooses from."""

from __future__ import annotations

import numpy as np
import pytest

from fedhpo_gym.agents import make_agent, read_problem, run_episode
from fedhpo_gym.agents.base import Step
from fedhpo_gym.agents.clients import ArmGrid, listed_arms, perturbed_arms
from fedhpo_gym.agents.fedex import FedEx, FedExSettings
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.space import Dimension, SearchSpace
from problems import BowlClients

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
