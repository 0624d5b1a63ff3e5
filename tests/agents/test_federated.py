"""Agents of federated tuning, and populations on a course whose best configuration moves."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from fake_study import FakeEnv
from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.agents.auto_fedrl import AutoFedRL, AutoFedRLSettings
from fedhpo_gym.agents.base import SearchProblem, Step
from fedhpo_gym.agents.fedhyper import FedHyper
from fedhpo_gym.agents.fedpop import FedPop, FedPopSettings
from fedhpo_gym.agents.fts import PrivateSettings, PrivateThompson
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.studies.population import (
    Generation,
    PopulationSettings,
    evolve_population,
    exploit,
    explore,
)
from fedhpo_gym.testing.analytic import AnalyticRounds
from problems import box_problem

ROWS = gym.spaces.Box(-1.0, 1.0, (4, 2), np.float32)
TARGET = np.array([0.4, -0.4])


def rounds(agent: Any, number: int) -> list[np.ndarray]:
    """Let four clients, all sampled, train; their loss falls most at the target."""
    actions = []
    for _ in range(number):
        action = agent.ask({"sampled": np.ones(4, np.float32)})
        after = 1.0 + ((action - TARGET) ** 2).sum(axis=1)
        info = {
            "val_loss_before": np.full(4, 3.0),
            "val_loss_after": after,
            "num_val_samples": np.full(4, 10),
        }
        agent.tell(Step(action, 0.0, info=info))
        actions.append(action)
    return actions


@pytest.mark.parametrize("surface", ["sgm", "aplm", "mplm"])
def test_flora_searches_and_then_stays_at_the_lowest_point(surface: Any) -> None:
    pytest.importorskip("sklearn")
    from fedhpo_gym.agents.flora import FLoRA

    agent = FLoRA(box_problem(ROWS, 0), local_steps=12, surface=surface)
    actions = rounds(agent, 15)
    assert len({str(row) for action in actions[:12] for row in action}) == 48
    assert len({str(row) for action in actions[12:] for row in action}) == 1
    assert ((actions[-1][0] - TARGET) ** 2).sum() < 0.15
    with pytest.raises(UnknownNameError, match="loss surface"):
        FLoRA(box_problem(ROWS), surface="mean")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="`local_steps`"):
        FLoRA(box_problem(ROWS), local_steps=0)


def test_fedpop_moves_its_population_to_the_target() -> None:
    agent = FedPop(box_problem(ROWS, 1), settings=FedPopSettings(resample=0.0))
    start = agent.population.copy()
    actions = rounds(agent, 2)
    np.testing.assert_allclose(np.concatenate(actions), start, atol=1e-6)
    changed = (agent.population != start).any(axis=1)
    worst = np.argsort(((start - TARGET) ** 2).sum(axis=1))[-2:]
    assert set(np.flatnonzero(changed)) == set(worst), "the worst quarter becomes copies"
    rounds(agent, 60)
    late = ((agent.population - TARGET) ** 2).sum(axis=1).mean()
    assert late < 0.25 * ((start - TARGET) ** 2).sum(axis=1).mean()
    with pytest.raises(InvalidArgumentError, match="`members`"):
        FedPopSettings(members=1)


def test_auto_fedrl_follows_the_reward() -> None:
    box = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    settings = AutoFedRLSettings(rate=0.3)
    agent = AutoFedRL(box_problem(box, 0, process="round"), settings=settings)
    for _ in range(200):
        action = agent.ask({})
        agent.tell(Step(action, -float(((action - TARGET) ** 2).sum())))
    assert np.abs(agent.mean - TARGET).max() < 0.25
    assert (agent.deviation < settings.width).all()
    before = agent.mean.copy()
    agent.tell(Step(agent.ask({}), float("nan")))
    np.testing.assert_array_equal(agent.mean, before)
    with pytest.raises(InvalidArgumentError, match="`narrowest`"):
        AutoFedRLSettings(narrowest=0.0)


def test_a_mixture_is_a_noisy_weighted_sum_of_clipped_messages() -> None:
    quiet = PrivateSettings(share=1.0, noise_multiplier=1e-12, clip=2.0, shared_features=20)
    policy = PrivateThompson(3, 2, 0, quiet)
    rng = np.random.default_rng(0)
    for client in range(3):
        for _ in range(4):
            point = rng.random(2)
            policy.observe(client, point, 1.0 - float(((point - 0.5) ** 2).sum()))
    gain = 1.0 + 9.0 * np.exp(-7 / 20)
    limit = 2.0 / np.sqrt(2)
    expected = np.zeros((2, 20))
    for part, weights in enumerate(([gain, 1.0, gain], [1.0, gain, 1.0])):
        for client in range(3):
            message = policy.message(client)
            clipped = message * min(1.0, limit / np.linalg.norm(message))
            expected[part] += weights[client] / sum(weights) * clipped
    np.testing.assert_allclose(policy.mixture(7), expected, atol=1e-9)
    loud = PrivateThompson(3, 2, 0, PrivateSettings(noise_multiplier=2.0, clip=2.0, share=0.5))
    # Before any message: noise of z S max(phi) / q, and the largest weight is 10 of 10 + 1 + 1.
    noise = 2.0 * 2.0 * (10 / 12) / 0.5
    assert np.std(loud.mixture(0)) == pytest.approx(noise, rel=0.15)
    again = PrivateThompson(3, 2, 0, quiet)
    again.restore(policy.to_dict())
    np.testing.assert_array_equal(again.mixture(7), policy.mixture(7))


def test_the_noise_of_a_mixture_is_seen_on_one_sum_only() -> None:
    """The difference of two sums with the same noise would be that of the messages, bare."""
    policy = PrivateThompson(2, 2, 0, PrivateSettings(initial=1, share=1.0, shared_features=20))
    policy.observe(0, [0.2, 0.3], 0.5)
    first = policy.mixture(4)
    policy.observe(0, [0.9, 0.8], 1.0)
    again = PrivateThompson(2, 2, 0, PrivateSettings(initial=1, share=1.0, shared_features=20))
    again.restore(json.loads(json.dumps(policy.to_dict())))
    for one in (policy, again):
        np.testing.assert_array_equal(one.mixture(4), first)
    assert np.abs(policy.mixture(5) - first).min() > 1e-6
    for client in [0] * 5 + [1] * 7:  # nobody needs 4 any more, so 6 forgets it
        policy.observe(client, [0.5, 0.5], 0.5)
    policy.mixture(7)
    with pytest.raises(InvalidArgumentError, match=r"`trial` must be .* at least 7, got 4"):
        policy.mixture(4)


def test_clients_explore_their_own_part_first() -> None:
    policy = PrivateThompson(4, 2, 0, PrivateSettings(halvings=2))
    points = np.array([policy.suggest(client) for client in range(4)])
    np.testing.assert_array_equal(policy.part_of(points), [0, 1, 2, 3])
    with pytest.raises(InvalidArgumentError, match="`halvings`"):
        PrivateThompson(4, 2, 0, PrivateSettings(halvings=3))
    with pytest.raises(InvalidArgumentError, match="share"):
        PrivateThompson(4, 2, 0, PrivateSettings(share=2.0))


@pytest.mark.parametrize("name", ["fedpop", "dp-fts-de", "flora"])
def test_diverged_clients_teach_nothing(name: str) -> None:
    env = AnalyticRounds(per_client=True, horizon=4)

    class Lost(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            seen, reward, over, cut, info = self.env.step(action)
            return seen, reward, over, cut, {**info, "val_loss_after": [float("nan")] * 5}

    steps = list(run_episode(Lost(env), make_agent(name, env, 0), 0))
    assert len(steps) == 4


def rates(agent: FedHyper, name: str, products: list[float]) -> list[float]:
    """Return the learning rates that an agent asks for, step by step."""
    found = []
    for product in [*products, 0.0]:
        action = agent.ask({})
        found.append(float(agent.problem.search_space.decode(action)[name]))
        agent.tell(Step(action, 0.0, info={"move_product": product}))
    return found


def course_problem(*dimensions: Dimension) -> SearchProblem:
    box = gym.spaces.Box(-1.0, 1.0, (len(dimensions),), np.float32)
    space = SearchSpace(dimensions)
    return SearchProblem(box, space, SearchSpace(()), seed=0, process="round")


CLIENT = Dimension("learning_rate", 0.001, 10.0, "float", log=True)
SERVER = Dimension("server_learning_rate", 0.01, 10.0, "float", log=True)


def test_fedhyper_moves_the_clients_rate_by_hand() -> None:
    agent = FedHyper(course_problem(CLIENT), configuration={"learning_rate": 0.1})
    # The factor: 1, + 0 (no move before), + 0.5, - 0.75, clipped to a tenth, clipped to ten, stays.
    found = rates(agent, "learning_rate", [0.0, 0.5, -0.75, -2.0, 50.0, float("nan")])
    assert found == pytest.approx([0.1, 0.1, 0.15, 0.075, 0.01, 1.0, 1.0], rel=1e-4)


def test_fedhyper_takes_the_servers_rate_out_of_the_moves() -> None:
    agent = FedHyper(course_problem(CLIENT, SERVER), configuration={"server_learning_rate": 2.0})
    # Moves were made with rates a and b, so their product is divided by a and b:
    # 1.2 / (2 * 2) = 0.3, so the rate is 2.6; 2.6 / (2 * 2.6) = 0.5, so it is 3.6; then 9: too far.
    found = rates(agent, "server_learning_rate", [0.0, 1.2, 2.6, 9.0 * 2.6 * 3.6])
    assert found == pytest.approx([2.0, 2.0, 2.6, 3.6, 6.0], rel=1e-4)


def test_fedhyper_refuses_what_it_cannot_move() -> None:
    with pytest.raises(InvalidArgumentError, match="`dynamic` must hold"):
        FedHyper(course_problem(Dimension("step_size", 1, 4, "int")))
    with pytest.raises(UnknownNameError, match="dimension"):
        FedHyper(course_problem(CLIENT), dimension="server_learning_rate")
    sizes = course_problem(CLIENT, Dimension("batch_size", 1, 64, "int"))
    with pytest.raises(InvalidArgumentError, match="`dimension` must be a learning rate, got 'bat"):
        FedHyper(sizes, dimension="batch_size")
    with pytest.raises(InvalidArgumentError, match="`gamma`"):
        FedHyper(course_problem(CLIENT), gamma=1.0)
    with pytest.raises(InvalidArgumentError, match="`step`"):
        FedHyper(course_problem(CLIENT), step=0.0)
    agent = FedHyper(course_problem(CLIENT))
    with pytest.raises(InvalidArgumentError, match="report_moves=True"):
        agent.tell(Step(agent.ask({}), 0.0))


SPACE = SearchSpace(
    (
        Dimension("learning_rate", 0.01, 1.0, "float", log=True),
        Dimension("batch_size", 8, 64, "int", values=(8, 16, 32, 64)),
        Dimension("epochs", 1, 9, "int"),
    )
)


class MovingCourse(gym.Env[Any, NDArray[np.float32]]):
    """A step's reward is 1 less the distance of the action from a target that moves.

    The target goes from -0.8 to 0.8 in `length` steps, in every coordinate. An action of 0.8 or
    more in the last coordinate ends the course with a penalty, as a divergence does.
    """

    def __init__(self, length: int = 40, width: int = 1, *, deadly: bool = False) -> None:
        self.length = length
        self.deadly = deadly
        self.action_space = gym.spaces.Box(-1, 1, (width,))
        self.observation_space = gym.spaces.Box(0, 1, (1,))
        self.t = 0
        self.past: list[float] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.past = 0, []
        return np.zeros(1, np.float32), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        target = -0.8 + 1.6 * self.t / (self.length - 1)
        self.t += 1
        self.past.append(float(action[0]))
        dead = self.deadly and bool(action[-1] >= 0.8)
        reward = -5.0 if dead else 1.0 - float(np.abs(action - target).mean())
        return np.zeros(1, np.float32), reward, dead, self.t >= self.length, {}

    def snapshot(self) -> Any:
        return self.t, tuple(self.past)

    def restore(self, snapshot: Any) -> None:
        self.t, self.past = snapshot[0], list(snapshot[1])


LINE = SearchSpace((Dimension("x", 0.1, 10.0, "float", log=True),))


def generations(seed: int = 0, **settings: Any) -> list[Generation]:
    return list(evolve_population(MovingCourse(), LINE, seed, PopulationSettings(**settings)))


def reward_of(actions: NDArray[np.float64]) -> float:
    return float((1 - np.abs(actions - np.linspace(-0.8, 0.8, len(actions)))).sum())


def test_a_population_follows_what_no_fixed_configuration_can() -> None:
    best_fixed = max(reward_of(np.full(40, x)) for x in np.linspace(-1, 1, 201))
    found = [generations(seed, interval=2)[-1].best.score for seed in range(3)]
    assert np.mean(found) > best_fixed + 2.0


def test_scores_are_the_rewards_of_the_courses_that_were_really_trained() -> None:
    run = generations(seed=1, interval=3)
    assert len(run) == 14
    for member in run[-1].members:
        steps, past = member.snapshot
        assert steps == len(past) == 40
        assert member.score == pytest.approx(reward_of(np.array(past)))
        assert member.over


def test_who_copies_continues_the_course_of_its_parent() -> None:
    run = generations(seed=2, interval=2, members=6, truncation=0.34)
    copies = 0
    for before, after in pairwise(run):
        for i, (member, parent) in enumerate(zip(after.members, after.parents, strict=True)):
            past = before.members[parent].snapshot[1]
            assert member.snapshot[1][: len(past)] == past
            if parent == i:
                np.testing.assert_array_equal(member.action, before.members[i].action)
            else:
                copies += 1
                assert before.members[parent].score >= before.members[i].score
    assert copies == 3 * (len(run) - 1)


def test_the_seed_decides_everything() -> None:
    def actions(seed: int) -> list[Any]:
        return [member.action.tolist() for g in generations(seed) for member in g.members]

    assert actions(4) == actions(4)
    assert actions(4) != actions(5)


def test_members_whose_course_diverged_are_replaced_by_those_that_go_on() -> None:
    space = SearchSpace((LINE["x"], Dimension("y", 0.0, 1.0, "float")))
    env = MovingCourse(width=2, deadly=True)
    settings = PopulationSettings(members=40, truncation=0.25, resample=0.0)
    first, second, *_ = run = list(evolve_population(env, space, 0, settings))
    dead = [i for i, member in enumerate(first.members) if member.over]
    assert dead
    assert all(second.parents[i] not in dead for i in dead)
    assert run[-1].best.snapshot[0] == 40


def test_exploit_by_hand() -> None:
    rng = np.random.default_rng(0)
    scores = [5.0, 1.0, 4.0, 2.0, 3.0]
    drawn = np.array([exploit(scores, 0.4, rng) for _ in range(200)])
    assert (drawn[:, [0, 2, 4]] == [0, 2, 4]).all()
    for loser in (1, 3):
        counts = np.bincount(drawn[:, loser], minlength=5)
        assert set(np.flatnonzero(counts)) == {0, 2}
        assert counts.max() < 140
    assert (exploit([1.0, 2.0], 0.5, rng) == [1, 1]).all()
    assert (exploit([1.0, 2.0, 3.0], 0.5, rng) == [2, 1, 2]).all()


def test_explore_multiplies_values_and_moves_integers_at_least_one_step() -> None:
    settings = PopulationSettings(resample=0.0)
    start = {"learning_rate": 0.1, "batch_size": 32, "epochs": 2}
    rng = np.random.default_rng(0)
    seen = [SPACE.decode(explore(SPACE, SPACE.encode(start), settings, rng)) for _ in range(60)]
    assert {round(c["learning_rate"], 5) for c in seen} == {0.08, 0.12}
    assert {c["batch_size"] for c in seen} == {16, 64}
    assert {c["epochs"] for c in seen} == {1, 3}
    larger = [
        SPACE.decode(explore(SPACE, np.ones(3, np.float32), settings, rng)) for _ in range(60)
    ]
    assert {round(c["learning_rate"], 5) for c in larger} == {0.8, 1.0}
    assert {c["batch_size"] for c in larger} == {32, 64}
    assert {c["epochs"] for c in larger} == {7, 9}


def test_explore_draws_anew_as_often_as_it_is_told() -> None:
    settings = PopulationSettings(resample=0.3)
    rng = np.random.default_rng(1)
    start = SPACE.encode({"learning_rate": 0.1, "batch_size": 8, "epochs": 5})
    values = [SPACE.decode(explore(SPACE, start, settings, rng)) for _ in range(1500)]
    kept = np.mean([min(abs(c["learning_rate"] - x) for x in (0.08, 0.12)) < 1e-6 for c in values])
    assert kept == pytest.approx(0.7, abs=0.04)


@pytest.mark.parametrize(
    "bad",
    [
        {"members": 1},
        {"interval": 0},
        {"truncation": 0.6},
        {"resample": -0.1},
        {"factors": (1.1, 1.2)},
    ],
    ids=str,
)
def test_wrong_settings_are_named(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"`{next(iter(bad))}`"):
        PopulationSettings(**bad)


def test_an_environment_without_snapshots_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"snapshot\(\) and restore\(\)"):
        next(evolve_population(FakeEnv(budget_s=1000.0), LINE, 0))
