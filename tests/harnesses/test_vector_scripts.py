"""A script in CleanRL's manner on vector environments, and what Gymnasium has no words for."""

from __future__ import annotations

import runpy
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.data import load_dataset
from known_optimum import CREDIT

SCRIPT = Path(__file__).parents[2] / "examples" / "ppo.py"
CAR = "FedHPO-DAC-FewClients-v1"
JUDGE = SCRIPT.with_name("judge.py")


@pytest.mark.slow
@pytest.mark.raw
@pytest.mark.parametrize("env_id", [CREDIT, "Pendulum-v1"])
def test_one_script_of_ppo_trains_on_our_id_and_on_another(
    env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("sys.argv", [str(SCRIPT), env_id, "2048"])
    before = runpy.run_path(str(SCRIPT))
    assert len(before["returns"]) >= 8
    assert np.isfinite(before["returns"]).all()


@pytest.mark.slow
@pytest.mark.raw
def test_what_the_script_leaves_is_the_policy_that_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    env_id, file = "FedHPO-DAC-FewClients-v1", str(tmp_path / "policy")
    monkeypatch.setattr("sys.argv", [str(SCRIPT), env_id, "512", file])
    trained = runpy.run_path(str(SCRIPT))
    monkeypatch.setattr("sys.argv", [str(JUDGE), env_id, file])
    judged = runpy.run_path(str(JUDGE))
    assert "over 16 instances" in capsys.readouterr().out
    seen, scale = judged["seen"], trained["scale"]
    flat = np.concatenate([part.reshape(16, -1) for part in seen.values()], axis=1)
    rows = ((flat - scale.mean) / np.sqrt(scale.var + 1e-8)).clip(-10.0, 10.0)
    with torch.no_grad():
        wanted = trained["actor"](torch.as_tensor(rows, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(judged["learned"](seen), wanted.clip(-1.0, 1.0), atol=1e-5)
    assert np.ptp(wanted) > 1e-3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([CREDIT], f"ID must be one whose steps are rounds, FedHPO-DAC-*, got {CREDIT}"),
        (["FedHPO-DAC-Quadratic-v1", "nothing"], "FILE must be"),
        pytest.param(
            [CAR], f"{CAR}: OpenML could not be reached", marks=[pytest.mark.slow, pytest.mark.raw]
        ),
    ],
)
def test_what_cannot_be_judged_is_one_line(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object) -> None:
        raise ConnectionError

    monkeypatch.setenv("FEDHPO_GYM_DATA", str(tmp_path))
    monkeypatch.setattr("requests.sessions.Session.get", refuse)
    load_dataset.cache_clear()
    monkeypatch.setattr("sys.argv", [str(JUDGE), *words])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(JUDGE))
    assert said in f"{left.value.code}{''.join(capsys.readouterr())}"
    assert left.value.__cause__ is None


@pytest.mark.parametrize("script", [JUDGE, SCRIPT])
@pytest.mark.parametrize(
    ("word", "said"), [("--help", "usage: "), ("Nothing-v1", "Nothing-v1: Env")]
)
def test_no_id_is_one_line(
    script: Path,
    word: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("sys.argv", [str(script), word])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(script))
    assert said in f"{left.value.code}{''.join(capsys.readouterr())}"


def test_episodes_that_end_in_the_same_step_have_the_returns_of_single_ones() -> None:
    """Recorded by Gymnasium's wrapper: best scores, which `final_info` names, too."""
    envs = gym.make_vec(CREDIT, 4, autoreset_mode=AutoresetMode.SAME_STEP, budget_trials=5)
    envs = wrappers.RecordEpisodeStatistics(envs)
    singles = [gym.make(CREDIT, budget_trials=5) for _ in range(4)]
    envs.reset(seed=0)
    envs.action_space.seed(0)
    for _ in range(3):
        totals = np.zeros(4)
        for env in singles:
            env.reset(seed=0)
        for _ in range(5):
            actions = envs.action_space.sample()
            *_, infos = envs.step(actions)
            pairs = zip(singles, actions, strict=True)
            totals += [env.step(action)[1] for env, action in pairs]
        assert infos["_final_info"].all()
        assert infos["_episode"].all()
        np.testing.assert_allclose(infos["episode"]["r"], totals, rtol=1e-6)
        assert infos["final_info"]["trial"].tolist() == [5] * 4


def test_what_to_use_where_gymnasium_refuses() -> None:
    """The rows of docs/harnesses.md."""
    with pytest.raises(gym.error.Error, match="vector_entry_point"):
        gym.make_vec(CREDIT, 2, wrappers=[gym.wrappers.FlattenObservation])
    options = {"vectorization_mode": "sync", "wrappers": [gym.wrappers.FlattenObservation]}
    assert gym.make_vec(CREDIT, 2, **options).reset(seed=0)[0].shape[0] == 2
    with pytest.raises(gym.error.Error, match="vector_kwargs"):
        gym.make_vec(CREDIT, 2, vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})
    envs = gym.make_vec(f"MO-{CREDIT}", 2, vectorization_mode="sync")
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="sequence"):
        envs.step(envs.action_space.sample())
    actions = envs.action_space.sample()
    own = gym.make_vec(f"MO-{CREDIT}", 2)
    own.reset(seed=0)
    rewards = own.step(actions)[1]
    assert rewards.shape == (2, 3)
    mo_gymnasium = pytest.importorskip("mo_gymnasium")
    made = [lambda: gym.make(f"MO-{CREDIT}", disable_env_checker=True)] * 2
    theirs = mo_gymnasium.wrappers.vector.MOSyncVectorEnv(made)
    theirs.reset(seed=0)
    np.testing.assert_array_equal(theirs.step(actions)[1], rewards)
