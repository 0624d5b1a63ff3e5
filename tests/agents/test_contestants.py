"""What is special about single agents: hand computations, and that each beats random search."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from fedhpo_gym.agents import AGENTS, Agent, agent_class, make_agent, run_episode
from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.black_box import DifferentialEvolution, GridSearch, offspring
from fedhpo_gym.agents.multi_fidelity import LadderSearch
from fedhpo_gym.agents.proxy import best_configurations
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDependencyError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.space import Dimension, SearchSpace
from fedhpo_gym.testing import make_env
from problems import BOX, LADDER_BOX, ROUNDS, bowl, box_problem, play

HEAVY = ("bo-gp", "parego", "qlognehvi")
"""Few trials and one seed are enough of these."""
SLOW = (*HEAVY, "bo-rf", "optuna-tpe", "tpe-md", "tpe-hb", "motpe")


def _marked(names: Any) -> list[Any]:
    return [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in names]


def _installed(name: str) -> type[Agent] | None:
    try:
        return agent_class(name)
    except MissingDependencyError:
        return None


def _learners(rewards: str, ladder: bool) -> list[Any]:
    fixed = ("random", "grid", "sobol", "latin-hypercube", "proxy", "schedule")
    kinds = {name: kind for name in {*AGENTS} - {*fixed} if (kind := _installed(name))}
    return _marked(
        name
        for name, kind in sorted(kinds.items())
        if "trial" in kind.acts_on
        and kind.learned is None  # what was learned is of one search space
        and kind.rewards == rewards
        and issubclass(kind, LadderSearch) == ladder
    )


def _best(name: str, number: int, seed: int) -> float:
    agent = agent_class(name)(box_problem(BOX, seed))
    return max(score for _, score in play(agent, number, bowl))


TRIALS = {"de": 150, "cma-es": 100, "bo-gp": 25}
FACTOR = {"bo-kde": 1.0}
"""Of the regret of random search that is allowed; BOHB's model alone is often stuck beside it."""


@cache
def _random_regret(number: int) -> float:
    return -float(np.mean([_best("random", number, seed) for seed in range(20)]))


@pytest.mark.slow
@pytest.mark.parametrize("name", _learners("scalar", ladder=False))
def test_it_beats_random_search_on_a_bowl(name: str) -> None:
    """The optimum, 0, is known: the regret is compared, of the mean over seeds."""
    number, seeds = TRIALS.get(name, 50), 1 if name in HEAVY else 4
    found = -np.mean([_best(name, number, seed) for seed in range(8 if name in FACTOR else seeds)])
    assert found < FACTOR.get(name, 0.8) * _random_regret(number)


@pytest.mark.parametrize("name", _learners("scalar", ladder=True))
def test_a_ladder_beats_random_search_for_equal_rounds(name: str) -> None:
    """The score of few rounds is worse by 1 / round; 40 full trials have 1,080 rounds."""

    def score(action: NDArray[np.float32]) -> float:
        return bowl(action) - 1.0 / ROUNDS.decode(float(action[3]))

    regrets = []
    for seed in range(4):
        agent, spent, best = agent_class(name)(box_problem(LADDER_BOX, seed, ROUNDS)), 0, 9.0
        while spent < 40 * 27:
            ((action, found),) = play(agent, 1, score)
            rounds = int(ROUNDS.decode(float(action[3])))
            spent += rounds
            best = min(best, -found - 1 / 27) if rounds == 27 else best
        regrets.append(best)
    assert np.mean(regrets) < 0.8 * _random_regret(40)


@pytest.mark.parametrize("name", _learners("vector", ladder=False))
def test_it_finds_a_larger_front_than_random_search(name: str) -> None:
    """Two bowls in the plane, whose front is the line between their centres."""
    centres = np.array([[-0.5, 0.0], [0.5, 0.0]])
    box = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def scores(action: NDArray[np.float32]) -> NDArray[np.float64]:
        return -((action - centres) ** 2).sum(axis=1)

    def hypervolume(kind: str, seed: int, number: int) -> float:
        problem = box_problem(box, seed)
        if kind != "random":
            values = {**vars(problem), "objectives": ("a", "b")}
            problem = SearchProblem(**values)
        options = {"initial": 6} if kind in HEAVY else {}
        agent = agent_class(kind)(problem, **options)
        told = play(agent, number, scores) if kind != "random" else None
        if told is None:
            told = [(a, scores(a)) for a in (agent.ask({}) for _ in range(number))]
        points = np.array([s for _, s in told]) + 2.0  # the reference point is (-2, -2)
        order = points[np.argsort(-points[:, 0])]
        tops = np.maximum.accumulate(np.maximum(order[:, 1], 0.0))
        widths = np.append(order[:, 0], 0.0)
        return float((np.maximum(widths[:-1], 0) - np.maximum(widths[1:], 0)) @ tops)

    number = 8 if name in HEAVY else 100
    seeds = range(1 if name in HEAVY else 3)
    found = np.mean([hypervolume(name, seed, number) for seed in seeds])
    assert found > np.mean([hypervolume("random", seed, number) for seed in range(20)])


GRID = SearchSpace(
    (
        Dimension("rate", 0.1, 1.0, "float", values=(0.1, 0.2, 1.0)),
        Dimension("size", 1, 4, "int", bins=4),
        Dimension("decay", 0.0, 1.0, "float"),
    )
)


@pytest.mark.slow
def test_a_grid_visits_every_point_once_and_then_again() -> None:
    agent = GridSearch(SearchProblem(BOX, GRID), points=4)
    tried = [str(GRID.decode(agent.ask({}))) for _ in range(96)]
    assert len(set(tried[:48])) == 48 == len(set(tried[48:]))
    assert tried[:48] != tried[48:]
    assert {GRID.decode(a)["decay"] for a in agent.actions} >= {0.0, 1.0}
    with pytest.raises(InvalidArgumentError, match="`points`"):
        GridSearch(SearchProblem(BOX, GRID), points=1)
    with pytest.raises(InvalidArgumentError, match=r"leave at most.*fewer"):
        GridSearch(box_problem(BOX), points=1000)
    with pytest.raises(InvalidArgumentError, match=r"got 2 and a grid.*\); fix some dimensions"):
        GridSearch(box_problem(gym.spaces.Box(-1.0, 1.0, (25,))))
    pairs = box_problem(BOX, 0, *(Dimension(name, 1, 2, "int") for name in "abc"))
    grid = GridSearch(pairs)
    tried = {str(pairs.search_space.decode(grid.ask({}))) for _ in range(8)}
    assert len(tried) == 8, "integers have no more points than values"
    wide = GridSearch(
        box_problem(gym.spaces.Box(-1.0, 1.0, (15,)))
    )  # 5^15 points do not fit, nor do 4^15
    assert set(np.unique([wide.ask({}) for _ in range(9)])) == {-1.0, 0.0, 1.0}


def test_spread_points_are_spread() -> None:
    def cells(agent: Any, number: int) -> NDArray[np.int64]:
        points = (np.array([agent.ask({}) for _ in range(number)]) + 1) / 2
        return np.minimum((points * number).astype(int), number - 1)

    for name, number in (("latin-hypercube", 32), ("sobol", 64)):
        found = cells(agent_class(name)(box_problem(BOX)), number)
        assert all(sorted(column) == list(range(number)) for column in found.T)


def test_offspring_is_rand_1_bin() -> None:
    pool = np.array([[0.1, 0.2], [0.3, 0.5], [0.6, 0.4]])
    for seed in range(20):
        rng = np.random.default_rng(seed)
        a, b, c = pool[np.random.default_rng(seed).choice(3, 3, replace=False)]
        found = offspring(np.zeros(2), pool, rng, crossover=1.0)
        mutant = a + 0.5 * (b - c)
        inside = (mutant >= 0) & (mutant <= 1)
        np.testing.assert_allclose(found[inside], mutant[inside])
        assert ((found >= 0) & (found <= 1)).all()
        rng = np.random.default_rng(seed)
        kept = offspring(np.full(2, 9.0), pool, rng, crossover=0.0)
        assert (kept == 9.0).sum() == 1, "one coordinate is always the mutant's"


def test_a_member_is_replaced_by_what_is_as_good() -> None:
    agent = DifferentialEvolution(box_problem(BOX, 0), members=4)
    play(agent, 4, bowl)
    before, fitness = agent.population.copy(), agent._fitness.copy()
    ((action, score),) = play(agent, 1, bowl)
    expected = (action + 1) / 2 if score >= fitness[0] else before[0]
    np.testing.assert_allclose(agent.population[0], expected, atol=1e-6)
    np.testing.assert_array_equal(agent.population[1:], before[1:])


def test_expected_improvement_is_an_integral() -> None:
    pytest.importorskip("sklearn")
    from fedhpo_gym.agents.forest import expected_improvement

    draws = 0.3 + 0.2 * np.random.default_rng(0).standard_normal(400_000)
    expected = np.maximum(0.25 - draws, 0).mean()
    found = expected_improvement(np.array([0.3, 0.1, 0.4]), np.array([0.2, 0.0, 0.0]), 0.25)
    np.testing.assert_allclose(found, [expected, 0.15, 0.0], atol=1e-3)


def test_a_proxy_brings_its_best_configurations() -> None:
    fidelity = {"round": 81, "client_sample_rate": 1.0}
    proxy = make_env(budget_trials=30, fidelity=fidelity)
    steps = list(run_episode(proxy, make_agent("random", proxy, 0), 0))
    best = best_configurations(steps, 3)
    scores = sorted((s.info["score"] for s in steps), reverse=True)
    env = make_env(budget_trials=4, fidelity={})
    told = list(run_episode(env, make_agent("proxy", env, 0, configurations=best), 0))
    assert [dict(s.info["configuration"]) for s in told] == [*best, best[0]]
    assert told[0].info["fidelity"]["round"] == 500
    assert next(s.info["configuration"] for s in steps if s.info["score"] == scores[0]) == best[0]
    lacking = [{k: v for k, v in best[0].items() if k != "batch_size"}]
    with pytest.raises(InvalidArgumentError, match="must name 'batch_size'"):
        make_agent("proxy", env, 0, configurations=lacking)


def test_the_state_of_other_options_is_refused() -> None:
    few, many = (DifferentialEvolution(box_problem(BOX), members=n) for n in (5, 9))
    play(few, 12, bowl)
    with pytest.raises(DamagedDataError, match="same problem, with the same seed and options"):
        many.load_state_dict(few.state_dict())
    with pytest.raises(InvalidArgumentError, match="a new agent"):
        few.load_state_dict(few.state_dict())
    state: Any = DifferentialEvolution(box_problem(BOX)).state_dict()
    state["state"] = {**few.state_dict()["state"], "told": [[1, 0, [0.1]], [1, 0, [0.1]]]}
    with pytest.raises(DamagedDataError, match="twice"):
        DifferentialEvolution(box_problem(BOX), members=5).load_state_dict(state)


@pytest.mark.parametrize(
    "inner", [None, 3, [], {}, {"actions": 1}, {"actions": [["x"]], "told": [], "violations": []}]
)
def test_a_state_of_another_form_is_refused(inner: object) -> None:
    agent = DifferentialEvolution(box_problem(BOX))
    state: Any = {**agent.state_dict(), "state": inner}
    with pytest.raises(DamagedDataError, match="`state` must hold what `state_dict` of"):
        agent.load_state_dict(state)
    with pytest.raises(InvalidArgumentError, match="`state`"):
        agent.load_state_dict(inner)  # type: ignore[arg-type]


@pytest.mark.slow
def test_tpe_is_the_one_that_is_installed() -> None:
    """Optuna alone, with its defaults and the seed of the agent, tries the same points."""
    optuna = pytest.importorskip("optuna")
    agent: Any = agent_class("optuna-tpe")(box_problem(BOX, 3))
    seed = int(stream(3, "optuna_tpe").integers(2**32))
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    names = ("x0", "x1", "x2")
    bounds = {name: optuna.distributions.FloatDistribution(-1.0, 1.0) for name in names}
    for action, score in play(agent, 30, bowl):
        trial = study.ask(bounds)
        np.testing.assert_allclose(action, [trial.params[name] for name in names], atol=1e-6)
        study.tell(trial, score)


CELLS = SearchSpace(tuple(Dimension(f"x{i}", 0, 7, "int", bins=8) for i in range(2)))


@pytest.mark.parametrize("name", ["bo-kde", pytest.param("bo-rf", marks=pytest.mark.slow)])
def test_a_told_cell_is_not_tried_again(name: str) -> None:
    """A grid of 64 cells, 40 trials: all are different, the same scores or not."""
    if _installed(name) is None:
        pytest.skip("its library is not installed")
    for score in (lambda a: -float((a**2).sum()), lambda _: 0.0):
        agent = agent_class(name)(SearchProblem(gym.spaces.Box(-1, 1, (2,), np.float32), CELLS))
        tried = [str(CELLS.decode(action)) for action, _ in play(agent, 40, score)]
        assert len(set(tried)) == 40


def test_losses_are_scaled_before_their_logarithm() -> None:
    pytest.importorskip("sklearn")
    from fedhpo_gym.agents.forest import log_scaled

    losses = np.random.default_rng(0).standard_normal(50)
    found = log_scaled(losses)
    np.testing.assert_allclose(found, log_scaled(3.0 * losses - 7.0), atol=1e-9)
    assert found.max() == 0.0
    assert (np.argsort(found) == np.argsort(losses)).all()
    assert (log_scaled(np.full(4, 2.0)) == 0.0).all()
    assert np.isfinite(log_scaled(np.array([0.0, 0.0, 0.0, 1.0]))).all()
