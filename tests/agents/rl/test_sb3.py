"""stable-baselines3 trains on every id, and what it learned leaves as plain arrays."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import fedhpo_gym
from fedhpo_gym.agents import make_agent, run_episode
from fedhpo_gym.agents.policy import load_policy, save_policy
from fedhpo_gym.agents.training import make_vector
from fedhpo_gym.core.errors import InvalidArgumentError, UnknownNameError
from fedhpo_gym.testing.analytic import make_env

sb3 = pytest.importorskip("stable_baselines3")
import torch  # noqa: E402 - comes with the library

from fedhpo_gym.agents import sb3 as door  # noqa: E402 - needs the library
from fedhpo_gym.agents.sb3 import JoinedVecEnv  # noqa: E402 - likewise

ID = "FedHPO-LR-BreastCancer-v0"
ROUND_ID = "FedHPO-DAC-LR-BreastCancer-v0"
QUADRATIC = "FedHPO-DAC-Quadratic-v1"
SETTINGS: dict[str, dict[str, Any]] = {
    "PPO": {"n_steps": 8, "batch_size": 8, "n_epochs": 1},
    "A2C": {"n_steps": 5},
    "DDQN": {"learning_starts": 10, "batch_size": 8, "target_update_interval": 5},
    "SAC": {"learning_starts": 10, "batch_size": 8},
}


def analytic(num_envs: int = 2, trials: int = 3) -> gym.vector.VectorEnv[Any, Any, Any]:
    """Return environments whose backend is a formula."""
    makers = [lambda: make_env(budget_trials=trials)] * num_envs
    return gym.vector.SyncVectorEnv(makers, autoreset_mode="SameStep")


def vectors(algorithm: str, num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    """Return environments that an algorithm trains in within a second."""
    return make_vector(QUADRATIC, num_envs, {}) if algorithm == "DDQN" else analytic(num_envs)


def train(algorithm: str, seed: int = 0, steps: int = 32, **options: Any) -> door.Training:
    return door.train(
        [vectors(algorithm, 2), vectors(algorithm, 3)],
        algorithm,
        steps=steps,
        seed=seed,
        layers=(8, 8),
        settings=SETTINGS[algorithm],
        **options,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [ID, pytest.param(ROUND_ID, marks=pytest.mark.raw)])
def test_every_id_trains_without_glue(name: str) -> None:
    assert fedhpo_gym is not None  # importing it is what registers the ids
    env = gym.make(name)
    model = sb3.PPO("MultiInputPolicy", env, n_steps=4, batch_size=4, n_epochs=1, device="cpu")
    model.learn(8)
    action, _ = model.predict(env.reset(seed=0)[0], deterministic=True)
    assert action in env.action_space


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [(ID, {}), ("FedHPO-GNN-Cora-v1", {"algorithm": "fedopt"})],  # a table; a kernel surrogate
)
def test_an_id_trains_in_its_vector_form(name: str, arguments: dict[str, Any]) -> None:
    arguments = {"budget_trials": 3, **arguments}
    training = door.train(
        name, steps=16, seed=0, num_envs=2, env_arguments=arguments, settings=SETTINGS["PPO"]
    )
    assert len(training.episode_returns) >= 4
    origin = training.policy.origin
    assert origin["environments"] == [name]
    assert {"num_envs", "share_starts", "layers", "seed", "steps"} <= set(origin)
    env = gym.make(name, **arguments)
    steps = list(run_episode(env, make_agent("policy", env, 0, policy=training.policy), 0))
    assert len(steps) == 3


@pytest.mark.raw
def test_courses_that_share_starts_run_on_the_same_instances() -> None:
    part = make_vector(ROUND_ID, 3, {"horizon": 5})
    joined = JoinedVecEnv([part], 3, share_starts=True)
    shown = joined.reset()
    assert len(np.unique(shown["val_loss"], axis=0)) == 1
    actions = np.array([[0.9], [0.9], [-0.9]], np.float32) * np.ones((3, 4), np.float32)
    _, rewards, done, infos = joined.step(actions)
    assert rewards[0] == rewards[1] != rewards[2]
    assert done.all()
    ends = [info["terminal_observation"]["val_loss"].tolist() for info in infos]
    assert ends[0] == ends[1] != ends[2]
    apart = JoinedVecEnv([make_vector(ROUND_ID, 3, {"horizon": 5})], 3).reset()
    assert len(np.unique(apart["val_loss"], axis=0)) == 3


@pytest.mark.parametrize("algorithm", door.ALGORITHMS)
def test_the_policy_acts_as_the_one_that_was_trained(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    take_apart = door._extract_policy
    monkeypatch.setattr(
        door, "_extract_policy", lambda *given: kept.extend(given) or take_apart(*given)
    )
    policy = train(algorithm).policy
    trained, normalized = kept[:2]
    env = vectors(algorithm, 1)
    shapes: Any = env.single_observation_space
    rng = np.random.default_rng(0)
    for _ in range(20):
        shown = {
            name: rng.uniform(np.maximum(box.low, -3), np.minimum(box.high, 3)).astype(np.float32)
            for name, box in shapes.spaces.items()
        }
        expected, _ = trained.predict(normalized.normalize_obs(shown), deterministic=True)
        if policy.moves is not None:
            expected = np.clip(shown["last_action"] + policy.moves[expected], -1.0, 1.0)
        np.testing.assert_allclose(policy.act(shown), expected, atol=2e-6)
    save_policy(policy, tmp_path)
    np.testing.assert_array_equal(load_policy(tmp_path).act(shown), policy.act(shown))


@pytest.mark.parametrize("algorithm", ["DDQN", "PPO", "SAC"])
def test_a_seed_decides_everything_and_global_random_numbers_stay(algorithm: str) -> None:
    before = random.getstate(), str(np.random.get_state())  # noqa: NPY002 - what is watched
    first, again, other = (train(algorithm, seed) for seed in (0, 0, 1))
    assert (random.getstate(), str(np.random.get_state())) == before  # noqa: NPY002
    np.testing.assert_array_equal(first.episode_returns, again.episode_returns)
    for a, b, c in zip(
        first.policy.weights, again.policy.weights, other.policy.weights, strict=True
    ):
        np.testing.assert_array_equal(a, b)
        assert not np.array_equal(a, c)


class Target(gym.Env[Any, Any]):
    """One step per episode; the target is shown, and the reward falls with the distance to it."""

    observation_space = gym.spaces.Dict({"target": gym.spaces.Box(-0.5, 0.5, (1,), np.float32)})
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.target = self.np_random.uniform(-0.5, 0.5, 1).astype(np.float32)
        return {"target": self.target.copy()}, {}

    def step(self, action: Any) -> Any:
        reward = -float(abs(action - self.target)[0])
        return {"target": self.target.copy()}, reward, True, False, {}


@pytest.mark.slow
def test_training_hits_what_is_shown() -> None:
    env = gym.vector.SyncVectorEnv([Target] * 8, autoreset_mode="SameStep")
    settings = {"n_steps": 32, "batch_size": 64, "n_epochs": 5, "learning_rate": 2e-2}
    training = door.train(env, steps=4000, seed=0, layers=(16,), settings=settings)
    assert training.episode_returns[-500:].mean() > 0.5 * training.episode_returns[:100].mean()
    targets = np.linspace(-0.5, 0.5, 11, dtype=np.float32)[:, None]
    np.testing.assert_allclose(training.policy.act({"target": targets}), targets, atol=0.15)


@pytest.mark.parametrize("algorithm", ["DDQN", "PPO"])
def test_progress_and_judge_count_every_step(algorithm: str) -> None:
    seen: list[int] = []
    judged: list[tuple[int, int, Any]] = []

    def judge(steps: int, policy: Any) -> None:
        judged.append((steps, sum(seen), policy))

    training = train(algorithm, steps=80, progress=seen.append, judge=judge, judge_every=20)
    assert seen == [5] * 16
    assert [told[:2] for told in judged] == [(20, 20), (40, 40), (60, 60), (80, 80)]
    assert [policy.origin["steps"] for *_, policy in judged] == [20, 40, 60, 80]
    first, last = (judged[i][2].weights[0] for i in (0, -1))
    assert not np.array_equal(first, last)
    assert training.policy.origin["steps"] == 80


def test_the_target_is_what_the_other_network_says_of_the_online_networks_action() -> None:
    found = {}
    for kind in (sb3.DQN, door.DoubleDQN):
        env = door.MoveLastAction(JoinedVecEnv([make_vector(QUADRATIC, 2, {})], 0), (0.25,))
        model = kind("MultiInputPolicy", env, gamma=0.5, seed=0, device="cpu", buffer_size=200)
        torch.manual_seed(1)
        for weight in model.q_net_target.parameters():
            torch.nn.init.normal_(weight)
        model.learn(60)  # before it learns: transitions alone
        seen: Any = None
        sample = model.replay_buffer.sample

        def keep(*given: Any, sample: Any = sample, **named: Any) -> Any:
            nonlocal seen
            seen = sample(*given, **named)._replace(dones=torch.zeros(16, 1))
            return seen

        model.replay_buffer.sample = keep
        before = copy.deepcopy(model.q_net)
        model.train(1, 16)
        with torch.no_grad():
            now, then = before(seen.observations), before(seen.next_observations)
            told = model.q_net_target(seen.next_observations)
        row = np.arange(16)
        value = now.numpy()[row, seen.actions.numpy()[:, 0]]
        reward = seen.rewards.numpy()[:, 0]
        error = {
            name: np.abs(value - reward - 0.5 * told.numpy()[row, chosen.numpy().argmax(axis=1)])
            for name, chosen in (("double", then), ("single", told))
        }
        losses = {
            name: np.where(one < 1, one**2 / 2, one - 0.5).mean() for name, one in error.items()
        }
        found[kind.__name__] = model.logger.name_to_value["train/loss"], losses
    for kind, name in (("DQN", "single"), ("DoubleDQN", "double")):
        loss, expected = found[kind]
        assert loss == pytest.approx(expected[name], rel=1e-5)
        assert abs(expected["double"] - expected["single"]) > 1e-2 * loss


def test_moves_are_joint_or_of_one_dimension_and_stay_inside() -> None:
    with pytest.raises(InvalidArgumentError, match="must show 'last_action'"):
        door.MoveLastAction(JoinedVecEnv([analytic()], 0), (0.5,))
    joined = JoinedVecEnv([make_vector(QUADRATIC, 2, {})], 0)
    env = door.MoveLastAction(joined, (0.75,))
    ways = (-0.75, 0.0, 0.75)
    assert sorted(map(tuple, env.moves.tolist())) == [(a, b) for a in ways for b in ways]
    apart = door.MoveLastAction(joined, (0.25, 0.125, 0.0625, 0.5))
    assert len(apart.moves) == len(np.unique(apart.moves, axis=0)) == 1 + 8 * 2
    assert (np.count_nonzero(apart.moves, axis=1) == [0] + [1] * 16).all()
    env.reset()
    for _ in range(2):
        shown = env.step(np.array([0, 8]))[0]
    np.testing.assert_array_equal(shown["last_action"], [[0, 0], [-1, -1]])


def test_joined_environments_are_the_environments_themselves() -> None:
    joined = JoinedVecEnv([analytic(2), analytic(1, trials=2)], 7, None)
    twins = [analytic(2), analytic(1, trials=2)]
    joined.reset()
    for twin in twins:
        twin.reset(seed=0)  # the formula is not random: seeds do not matter
    actions = np.random.default_rng(0).uniform(-1, 1, (5, 3, 6)).astype(np.float32)
    totals = np.zeros(3)
    for index, action in enumerate(actions, start=1):
        shown, rewards, done, infos = joined.step(action)
        expected = [twins[0].step(action[:2]), twins[1].step(action[2:])]
        for name, value in shown.items():
            np.testing.assert_array_equal(value, np.concatenate([e[0][name] for e in expected]))
        np.testing.assert_allclose(rewards, np.concatenate([e[1] for e in expected]), rtol=1e-6)
        totals += rewards
        assert done.tolist() == [index % 3 == 0] * 2 + [index % 2 == 0]
        for env, info in enumerate(infos):
            assert ("terminal_observation" in info) == done[env]
            if done[env]:
                assert info["TimeLimit.truncated"] is False
                left = info["terminal_observation"]["remaining_budget"]
                assert left.tolist() == [0.0]
                assert shown["remaining_budget"][env] == 1.0
                assert joined.episode_returns.pop(0) == pytest.approx(totals[env], rel=1e-6)
                totals[env] = 0.0


def test_what_cannot_be_used_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"algorithm 'PP0'.*'PPO'"):
        door.train(ID, "PP0", steps=1, seed=0)
    with pytest.raises(InvalidArgumentError, match='autoreset_mode="SameStep"'):
        door.train(gym.make_vec(ID, 2), steps=1, seed=0)
    other = make_vector(ID, 1, {"fidelity": {"round": 81}})
    with pytest.raises(InvalidArgumentError, match="equal spaces"):
        door.train([analytic(), other], steps=1, seed=0)
    with pytest.raises(InvalidArgumentError, match="without `MO-`"):
        door.train(f"MO-{ID}", steps=1, seed=0, settings=SETTINGS["PPO"])
