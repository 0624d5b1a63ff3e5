"""Vector forms as the libraries around use them, and on every surrogate of the package."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.cli import make_parser
from fedhpo_gym.cli.console import parse_pairs
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.stored.catalogue import EMBEDDED_FOLDER
from fedhpo_gym.stored.surrogate import open_surrogate
from fedhpo_gym.testing.rollout import plain

ID = "FedHPO-LR-BreastCancer-v0"


def test_infos_say_configuration_and_fidelity_on_request() -> None:
    keys = ("configuration", "fidelity")
    env = gym.make_vec(ID, num_envs=3, info_keys=keys, autoreset_mode="SameStep", budget_trials=2)
    env.reset(seed=0)
    env.action_space.seed(0)
    for step in range(4):
        _, _, _, _, infos = env.step(env.action_space.sample())
        said = infos["final_info"] if step % 2 else infos
        for index in range(3):
            alone = env.trial_info(index) if not step % 2 else None  # type: ignore[attr-defined]
            for key in keys:
                assert said[f"_{key}"][index]
                told = {name: said[key][name][index] for name in said[key] if name[0] != "_"}
                assert alone is None or told == alone[key]
    plain = gym.make_vec(ID, num_envs=2)
    plain.reset(seed=0)
    assert not set(keys) & set(plain.step(plain.action_space.sample())[-1])


def test_an_info_key_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"'configurations'.*'configuration'"):
        gym.make_vec(ID, num_envs=2, info_keys=["configurations"])


def test_a_written_out_policy_gradient_learns_the_first_coordinate() -> None:
    """A loop in the manner of single-file implementations: nothing but Gymnasium's interface."""
    envs = gym.wrappers.vector.FlattenObservation(
        gym.wrappers.vector.RecordEpisodeStatistics(
            gym.make_vec(ID, num_envs=16, budget_trials=4, autoreset_mode="NextStep")
        )
    )
    rng = np.random.default_rng(0)
    mean, spread, rate = np.zeros(envs.single_action_space.shape), 0.3, 0.15
    observation, _ = envs.reset(seed=1)
    done, returns, means = np.zeros(16, dtype=bool), [], []
    for _ in range(60):
        noise = rng.normal(size=envs.action_space.shape)
        actions = np.clip(mean + spread * noise, -1.0, 1.0).astype(np.float32)
        observation, rewards, terminated, truncated, infos = envs.step(actions)
        assert observation.shape == envs.observation_space.shape
        live = ~done  # the step after the last of an episode is its reset
        assert not rewards[done].any()
        if live.any():
            advantage = rewards[live] - rewards[live].mean()
            mean = mean + rate * (advantage[:, None] * noise[live]).mean(axis=0) / spread
            mean = np.clip(mean, -1.0, 1.0)
            means.append(rewards[live].mean())
        done = terminated | truncated
        if "episode" in infos:
            returns.extend(infos["episode"]["r"][infos["_episode"]].tolist())
    assert len(returns) == 16 * (60 // 5)
    assert np.mean(means[-15:]) > np.mean(means[:15]) + 0.1


@pytest.mark.slow
def test_environments_in_processes_of_their_own() -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    def run(kind: Any, **options: Any) -> list[Any]:
        vectors = make_vec_env(
            "fedhpo_gym:FedHPO-LR-BreastCancer-v1",
            1,
            seed=5,
            env_kwargs={"budget_trials": 3, "backend": "surrogate"},
            vec_env_cls=kind,
            vec_env_kwargs=options,
        )
        rng = np.random.default_rng(2)
        try:
            vectors.reset()
            shown = []
            for _ in range(5):
                actions = rng.uniform(-1, 1, (1, *vectors.action_space.shape)).astype(np.float32)
                seen, rewards, dones, _ = vectors.step(actions)
                entries = {name: values.tolist() for name, values in sorted(seen.items())}
                single = rewards.astype(np.float32)  # which one of the two keeps
                shown.append((entries, single.tolist(), dones.tolist()))
            return shown
        finally:
            vectors.close()

    assert run(SubprocVecEnv, start_method="spawn") == run(DummyVecEnv)


@pytest.mark.parametrize("backend", ["tabular", "surrogate"])
def test_what_was_said_of_a_step_stays_as_it_was(backend: str) -> None:
    """Sources reuse their memory; nobody who keeps an info may notice."""
    keys = ("test", "best_round")
    envs: Any = gym.make_vec("FedHPO-LR-CreditG-v1", 3, backend=backend, info_keys=keys)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    said = [envs.step(envs.action_space.sample())[4] for _ in range(3)]
    texts = [plain({key: info[key] for key in keys}) for info in said]
    envs.step(envs.action_space.sample())
    assert texts == [plain({key: info[key] for key in keys}) for info in said]
    assert texts[0] != texts[1]


CARDS = sorted(EMBEDDED_FOLDER.glob("*.surrogate.json"))
N, STEPS = 3, 2


def spec_of(card: Path) -> tuple[str, dict[str, Any]]:
    """Return the id and the arguments of the environment that a surrogate answers."""
    said = json.loads(card.read_text(encoding="utf-8"))
    options = make_parser().parse_args(shlex.split(said["fit_command"])[1:])
    names = ("algorithm", "alpha", "preprocessing")
    arguments = {name: getattr(options, name) for name in names}
    settings = dict(parse_pairs("--setting", options.settings))
    wanted = {"backend": "surrogate", **arguments, "settings": settings}
    env_id = f"FedHPO-{said['task']}-v{said['version']}"
    return env_id, {name: value for name, value in wanted.items() if value}


@pytest.mark.fast(12)
@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name.split(".surrogate")[0])
def test_together_and_alone_every_surrogate_answers_alike(card: Path) -> None:
    name, arguments = spec_of(card)
    ours = gym.make_vec(name, num_envs=N, vectorization_mode="vector_entry_point", **arguments)
    theirs = SyncVectorEnv([lambda: gym.make(name, **arguments)] * N)
    ours.reset(seed=0)
    theirs.reset(seed=0)
    ours.action_space.seed(0)
    for _ in range(STEPS):
        actions = ours.action_space.sample()
        seen, reward, ended, _, info = ours.step(actions)
        expected, wanted, over, _, told = theirs.step(actions)
        assert {key: plain(array) for key, array in seen.items()} == {
            key: plain(expected[key]) for key in seen
        }
        assert (plain(reward), plain(ended)) == (plain(wanted), plain(over))
        for objective, values in info["objectives"].items():
            assert plain(values) == plain(told["objectives"][objective])


@pytest.mark.parametrize("kind", ["forest", "exact_kernel"])
@pytest.mark.parametrize("seeds", [1, 3])
def test_a_query_gets_the_same_bits_in_any_batch(kind: str, seeds: int) -> None:
    content = (json.loads(card.read_text(encoding="utf-8")) for card in CARDS)
    name = next(card["name"] for card in content if card["model"]["kind"] == kind)
    surrogate = open_surrogate(name)
    rng = np.random.default_rng(0)
    spaces = (surrogate.space, surrogate.fidelity_space)
    columns = {
        dimension: values
        for space in spaces
        for dimension, values in space.decode_columns(rng.uniform(-1, 1, (7, len(space)))).items()
    }
    together = surrogate.look_up(columns, surrogate.seeds[:seeds])
    for index in range(7):
        one = {dimension: values[index : index + 1] for dimension, values in columns.items()}
        alone = surrogate.look_up(one, surrogate.seeds[:seeds])
        assert plain(alone.best[0]) == plain(together.best[index])
        assert plain(alone.best_round[0]) == plain(together.best_round[index])


@pytest.mark.parametrize("fidelity", [{"round": 400}, {"client_sample_rate": 0.9}])
def test_a_fidelity_beyond_the_data_says_why_and_what_else(fidelity: dict[str, float]) -> None:
    why = r"fitted on courses of 1 to 81 rounds with client sample rates of 0\.005 to 0\.05"
    with pytest.raises(InvalidArgumentError, match=rf'{why}.*backend="raw"'):
        gym.make("FedHPO-LR-Synthetic-v1", fidelity=fidelity)


def test_gymnasiums_vector_wrappers_understand_it() -> None:
    env = gym.wrappers.vector.DictInfoToList(
        gym.wrappers.vector.RecordEpisodeStatistics(gym.make_vec(ID, num_envs=4, budget_trials=3))
    )
    env.reset(seed=0)
    for _ in range(3):
        *_, terminated, _, infos = env.step(env.action_space.sample())
    assert terminated.all()
    assert [info["episode"]["l"] for info in infos] == [3] * 4  # type: ignore[call-overload]
    assert [info["trial"] for info in infos] == [3] * 4  # type: ignore[call-overload]
    env.close()
