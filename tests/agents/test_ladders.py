"""Agents that choose how long trials are: brackets by hand, what is promoted, what a model adds."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from scipy import stats
from wrapped_fedex import Neighbourhood, row_problem, wrapped_search

from fedhpo_gym.agents import agent_class, bohb, make_agent, run_episode
from fedhpo_gym.agents.base import Step
from fedhpo_gym.agents.bohb import BOHB, Belief, Density, PriorBand, expert_prior
from fedhpo_gym.agents.multi_fidelity import ASHA, DEHB, Hyperband
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.testing import make_env
from problems import LADDER_BOX, ROUNDS, TARGET, BowlClients, bowl, box_problem, play

RATE = Dimension("client_sample_rate", 0.2, 1.0, "float", values=(0.2, 0.4, 0.6, 0.8, 1.0))
DATA = Path(__file__).parents[1] / "data"
SMALL = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)


def made(name: str, seed: int, **options: Any) -> Any:
    """Return an agent for `SMALL`."""
    return agent_class(name)(box_problem(SMALL, seed, ROUNDS), **options)


def asked(agent: Any, number: int) -> list[tuple[Any, int, float]]:
    """Return (configuration, rounds, score) of trials; nearer to the target is better."""
    told = play(agent, number, lambda action: -float(np.abs(action[:2] - TARGET[:2]).sum()))
    return [(action[:2], int(ROUNDS.decode(float(action[2]))), score) for action, score in told]


def rounds_of(agent: Any, number: int, score: Any = bowl) -> list[int]:
    return [int(ROUNDS.decode(float(action[3]))) for action, _ in play(agent, number, score)]


def test_brackets_by_hand() -> None:
    """27 rounds at the most and 3 at the least: 9 + 3 + 1, then 3 + 1, then 3 configurations."""
    bracket, rest = [3] * 9 + [9] * 3 + [27], [9] * 3 + [27] + [27] * 3
    for name, once in [
        ("successive-halving", bracket),
        *((each, bracket + rest) for each in ("hyperband", "bohb", "dehb")),
    ]:
        agent: Any = agent_class(name)(box_problem(LADDER_BOX, 0, ROUNDS), low=3)
        assert agent.rungs == (3, 9, 27)
        assert rounds_of(agent, 2 * len(once)) == once * 2
    assert [len(members) for members in agent.populations] == [9, 3, 3]


def test_asha_promotes_by_hand() -> None:
    """With eta 3: the third result of a rung promotes its best, from the highest rung down."""
    agent = ASHA(box_problem(LADDER_BOX, 0, ROUNDS), low=3)
    scores = iter([0.1, 0.9, 0.2, 0.9, 0.3, 0.4, 0.8, 0.8, 0.5, 0.0, 0.7, 0.7, 0.99])
    told = play(agent, 13, lambda _: next(scores))
    rounds = [int(ROUNDS.decode(float(a[3]))) for a, _ in told]
    assert rounds == [3, 3, 3, 9, 3, 3, 3, 9, 3, 3, 3, 9, 27]
    np.testing.assert_array_equal(told[3][0][:3], told[1][0][:3])
    np.testing.assert_array_equal(told[7][0][:3], told[6][0][:3])
    np.testing.assert_array_equal(told[12][0][:3], told[1][0][:3])


@pytest.mark.parametrize("name", ["hyperband", "asha", "dehb", "bohb", "successive-halving"])
def test_a_worker_is_never_without_a_trial(name: str) -> None:
    """Four trials are always in flight, as of four workers; the oldest is told first."""
    agent = agent_class(name)(box_problem(LADDER_BOX, 0, ROUNDS), low=3)
    flying = [agent.ask({}) for _ in range(4)]
    for _ in range(60):
        agent.tell(Step(flying[0], bowl(flying.pop(0))))
        flying.append(agent.ask({}))
    rounds = [int(ROUNDS.decode(float(a[3]))) for a in agent.actions]
    assert set(rounds) == {3, 9, 27}


@pytest.mark.parametrize("name", ["tpe-md", "tpe-hb"])
def test_what_is_pruned_is_not_charged_any_more(name: str) -> None:
    agent = agent_class(name)(box_problem(LADDER_BOX, 0, ROUNDS), low=3)
    tried: dict[str, list[int]] = {}
    for action, _ in play(agent, 90, bowl):
        tried.setdefault(str(action[:3]), []).append(int(ROUNDS.decode(float(action[3]))))
    ladders = list(tried.values())
    assert all(rounds in ([3], [3, 9], [3, 9, 27]) for rounds in ladders)
    assert sum(rounds == [3] for rounds in ladders) > 5, "nothing was pruned"
    assert sum(rounds == [3, 9, 27] for rounds in ladders) > 5, "all was pruned"


def test_the_median_rule_by_hand() -> None:
    """Two rungs: the second is reached where the first is at least the median of those who did."""
    agent = agent_class("tpe-md")(box_problem(LADDER_BOX, 3, ROUNDS), low=9)
    came, last = [], None
    for action, score in play(agent, 60, bowl):
        top = ROUNDS.decode(float(action[3])) == 27
        if last is not None:
            assert top == (len(came) < 5 or last >= np.median(came))
        if top:
            came.append(last)
        last = None if top else score
    assert 5 < len(came) < 30


@pytest.mark.parametrize("name", ["hyperband", "bohb", "dehb"])
def test_brackets_are_those_of_other_implementations(name: str) -> None:
    """What the authors' code, hpbandster 0.7.4 and DEHB 0.1.2, said of its brackets."""
    told = json.loads((DATA / "brackets.json").read_text(encoding="utf-8"))
    peer = "dehb" if name == "dehb" else "hpbandster"
    rounds = Dimension("round", 1, 81, "int")
    for one in told[peer]:
        problem = box_problem(LADDER_BOX, 0, rounds)
        agent: Any = agent_class(name)(problem, low=one["low"], high=one["high"])
        wanted = [rung for number, rung in one["runs"] for _ in range(number)]
        found = [rounds.decode(float(a[3])) for a, _ in play(agent, len(wanted), bowl)]
        assert found == wanted
        if name == "dehb":
            assert [len(members) for members in agent.populations] == one["populations"]


def test_ladders_of_the_client_sample_rate_and_of_both() -> None:
    five = gym.spaces.Box(-1.0, 1.0, (5,), np.float32)
    alone = Hyperband(box_problem(LADDER_BOX, 0, RATE), fidelities=["client_sample_rate"])
    assert alone.rungs == (0.4, 1.0)
    agent = Hyperband(
        box_problem(five, 0, ROUNDS, RATE), low=3, fidelities=("round", "client_sample_rate")
    )
    seen = {
        (ROUNDS.decode(float(a[3])), RATE.decode(float(a[4]))) for a, _ in play(agent, 13, bowl)
    }
    assert seen == {(3, 0.2), (9, 0.4), (27, 1.0)}
    with pytest.raises(InvalidArgumentError, match="chooses the fidelity"):
        Hyperband(box_problem(five, 0, ROUNDS, RATE))


@pytest.mark.parametrize("freeze_thaw", [False, True])
def test_rungs_resume_or_start_again(freeze_thaw: bool) -> None:
    env = make_env(budget_trials=13, fidelity={"client_sample_rate": 1.0}, freeze_thaw=freeze_thaw)
    steps = list(run_episode(env, make_agent("hyperband", env, 0, low=3, high=27), 0))
    charged = [step.info["cost"]["rounds"] for step in steps]
    assert charged == [3] * 9 + ([6] * 3 + [18] if freeze_thaw else [9] * 3 + [27])


def test_priors_are_as_good_as_they_say() -> None:
    space = SearchSpace(tuple(Dimension(f"x{i}", -1.0, 1.0, "float") for i in range(3)))
    optimum = dict(zip(space.names, TARGET.tolist(), strict=True))
    apart = {}
    for quality in ("good", "bad"):
        found = [expert_prior(space, {**optimum, "round": 81}, quality, s) for s in range(10)]  # type: ignore[arg-type]
        apart[quality] = np.mean([np.abs(space.encode(one) - TARGET).max() for one in found])
    assert apart["good"] < 0.25 < 1.0 < apart["bad"]


def test_a_good_prior_helps_and_a_bad_one_is_forgotten() -> None:
    def late(prior: dict[str, float] | None, name: str = "priorband") -> float:
        scores = []
        for seed in range(4):
            options = {"prior": prior} if prior else {}
            agent = agent_class(name)(box_problem(LADDER_BOX, seed, ROUNDS), low=3, **options)
            scores += [score for _, score in play(agent, 60, bowl)]
        return -float(np.mean(scores))

    names = ("x0", "x1", "x2")
    good, bad = (dict(zip(names, (s * TARGET).tolist(), strict=True)) for s in (1.0, -1.5))
    assert late(good) < 0.6 * late(None, "hyperband")
    assert late(good) < late(bad)
    with pytest.raises(InvalidArgumentError, match="`prior` must name"):
        PriorBand(box_problem(LADDER_BOX, 0, ROUNDS), prior={"x0": 0.0})


def test_survivors_come_up_in_every_first_bracket_of_dehb() -> None:
    """Ladder 3, 9, 27: brackets 9-3-1, 3-1 and 3 promote; the second turn has no survivors."""
    agent: Any = DEHB(box_problem(LADDER_BOX, 0, ROUNDS), low=3)
    trials = [(a[:3].tolist(), int(ROUNDS.decode(float(a[3])))) for a, _ in play(agent, 40, bowl)]
    first, second = trials[:20], trials[20:]
    known = {rung: [p for p, r in first if r == rung] for rung in (3, 9, 27)}
    for place in (9, 10, 11, 12, 16):  # what came up to 9 and 27 in brackets one and two
        point, rung = first[place]
        assert point in known[rung // 3]
    assert first[16][0] != first[12][0], "what is on a rung already does not come up again"
    before = {str(point) for point, _ in first}
    assert not any(str(point) in before for point, _ in second)


def test_targets_of_dehb_go_on_from_bracket_to_bracket() -> None:
    agent: Any = DEHB(box_problem(LADDER_BOX, 0, ROUNDS), low=3)
    targets: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(40):
        action = agent.ask({})
        ((target),) = agent._targets.values()
        targets[agent.rungs.index(int(ROUNDS.decode(float(action[3]))))].append(target)
        agent.tell(Step(action, bowl(action)))
    for rung, members in enumerate(agent.populations):
        assert targets[rung] == [i % len(members) for i in range(len(targets[rung]))]


def test_a_belief_is_a_density_of_the_box() -> None:
    """Two coordinates: its mass within the box is that of a whole normal one, at any centre."""
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 401)] * 2), axis=-1).reshape(-1, 2)
    masses = [
        Belief(np.array(centre), 0.5).density(grid).mean()
        for centre in ([0.0, 0.0], [1.0, 1.0], [-0.8, 0.3])
    ]
    np.testing.assert_allclose(masses, np.pi / 2 * 0.5**2, rtol=0.01)


@pytest.mark.parametrize("name", ["hyperband", "bohb"])
def test_the_best_third_goes_on(name: str) -> None:
    trials = asked(made(name, 0, low=3), 13)
    first, second, last = trials[:9], trials[9:12], trials[12:]
    for before, after in ((first, second), (second, last)):
        best = sorted(before, key=lambda trial: -trial[2])[: len(after)]
        np.testing.assert_array_equal([t[0] for t in after], [t[0] for t in best])


def test_rungs_end_at_the_top_and_stay_above_the_bottom() -> None:
    def rungs(fidelity: Dimension, **options: Any) -> tuple[Any, ...]:
        return Hyperband(box_problem(SMALL, 0, fidelity), **options).rungs

    assert rungs(ROUNDS) == (1, 3, 9, 27)
    assert rungs(ROUNDS, low=2) == (3, 9, 27)
    assert rungs(ROUNDS, low=27) == (27,)
    assert rungs(ROUNDS, high=16, low=1, eta=2) == (1, 2, 4, 8, 16)
    assert rungs(Dimension("round", 0.1, 0.9, "float")) == pytest.approx((0.1, 0.3, 0.9))
    stored = Dimension("round", 1, 27, "int", values=(1, 9, 27))
    assert rungs(stored, low=9) == (9, 27)
    assert rungs(stored) == (1, 9, 27)
    ours = Dimension("round", 1, 250, "int", values=(1, 2, 3, 4, 9, 27, 81, 250))
    assert rungs(ours) == (1, 3, 9, 27, 81, 250)  # 250 / 9 is 28, and no round that can be asked


def test_the_model_looks_where_configurations_were_good() -> None:
    def distance(name: str) -> float:
        late = [
            score
            for seed in range(5)
            for _, rounds, score in asked(made(name, seed, low=3), 100)[60:]
            if rounds == 3
        ]
        return -float(np.mean(late))

    assert distance("bohb") < 0.7 * distance("hyperband")


def test_without_a_model_bohb_is_hyperband(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bohb, "RANDOM_SHARE", 1.0)
    blind = BOHB(box_problem(SMALL, 3, ROUNDS), low=3)
    prior = Hyperband(box_problem(SMALL, 3, ROUNDS), low=3)
    for ours, theirs in zip(asked(blind, 40), asked(prior, 40), strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])


def test_the_model_is_of_the_highest_rung_that_has_enough() -> None:
    agent = BOHB(box_problem(SMALL, 0, ROUNDS), low=3)
    assert agent._densities() is None
    asked(agent, 5)
    assert agent._densities() is None, "a point cannot be good and bad"
    asked(agent, 1)
    low = agent._densities()
    assert low is not None, "two coordinates: three good points and three bad ones are enough"
    everyone = {str(point) for density in low for point in density._points}
    assert everyone == {str(point) for _, point in agent._seen[0]}
    asked(agent, 3 + 3)
    assert len(agent._densities()[0]._points) == 3  # type: ignore[index]
    asked(agent, 20)
    high = {str(point) for _, point in agent._seen[2]} | {str(p) for _, p in agent._seen[1]}
    assert {str(point) for point in agent._densities()[0]._points} <= high  # type: ignore[index]


def test_a_density_is_a_mean_of_gaussians() -> None:
    rng = np.random.default_rng(0)
    points, where = rng.uniform(-1, 1, (6, 2)), rng.uniform(-1, 1, (4, 2))
    widths = 1.06 * points.std(axis=0) * 6 ** (-1 / 6)
    expected = [
        np.log(np.mean([stats.norm(p, widths).pdf(place).prod() for p in points]))
        for place in where
    ]
    found = Density(points).log(where)
    np.testing.assert_allclose(found - found[0], np.array(expected) - expected[0], atol=1e-12)


def test_candidates_are_near_the_good_points_and_inside_the_box() -> None:
    density = Density(np.tile([0.99, -0.5], (4, 1)))
    drawn = density.draw(2000, 3.0, np.random.default_rng(0))
    assert np.abs(drawn).max() <= 1.0
    assert np.abs(drawn - [0.99, -0.5]).max() < 0.04
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 401)] * 2), axis=-1).reshape(-1, 2)
    middle = Density(np.random.default_rng(1).uniform(-0.2, 0.2, (20, 2)))
    # The mass of a density of the unit cube, whose cells have an area of 1 / 400^2.
    assert np.exp(middle.log(grid)).sum() / 400**2 == pytest.approx(1.0, abs=1e-3)
    far = density.log(np.array([[0.99, -0.5], [-0.99, 0.5]]))
    assert np.isfinite(far).all()
    assert far[0] > far[1]


@pytest.mark.parametrize("name", ["hyperband", "bohb"])
def test_it_chooses_how_long_wrapped_courses_are(name: str) -> None:
    env = BowlClients(np.tile([0.5, -0.25], (8, 1)), sampled=4, steps=27)
    plain, wrapped = (
        list(
            islice(
                wrapped_search(
                    env,
                    agent_class(name)(row_problem(env, 0, ROUNDS), low=3),
                    0,
                    Neighbourhood(arms=arms),
                    steps=ROUNDS,
                ),
                20,
            )
        )
        for arms in (1, 27)
    )
    assert [len(trial.steps) for trial in plain] == [len(trial.steps) for trial in wrapped]
    assert sum(len(trial.steps) for trial in plain) == 8 * 27
    assert all(len(trial.traces.after) == len(trial.steps) for trial in wrapped)
    np.testing.assert_array_equal(plain[0].centre, wrapped[0].centre)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eta": 1}, "`eta`"),
        ({"eta": 2.5}, "`eta`"),
        ({"low": 9, "high": 3}, "`low`"),
        ({"low": 0}, "low"),
        ({"high": 99}, "high"),
    ],
    ids=str,
)
def test_impossible_ladders_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Hyperband(box_problem(SMALL, 0, ROUNDS), **options)


def test_other_spaces_and_rewards_are_refused() -> None:
    for box in (gym.spaces.Box(-1, 1, (1,)), gym.spaces.Box(0, 1, (3,))):
        with pytest.raises(InvalidArgumentError, match="`action_space`"):
            Hyperband(box_problem(box, 0, ROUNDS))
    agent = Hyperband(box_problem(SMALL, 0, ROUNDS))
    with pytest.raises(InvalidArgumentError, match="follow `ask`"):
        agent.tell(Step(np.zeros(3, np.float32), 0.0))
    action = agent.ask({})
    with pytest.raises(InvalidArgumentError, match="one number"):
        agent.tell(Step(action, np.zeros(2)))
