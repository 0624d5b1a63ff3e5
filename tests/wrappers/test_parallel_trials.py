"""Simulated workers: what one does alone, lists that more of them never slow down, and an oracle.

`tests/data/workers.npz` holds what `mfhpo-simulator` 1.4.6 says of 1,000 random traces; see
`tests/data/record_workers.py`.
"""

from __future__ import annotations

import heapq
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedhpo_gym
from fedhpo_gym.agents import AGENTS as ALL_AGENTS
from fedhpo_gym.agents import agent_class, make_agent, run_crew, run_episode
from fedhpo_gym.agents.search import TrialSearch
from fedhpo_gym.core.errors import InvalidArgumentError, MissingDependencyError
from fedhpo_gym.testing import make_env
from fedhpo_gym.testing.rollout import plain
from fedhpo_gym.wrappers.parallel_trials import FinishedTrial, ParallelTrials

TRACES = Path(__file__).resolve().parents[1] / "data" / "workers.npz"
ID = "FedHPO-LR-CreditG-v0"


class Listed(gym.Env[Any, Any]):
    """Trials by number: of which course they are, and what the course has then cost in all."""

    action_space = gym.spaces.Box(0.0, 1e6, (1,), np.float32)

    def __init__(self, courses: list[int], seconds: list[float], freeze_thaw: bool) -> None:
        self.courses, self.seconds = courses, seconds
        self.setup = SimpleNamespace(freeze_thaw=freeze_thaw)
        self.paid: list[Any] = []

    def reset(self, **_: Any) -> Any:
        return {}, {}

    def course_of(self, action: Any) -> tuple[int, Any]:
        return self.courses[int(action[0])], self.seconds[int(action[0])]

    def cost_of(self, action: Any, paid: Any = 0) -> Any:
        owed = max(self.seconds[int(action[0])] - (paid if self.setup.freeze_thaw else 0), 0)
        return SimpleNamespace(time_s=owed)

    def begin_trial(self, action: Any, paid: Any = 0) -> None:
        self.paid.append(paid)

    def end_next_at(self, time_s: float) -> None:
        self.now_s = time_s

    def step(self, action: Any) -> Any:
        return {}, 0.0, False, False, {"elapsed_s": self.now_s}


def play(env: Listed, workers: int, ends: int | None = None) -> list[FinishedTrial]:
    """Start the list in its order, each trial as soon as a worker is free; return what ends."""
    crew = fedhpo_gym.parallel(env, workers)
    crew.reset()
    waiting = list(range(len(env.courses)))
    found: list[FinishedTrial] = []
    while len(found) < (len(env.courses) if ends is None else ends):
        while crew.free and waiting:
            crew.start(np.array([waiting.pop(0)], np.float32))
        found.append(crew.finish())
    return found


def test_events_and_times_are_those_of_mfhpo_simulator() -> None:
    with np.load(TRACES) as stored:
        arrays = {name: stored[name] for name in stored.files}
    asked, ended = arrays["asked"], arrays["ended"]
    assert len(asked) == len(ended) == len(arrays["workers"]) == 1000
    lists = {name: np.split(arrays[name], np.cumsum(asked)[:-1]) for name in ("courses", "seconds")}
    events = {
        name: np.split(arrays[name], np.cumsum(ended)[:-1]) for name in ("order", "ends", "by")
    }
    resumed = overtaken = 0
    for trace, workers in enumerate(arrays["workers"].tolist()):
        courses = lists["courses"][trace].tolist()
        resumes = len(set(courses)) < len(courses)
        env = Listed(courses, [float(s) for s in lists["seconds"][trace]], freeze_thaw=resumes)
        found = play(env, workers, int(ended[trace]))
        assert [one.number - 1 for one in found] == events["order"][trace].tolist()
        assert [one.ended_s for one in found] == events["ends"][trace].tolist()
        assert [one.worker for one in found] == events["by"][trace].tolist()
        resumed += resumes
        overtaken += [one.number for one in found] != sorted(one.number for one in found)
    assert resumed > 300
    assert overtaken > 700


def plain_starts(durations: list[float], workers: int) -> list[tuple[float, float]]:
    busy = [0.0] * workers
    found = []
    for duration in durations:
        start = heapq.heappop(busy)
        heapq.heappush(busy, start + duration)
        found.append((start, start + duration))
    return found


@settings(max_examples=150)
@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=30), st.integers(1, 12))
def test_no_trial_of_a_list_starts_or_ends_later_with_one_worker_more(
    durations: list[float], workers: int
) -> None:
    def times(number: int) -> list[tuple[float, float]]:
        env = Listed(list(range(len(durations))), durations, freeze_thaw=False)
        ordered = sorted(play(env, number), key=lambda one: one.number)
        return [(one.started_s, one.ended_s) for one in ordered]

    few, many = times(workers), times(workers + 1)
    assert few == plain_starts(durations, workers)
    for (start, end), (sooner, ends_sooner) in zip(few, many, strict=True):
        assert sooner <= start
        assert ends_sooner <= end


def test_more_of_a_course_that_still_runs_waits_for_its_end() -> None:
    env = Listed([0, 1, 0, 0, 0], [10.0, 1.0, 30.0, 20.0, 30.0], freeze_thaw=True)
    found = {one.number: (one.started_s, one.ended_s) for one in play(env, 5)}
    ends = dict(enumerate((10.0, 1.0, 30.0, 30.0, 30.0), 1))
    assert found == {number: (0.0, end) for number, end in ends.items()}
    assert env.paid == [0, 0, 10.0, 30.0, 30.0], "what is paid for, not what is asked for"
    anew = {one.number: one.ended_s for one in play(Listed([0, 0], [10.0, 30.0], False), 2)}
    assert anew == {1: 10.0, 2: 30.0}


KINDS: list[dict[str, Any]] = [
    {},
    {"freeze_thaw": True, "budget_s": 1500.0},
    {"noise": {"clients": 0.5, "bias": 1.0}, "budget_s": 300.0},
    {"budget_rounds": 900, "reward": "improvement", "reward_per_cost": True},
]
AGENTS = ("random", "optuna-tpe", "hyperband", "bohb")
HEAVY = ("bo-gp", "parego", "qlognehvi")
SOME = ["random", "hyperband", *(pytest.param(a, marks=pytest.mark.slow) for a in AGENTS[1::2])]


def episode(agent: str, workers: int | None, **arguments: Any) -> list[Any]:
    fixed = {"client_sample_rate": 1.0}
    env = gym.make(ID, fidelity=fixed, disable_env_checker=True, **arguments)
    chosen = make_agent(agent, env, 3)
    if workers is None:
        steps = run_episode(env, chosen, 3)
    else:
        steps = run_crew(fedhpo_gym.parallel(env, workers), chosen, 3)
    return [
        plain([one.action, one.reward, one.terminated, one.truncated, one.info]) for one in steps
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("agent", SOME)
def test_one_worker_is_the_environment_alone(agent: str, kind: dict[str, Any]) -> None:
    if agent == "optuna-tpe":
        pytest.importorskip("optuna")
    kind = {"budget_s": 700.0, **kind} if "budget_rounds" not in kind else kind
    assert episode(agent, 1, **kind) == episode(agent, None, **kind)


@pytest.mark.parametrize("freeze_thaw", [False, True])
@pytest.mark.parametrize("agent", SOME)
def test_every_trial_agent_runs_on_many_workers(agent: str, freeze_thaw: bool) -> None:
    if agent == "optuna-tpe":
        pytest.importorskip("optuna")
    fixed = {"client_sample_rate": 1.0}
    env = gym.make(ID, fidelity=fixed, freeze_thaw=freeze_thaw, budget_s=600.0)
    crew = fedhpo_gym.parallel(env, 7)
    steps = list(run_crew(crew, make_agent(agent, env, 0), 0))
    ends = [one.info["elapsed_s"] for one in steps]
    assert ends == sorted(ends)
    assert ends[-1] >= 600.0
    assert all(end < 600.0 for end in ends[:-1])
    assert [one.info["trial"] for one in steps] == list(range(1, len(steps) + 1))
    assert {one.worker for one in steps} <= set(range(7))
    assert len({one.worker for one in steps}) > 4  # trials that still run at the end are lost
    assert sum(one.info["cost"]["time_s"] for one in steps) > 3 * 600.0
    again = fedhpo_gym.parallel(
        gym.make(ID, fidelity=fixed, freeze_thaw=freeze_thaw, budget_s=600.0), 7
    )
    other = run_crew(again, make_agent(agent, env, 0), 0)
    assert plain([one.info for one in other]) == plain([one.info for one in steps])


def _is_search(name: str) -> bool:
    try:
        kind = agent_class(name)
        return issubclass(kind, TrialSearch) and kind.learned is None and name not in AGENTS
    except MissingDependencyError:
        return False


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=pytest.mark.slow if one in HEAVY else [])
        for one in filter(_is_search, ALL_AGENTS)
    ],
)
def test_every_search_runs_on_workers_and_one_is_the_loop_of_old(name: str) -> None:
    kind = agent_class(name)
    options = {"low": 50} if kind.fidelity else {}
    fixed = {"client_sample_rate": 1.0} if kind.fidelity else {}
    vectors = kind.rewards == "vector"

    def play(workers: int | None) -> list[Any]:
        env = make_env(budget_trials=12, vector_reward=vectors, fidelity=fixed)
        agent = make_agent(name, env, 1, **options)
        if workers is None:
            return list(run_episode(env, agent, 1))
        return list(run_crew(fedhpo_gym.parallel(env, workers), agent, 1))

    alone, one, many = (
        [plain([step.action, step.reward, step.info]) for step in play(workers)]
        for workers in (None, 1, 5)
    )
    assert one == alone
    assert len(many) == 12
    assert plain([[step.action, step.reward, step.info] for step in play(5)]) == plain(many)


def test_the_environment_follows_the_order_of_the_ends() -> None:
    env = make_env(task="LR-CreditG-v0", budget_trials=3)
    crew = ParallelTrials(env, 2)
    crew.reset(seed=0)
    long, short = np.ones(6, np.float32), -np.ones(6, np.float32)
    crew.start(long)
    crew.start(short)
    with pytest.raises(InvalidArgumentError, match="free worker"):
        crew.start(short)
    first = crew.finish()
    assert (first.number, first.worker) == (2, 1)
    assert first.observation["trials"] == [1.0]
    assert first.info["incumbent"]["trial"] == 1
    crew.start(short)
    second = crew.finish()
    assert second.number == 3
    assert second.started_s == first.ended_s
    assert crew.clock_s == second.ended_s == second.info["elapsed_s"]
    crew.start(short)
    assert crew.finish().terminated
    with pytest.raises(gym.error.ResetNeeded):  # the long trial is lost
        crew.finish()
    crew.reset()
    with pytest.raises(InvalidArgumentError, match="none is"):
        crew.finish()


def test_what_cannot_work_is_refused() -> None:
    env = make_env(task="LR-CreditG-v0", budget_trials=3)
    for workers in (0, 1.5, True, 10**9):
        with pytest.raises(InvalidArgumentError, match="workers"):
            fedhpo_gym.parallel(env, workers)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="cost_of"):
        fedhpo_gym.parallel(gym.make("CartPole-v1"), 2)
    with pytest.raises(InvalidArgumentError, match="actions"):
        fedhpo_gym.parallel(fedhpo_gym.wrappers.NamedAction(env), 2)
    with pytest.raises(InvalidArgumentError, match="time_s"):
        env.unwrapped.end_next_at(-1.0)  # type: ignore[attr-defined]
