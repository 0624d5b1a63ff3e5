"""Population-based training on a course whose best configuration moves with time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from fake_study import FakeEnv
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.studies.population import Generation, PopulationSettings, evolve, exploit, explore

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
    return list(evolve(MovingCourse(), LINE, seed, PopulationSettings(**settings)))


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
    first, second, *_ = run = list(evolve(env, space, 0, settings))
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
        next(evolve(FakeEnv(budget_s=1000.0), LINE, 0))
