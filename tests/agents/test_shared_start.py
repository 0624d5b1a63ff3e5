"""All agents of a seed begin with the same configurations, where a study shares its start."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("optuna")
pytest.importorskip("cmaes")
pytest.importorskip("sklearn")

from fedhpo_gym.agents import AGENTS, Step, agent_class, make_agent, run_episode
from fedhpo_gym.analysis import read_folder
from fedhpo_gym.cli import ERROR, main
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.studies import compare
from fedhpo_gym.studies.replay import replay
from workers import CrewHere

ID = "FedHPO-LR-CreditG-v1"
FULL = {"round": 500, "client_sample_rate": 1.0}
STARTS = 6
TRIALS = STARTS + 3
SLOW = {"qlognehvi", "parego"}
STARTING = [
    name
    for name in AGENTS
    if name not in SLOW and agent_class(name).starts and agent_class(name).learned is None
]


def environment(agent: str) -> gym.Env[Any, Any]:
    kind = agent_class(agent)
    chooses = kind.fidelity is not None or hasattr(kind, "on_rung")
    return gym.make(
        f"{'MO-' * (kind.rewards == 'vector')}{ID}",
        fidelity={"client_sample_rate": 1.0} if chooses else FULL,
        budget_s=None,
        budget_trials=200 if chooses else TRIALS,
    )


def tried(agent: str, seed: int, number: int = STARTS) -> list[Step]:
    env = environment(agent)
    return [*run_episode(env, make_agent(agent, env, seed, shared_start=number), seed)]


def first_configurations(steps: list[Step]) -> list[tuple[float, ...]]:
    """Return the first ones, each once: on a ladder one may climb before the next one begins."""
    found = dict.fromkeys(tuple(step.info["configuration"].values()) for step in steps)
    return [*found][:STARTS]


@pytest.mark.fast(8)
@pytest.mark.parametrize("agent", STARTING)
def test_the_first_configurations_are_those_of_random_search(agent: str) -> None:
    expected = first_configurations(tried("random", 4))
    assert len(expected) == STARTS
    steps = tried(agent, 4)
    assert first_configurations(steps) == expected
    assert first_configurations(tried(agent, 5)) != expected
    later = {tuple(step.info["configuration"].values()) for step in steps} - {*expected}
    assert later, "it never goes on"


def test_of_a_longer_start_the_shorter_is_a_part() -> None:
    short = [step.action.tolist() for step in tried("random", 4, 2)[:2]]
    assert short == [step.action.tolist() for step in tried("random", 4)[:2]]


@pytest.mark.parametrize("agent", ["cma-es", "de", "optuna-tpe", "hyperband", "bohb", "grid"])
def test_a_restored_agent_goes_on_as_the_first_one(agent: str) -> None:
    env = environment(agent)
    first = make_agent(agent, env, 2, shared_start=STARTS)
    for _ in islice(run_episode(env, first, 2), STARTS + 1):
        pass
    second = make_agent(agent, env, 2, shared_start=STARTS)
    second.load_state_dict(first.state_dict())
    np.testing.assert_array_equal(first.ask({}), second.ask({}))


def test_cma_es_begins_where_the_start_was_best() -> None:
    steps = tried("cma-es", 4)
    env = environment("cma-es")
    agent: Any = make_agent("cma-es", env, 4, shared_start=STARTS)
    assert len([*islice(run_episode(env, agent, 4), TRIALS)]) == TRIALS
    best = max(steps[:STARTS], key=lambda step: float(step.info["score"]))
    wanted = (best.action.astype(np.float64) + 1) / 2
    inside = np.clip(wanted, agent._bounds[:, 0], agent._bounds[:, 1])
    np.testing.assert_allclose(agent._optimizer.mean, inside, atol=1e-6)


def test_who_cannot_begin_so_is_refused() -> None:
    env = gym.make("FedHPO-DAC-LR-CreditG-v1", budget_s=None)
    with pytest.raises(InvalidArgumentError, match=r"`shared_start` must be 0 for .*, got 2"):
        make_agent("fedhyper", env, 0, shared_start=2)
    with pytest.raises(
        InvalidArgumentError, match="must not be negative, nor above 10,000, got -1"
    ):
        make_agent("random", environment("random"), 0, shared_start=-1)


@pytest.mark.usefixtures("no_pictures")
def test_a_study_records_it_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedhpo_gym.studies.comparison.WorkerPool", CrewHere)
    agents = ["random", "de"]
    asked: dict[str, Any] = {"budget_s": 2000.0, "shared_start": 2}
    assert len(compare([ID], agents, 2, tmp_path, **asked).outcomes) == 4
    again = compare([ID], agents, 2, tmp_path, **asked)
    assert {one.status for one in again.outcomes} == {"there"}
    compare([ID], agents, 1, tmp_path, budget_s=2000.0)  # a study of its own, in the same folder
    records = [record for _, record in read_folder([tmp_path])]
    assert [r.header.shared_start for r in records].count(2) == 4
    assert len(records) == 6
    assert all(replay(record) is None for record in records)
    arguments = ["compare", ID, "--agents", "random", "--out", str(tmp_path)]
    assert main([*arguments, "--shared-start", "-1"]) == ERROR
    assert "`--shared-start` must be at least 0, got -1" in capsys.readouterr().err
    dac = ["compare", "FedHPO-DAC-LR-CreditG-v1", "--agents", "random", "--shared-start", "2"]
    assert main([*dac, "--out", str(tmp_path)]) == ERROR
    assert "use its id without DAC" in capsys.readouterr().err
