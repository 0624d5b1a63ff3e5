"""Training a policy with stable-baselines3, in one or several environments.

No other module imports stable-baselines3. Every id follows its protocol,
`PPO("MultiInputPolicy", gym.make(id))`, but observations should be normalised first. `train` does
both in many environments at once, seeded, and returns a `Policy` of plain arrays.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise, product
from typing import Annotated, Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fedhpo_gym.agents.policy import Policy, move_last_action
from fedhpo_gym.agents.training import Judge, Progress, Training, Vectors, make_vector
from fedhpo_gym.core.checks import Range, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError, require_known, require_optional
from fedhpo_gym.core.seeding import stream

with require_optional("training a policy", "stable-baselines3", "rl", "stable_baselines3"):
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.callbacks import ConvertCallback, EveryNTimesteps
    from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize


ALGORITHMS: Final = ("A2C", "DDQN", "PPO", "SAC")
MOST_MOVES: Final = 64
"""Most joint moves that "DDQN" chooses among; where there were more, it moves one dimension."""


@validate_call
def train(
    env: str | Vectors | Sequence[str | Vectors],
    algorithm: str = "PPO",
    *,
    steps: Annotated[int, Range(1)],
    seed: int,
    num_envs: int = 1,
    env_arguments: Mapping[str, Any] | None = None,
    share_starts: bool = False,
    layers: Sequence[int] = (64, 64),
    settings: Mapping[str, Any] | None = None,
    widths: Sequence[float] = (0.06, 0.25),
    made_by: str = "fedhpo_gym.agents.sb3.train",
    progress: Progress | None = None,
    judge: Judge | None = None,
    judge_every: int = 10_000,
) -> Training:
    """Train one policy in one environment, or in several with the same spaces at once.

    Observations and rewards are normalised as `VecNormalize` does; the policy also normalises
    observations.

    Args:
        env: ids, or vector environments made with `autoreset_mode="SameStep"`.
        algorithm: "A2C", "PPO", "SAC", or "DDQN": double DQN that moves the last action, by default
            undiscounted.
        steps: of all environments together; rounded up to whole rollouts.
        seed: source of all randomness, the environments' included.
        num_envs: how many environments to make of each id.
        env_arguments: arguments of `gymnasium.make_vec` for ids.
        share_starts: reset all environments of an id with one seed.
        layers: widths of the hidden layers.
        settings: further arguments of the algorithm's class.
        widths: by which "DDQN" moves a dimension up or down.
        made_by: command that repeats the training, for messages about damaged files.
        progress: called with the number of steps done since the last call.
        judge: called with the steps so far and the policy of then, to follow its learning.
        judge_every: steps between two calls of `judge`, at least.

    Raises:
        UnknownNameError: no such algorithm.
        InvalidArgumentError: none is named, one cannot be used, or their spaces differ.
    """
    require_known("algorithm", algorithm, ALGORITHMS)
    env_list = [env] if isinstance(env, str | gym.vector.VectorEnv) else list(env)
    if not env_list:
        raise InvalidArgumentError("`env` must name at least one environment, got none")
    members = [
        make_vector(member, num_envs, env_arguments or {}) if isinstance(member, str) else member
        for member in env_list
    ]
    all_envs = JoinedVecEnv(members, seed, progress, share_starts)
    is_dqn = algorithm == "DDQN"
    options: dict[str, Any] = {
        **({"gamma": 1.0} if is_dqn else {}),
        "seed": int(stream(seed, "sb3").integers(2**32)),
        "device": "cpu",
        **(settings or {}),
        "policy_kwargs": {**(settings or {}).get("policy_kwargs", {}), "net_arch": list(layers)},
    }
    origin = {
        "algorithm": algorithm,
        "seed": seed,
        "environments": [member if isinstance(member, str) else str(member) for member in env_list],
        "num_envs": num_envs,
        "env_arguments": dict(env_arguments or {}),
        "share_starts": share_starts,
        "layers": list(layers),
        "settings": {
            name: getattr(value, "__qualname__", repr(value))
            for name, value in (settings or {}).items()
        },
        "stable_baselines3": sb3.__version__,
    }
    with _preserve_random_state():
        action_envs = MoveLastAction(all_envs, widths) if is_dqn else all_envs
        normalized = VecNormalize(action_envs, gamma=options.get("gamma", 0.99))
        kind = DoubleDQN if is_dqn else getattr(sb3, algorithm)
        model = kind("MultiInputPolicy", normalized, **options)

        def learned() -> Policy:
            provenance = {**origin, "steps": int(model.num_timesteps)}
            return _extract_policy(model.policy, normalized, made_by, provenance)

        def watch(*_: Any) -> bool:
            if judge is not None:
                judge(int(model.num_timesteps), learned())
            return True

        model.learn(steps, callback=EveryNTimesteps(judge_every, ConvertCallback(watch)))
    policy = learned()
    for member, env_ in zip(env_list, members, strict=True):
        if isinstance(member, str):
            env_.close()
    return Training(policy, np.array(all_envs.episode_returns))


@contextmanager
def _preserve_random_state() -> Iterator[None]:
    """Restore the global random state, which stable-baselines3 seeds and uses, afterwards."""
    python, legacy, threads = random.getstate(), np.random.get_state(), torch.get_num_threads()  # noqa: NPY002
    torch.set_num_threads(1)  # small networks are faster so, and round the same everywhere
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        torch.set_num_threads(threads)


def _extract_policy(
    learned: Any, normalized: VecNormalize, made_by: str, origin: Mapping[str, Any]
) -> Policy:
    """Take the actor of an algorithm's policy apart."""
    if hasattr(learned, "q_net"):
        extractor, output = learned.q_net.features_extractor, "argmax"
        modules = [*learned.q_net.q_net]
    elif hasattr(learned, "actor"):
        extractor, output = learned.actor.features_extractor, "tanh"
        modules = [*learned.actor.latent_pi, learned.actor.mu]
    else:
        extractor, output = learned.pi_features_extractor, "clip"
        modules = [*learned.mlp_extractor.policy_net, learned.action_net]
    linear = [module for module in modules if isinstance(module, torch.nn.Linear)]
    activations = {type(a).__name__.lower() for a, b in pairwise(modules) if b in linear}
    box: Any = normalized.unwrapped.action_space
    names = list(extractor.extractors)
    statistics = [normalized.obs_rms[name] for name in names]
    return Policy(
        entries={name: learned.observation_space[name].shape for name in names},
        low=box.low,
        high=box.high,
        weights=tuple(layer.weight.detach().numpy().T.copy() for layer in linear),
        biases=tuple(layer.bias.detach().numpy().copy() for layer in linear),
        activation=(activations - {"linear"} or {"tanh"}).pop(),
        output=output,
        mean=np.concatenate([stats.mean.ravel() for stats in statistics]),
        deviation=np.sqrt(
            np.concatenate([stats.var.ravel() for stats in statistics]) + normalized.epsilon
        ),
        limit=float(normalized.clip_obs),
        made_by=made_by,
        origin=origin,
        moves=getattr(normalized.venv, "moves", None),
    )


class DoubleDQN(sb3.DQN):
    """DQN whose target takes the action of the online network (van Hasselt et al., 2016).

    The library takes the highest value of the target network, so it is shown a single value.
    """

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        target: Any = self.q_net_target
        self.q_net_target = lambda observations: target(observations).gather(  # type: ignore[assignment]
            1, self.q_net(observations).argmax(dim=1, keepdim=True)
        )
        super().train(gradient_steps, batch_size)
        self.q_net_target = target


class MoveLastAction(VecEnvWrapper):
    """Environments whose last action is moved, by one of `moves`, a (K, ...) array."""

    def __init__(self, venv: VecEnv, widths: Sequence[float]) -> None:
        if "last_action" not in venv.observation_space.spaces:  # type: ignore[attr-defined]
            raise InvalidArgumentError(
                "`env` must show 'last_action', which \"DDQN\" moves, got "
                f"{venv.observation_space}; use a round environment, `FedHPO-DAC-*`."
            )
        box: Any = venv.action_space
        size, steps = int(box.low.size), [0.0, *widths, *(-width for width in widths)]
        if len(steps) ** size <= MOST_MOVES:
            rows = np.array(list(product(steps, repeat=size)))
        else:
            rows = np.vstack([np.zeros((1, size)), *[width * np.eye(size) for width in steps[1:]]])
        self.moves = rows.reshape(-1, *box.shape).astype(np.float32)
        super().__init__(venv, action_space=gym.spaces.Discrete(len(rows)))
        self._shown: Any = None
        self._box = box

    def reset(self) -> Any:
        self._shown = self.venv.reset()
        return self._shown

    def step_async(self, actions: NDArray[Any]) -> None:
        self.venv.step_async(move_last_action(self._shown, self.moves[actions], self._box))

    def step_wait(self) -> Any:
        self._shown, *outcome = self.venv.step_wait()
        return self._shown, *outcome


class JoinedVecEnv(VecEnv):
    """Vector environments of Gymnasium, side by side, as one of stable-baselines3."""

    def __init__(
        self,
        parts: Sequence[Vectors],
        seed: int,
        progress: Progress | None = None,
        share_starts: bool = False,
    ) -> None:
        """Join environments; part j is reset with a seed drawn from stream "sb3_reset", j."""
        for env in parts:
            _check_usable(env, parts[0])
        self.parts = tuple(parts)
        self.episode_returns: list[float] = []
        self._progress = progress
        seeds = [int(stream(seed, "sb3_reset", j).integers(2**31)) for j in range(len(parts))]
        self._first_seeds: list[int | list[int] | None] = [
            [part_seed] * env.num_envs if share_starts else part_seed
            for part_seed, env in zip(seeds, parts, strict=True)
        ]
        self._cuts = np.cumsum([env.num_envs for env in parts])[:-1]
        self._actions: NDArray[Any] = np.empty(0)
        total = sum(env.num_envs for env in parts)
        self._returns = np.zeros(total)
        super().__init__(total, parts[0].single_observation_space, parts[0].single_action_space)

    def reset(self) -> dict[str, NDArray[Any]]:
        seeds, self._first_seeds = self._first_seeds, [None] * len(self.parts)
        # Ours and SyncVectorEnv take a list of seeds; VectorEnv.reset declares one only.
        observations = [
            env.reset(seed=seed)[0]  # type: ignore[arg-type]
            for env, seed in zip(self.parts, seeds, strict=True)
        ]
        self._returns[:] = 0.0
        return _concatenate(observations)

    def step_async(self, actions: NDArray[Any]) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        pieces = np.split(self._actions, self._cuts)
        outcomes = [env.step(piece) for env, piece in zip(self.parts, pieces, strict=True)]
        rewards, terminated, truncated = (
            np.concatenate([outcome[field] for outcome in outcomes]) for field in (1, 2, 3)
        )
        if rewards.ndim != 1:
            raise InvalidArgumentError(
                f"rewards must be numbers, got shape {rewards.shape}; use the id without `MO-`."
            )
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        start = 0
        for env, outcome in zip(self.parts, outcomes, strict=True):
            for index in np.flatnonzero(done[start : start + env.num_envs]).tolist():
                infos[start + index]["terminal_observation"] = outcome[4]["final_obs"][index]
            start += env.num_envs
        self._returns += rewards
        for index in np.flatnonzero(done).tolist():
            infos[index]["TimeLimit.truncated"] = not terminated[index]
            self.episode_returns.append(float(self._returns[index]))
            self._returns[index] = 0.0
        if self._progress is not None:
            self._progress(self.num_envs)
        observation = _concatenate([outcome[0] for outcome in outcomes])
        return observation, rewards.astype(np.float32), done, infos

    def close(self) -> None:
        for env in self.parts:
            env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.parts[0], attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise InvalidArgumentError(f"{attr_name!r} cannot be set: courses share their environment.")

    def env_method(self, method_name: str, *_: Any, **__: Any) -> list[Any]:
        raise InvalidArgumentError(
            f"{method_name!r} cannot be called: courses share their environment."
        )

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))


def _check_usable(env: Vectors, first: Vectors) -> None:
    if env.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
        raise InvalidArgumentError(
            "`env` must be reset in the last step of an episode, got autoreset mode "
            f'{env.metadata.get("autoreset_mode")}; make it with autoreset_mode="SameStep".'
        )
    observations, actions = env.single_observation_space, env.single_action_space
    if (observations, actions) != (first.single_observation_space, first.single_action_space):
        raise InvalidArgumentError(
            f"`env` must hold environments with equal spaces, got {observations}, {actions} beside "
            f"{first.single_observation_space}, {first.single_action_space}."
        )
    if not isinstance(actions, gym.spaces.Box) or not isinstance(observations, gym.spaces.Dict):
        raise InvalidArgumentError(
            f"`env` must show a dictionary and act in a Box, got {observations} and {actions}; "
            "use it without wrappers that replace them."
        )


def _concatenate(observations: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {
        name: np.concatenate([observation[name] for observation in observations])
        for name in observations[0]
    }
