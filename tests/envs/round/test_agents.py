"""Agents of running courses on the real environment, and the commands that run them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.cli import main
from fedhpo_gym.studies.population import PopulationSettings, evolve_population
from fedhpo_gym.testing import plain

pytestmark = pytest.mark.raw

ID = "FedHPO-DAC-LR-BreastCancer-v0"
ONE = {"instances": [[0.7, 100]]}
CLIENTS: dict[str, Any] = {**ONE, "per_client": True, "client_sample_rate": 0.6, "horizon": 6}


# ---------------------------------------------------------------------------- the per-client form


def test_gymnasium_accepts_it() -> None:
    check_env(gym.make(ID, **CLIENTS).unwrapped, skip_render_check=True)


def test_only_the_rows_of_sampled_clients_count() -> None:
    ends = []
    for other in (-1.0, 1.0):
        env = gym.make(ID, **CLIENTS)
        observation, _ = env.reset(seed=0)
        outcomes = []
        for _ in range(3):
            action = np.where(observation["sampled"][:, None] > 0, 0.2, other).astype(np.float32)
            observation, reward, *_, info = env.step(np.repeat(action, 4, axis=1))
            outcomes.append(plain([observation, reward, info["val_loss_after"], info["test"]]))
        ends.append(outcomes)
    assert ends[0] == ends[1]


def test_rows_reach_their_clients() -> None:
    env = gym.make(ID, **{**CLIENTS, "client_sample_rate": 1.0}, dynamic=["learning_rate"])
    env.reset(seed=0)
    rows = np.full((5, 1), -1.0, np.float32)  # steps of 1e-5 leave a model where it was
    rows[2] = 0.6
    observation, *_, info = env.step(rows)
    moved = np.abs(np.subtract(info["val_loss_after"], info["val_loss_before"])) > 0.02
    assert moved.tolist() == [False, False, True, False, False]
    assert info["configuration"]["learning_rate@2"] == pytest.approx(0.1, rel=1e-5)
    assert observation["last_action"].tolist() == rows.ravel().tolist()


def test_equal_rows_are_the_plain_form() -> None:
    rewards = []
    for extra in ({}, {"per_client": True}):
        env = gym.make(ID, **ONE, horizon=4, rounds_per_step=2, **extra)
        env.reset(seed=0)
        shape = env.action_space.shape
        assert shape is not None
        rewards.append([env.step(np.full(shape, -0.3, np.float32))[1] for _ in range(2)])
    assert rewards[0] == pytest.approx(rewards[1], rel=1e-4)


def test_a_step_reports_what_clients_received_first_and_made_last() -> None:
    given = {**CLIENTS, "client_sample_rate": 1.0, "horizon": 5}
    whole, single = (gym.make(ID, **given, rounds_per_step=r) for r in (5, 1))
    action = np.zeros((5, 4), np.float32)
    infos = []
    for env, steps in ((whole, 1), (single, 5)):
        env.reset(seed=0)
        infos.append([env.step(action)[-1] for _ in range(steps)])
    (found,), rounds = infos
    assert found["val_loss_before"] == rounds[0]["val_loss_before"]
    assert found["val_loss_after"] == rounds[-1]["val_loss_after"] != rounds[0]["val_loss_after"]


def test_the_sampled_clients_are_those_that_train_next() -> None:
    env = gym.make(ID, **CLIENTS)
    observation, _ = env.reset(seed=0)
    for _ in range(4):
        expected = observation["sampled"]
        observation, *_, info = env.step(np.zeros((5, 4), np.float32))
        assert (np.array(info["num_train_samples"]) > 0).tolist() == (expected > 0).tolist()
        shown = observation["num_val_samples"] > 0
        assert shown.tolist() == (expected > 0).tolist()
        assert (np.array(info["val_loss_before"]) > 0).tolist() == shown.tolist()


# -------------------------------------------------------------------------------------- the agents


@pytest.mark.parametrize("name", ["fedex", "fedex-personalised", "fts"])
def test_client_agents_learn_from_its_reports(name: str) -> None:
    env = gym.make(ID, **CLIENTS)
    agent: Any = make_agent(name, env, 0)
    steps = list(run_episode(env, agent, 0))
    assert len(steps) == 6
    assert sum(step.reward for step in steps) > 0.1, "the model got no better"
    assert len({str(step.action) for step in steps}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("table", ["BreastCancer", "Digits"])
def test_federated_thompson_sampling_does_not_diverge(table: str, seed: int) -> None:
    env = gym.make(f"FedHPO-DAC-LR-{table}-v1", per_client=True, horizon=50, instances="test")
    steps = list(run_episode(env, make_agent("fts", env, seed), seed))
    assert len(steps) == 50
    assert steps[-1].info["val_loss"] < 0.6


def test_a_population_gets_better() -> None:
    env = gym.make(ID, **ONE, horizon=15)
    space, settings = env.get_wrapper_attr("search_space"), PopulationSettings(members=4)
    first, _, last = (
        generation.best.score for generation in evolve_population(env, space, 0, settings)
    )
    assert last > first


def test_fedtune_moves_passes_and_participants() -> None:
    names = ["learning_rate", "step_size", "client_sample_rate"]
    env = gym.make(ID, **ONE, horizon=10, rounds_per_step=1, dynamic=names)
    start = {"learning_rate": 0.1, "step_size": 1, "client_sample_rate": 0.4}
    agent = make_agent("fedtune", env, 0, start=start, participants="client_sample_rate")
    played = [step.info["configuration"] for step in run_episode(env, agent, 0)]
    assert len({(c["step_size"], c["client_sample_rate"]) for c in played}) > 1


def model_of(env: gym.Env[Any, Any]) -> np.ndarray:
    """Return the parameters of the global model of a running course."""
    course: Any = env.unwrapped
    state = course.snapshot().episode.course.state
    return np.concatenate([np.ravel(value).astype(float) for value in state.parameters.values()])


def test_moves_of_the_model_are_reported_as_they_are() -> None:
    kwargs = {**ONE, "horizon": 8, "rounds_per_step": 2, "report_moves": True}
    env = gym.make(ID, **kwargs)
    env.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, (4, 4)).astype(np.float32)
    models, told = [model_of(env)], []
    for number, action in enumerate(actions):
        told.append(env.step(action)[4]["move_product"])
        models.append(model_of(env))
        if number == 1:
            course: Any = env.unwrapped
            standing = course.snapshot()
    moves = np.diff(models, axis=0)
    expected = [0.0, *(float(a @ b) for a, b in pairwise(moves))]
    assert told == pytest.approx(expected, rel=1e-9)
    assert all(told[1:])
    course.restore(standing)
    assert [env.step(action)[4]["move_product"] for action in actions[2:]] == told[2:]
    several = gym.make_vec(ID, 2, vectorization_mode="vector_entry_point", **kwargs)
    several.reset(seed=0)
    for action, product in zip(actions, told, strict=True):
        info = several.step(np.stack([action, action]))[4]
        assert info["move_product"].tolist() == [product] * 2
    env.reset(seed=0)
    assert env.step(actions[3])[4]["move_product"] == 0.0, "nothing of the episode before"
    plain_env = gym.make(ID, **{**kwargs, "report_moves": False})
    plain_env.reset(seed=0)
    assert "move_product" not in plain_env.step(actions[0])[4]


def test_fedhyper_raises_a_rate_that_is_too_low() -> None:
    env = gym.make(ID, **ONE, horizon=12, rounds_per_step=1, report_moves=True)
    start = {"learning_rate": 0.005}
    agent: Any = make_agent("fedhyper", env, 0, configuration=start, step=50.0)
    steps = list(run_episode(env, agent, 0))
    played = [step.info["configuration"]["learning_rate"] for step in steps]
    assert played[-1] > 1.2 * played[0]
    assert sum(step.info["move_product"] > 0 for step in steps) > 8, "moves agree while it is low"


# ------------------------------------------------------------------------------------ the commands


@pytest.mark.usefixtures("no_pictures")
def test_runs_are_recorded_and_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", ID, "--agent", "random", "--agent", "fedex", "--seeds", "1"]
    words += ["--set", "horizon=5", "--out", str(tmp_path)]
    assert main(words) == 0
    assert len(list(tmp_path.rglob("*.jsonl"))) == 2
    assert main(["replay", str(tmp_path)]) == 0
    assert main(["report", str(tmp_path)]) == 0
    capsys.readouterr()


def test_a_fidelity_means_nothing_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", ID, "--agent", "random", "--fidelity", "round=5", "--out", str(tmp_path)]
    assert main(words) == 2
    assert "fidelity" in capsys.readouterr().err
