"""The only door to stable-baselines3: training a policy in one or several environments.

Every id follows the protocol of stable-baselines3, `PPO("MultiInputPolicy", gym.make(id))`, and
observations want to be normalised first. What is here does both in many environments at once,
seeded, and returns a `Policy` of plain arrays.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.policy import Policy
from fedhpo_gym.core.errors import needing, require_known
from fedhpo_gym.core.seeding import stream

with needing("training a policy", "stable-baselines3", "rl", "stable_baselines3"):
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.vec_env import VecNormalize

    from fedhpo_gym.agents.sb3_vectors import JoinedVecEnv, Vectors, make_vector

ALGORITHMS: Final = ("A2C", "PPO", "SAC")


@dataclass(frozen=True, eq=False)
class Training:
    """What training brought.

    Attributes:
        policy: what was learned.
        episode_returns: sum of rewards of every episode, in the order they ended.
    """

    policy: Policy
    episode_returns: NDArray[np.float64]


def train(
    env: str | Vectors | Sequence[str | Vectors],
    algorithm: str = "PPO",
    *,
    steps: int,
    seed: int,
    num_envs: int = 1,
    env_arguments: Mapping[str, Any] | None = None,
    share_starts: bool = False,
    layers: Sequence[int] = (64, 64),
    settings: Mapping[str, Any] | None = None,
    made_by: str = "fedhpo_gym.agents.sb3.train",
    progress: Callable[[int], object] | None = None,
) -> Training:
    """Train one policy in one environment, or in several with the same spaces at once.

    Observations are normalised by their running mean and variance, rewards by the running variance
    of returns, as `VecNormalize` does; the policy holds what was found for the observations.

    Args:
        env: ids, or vector environments made with `autoreset_mode="SameStep"`.
        algorithm: "A2C", "PPO" or "SAC".
        steps: steps to train, all environments together; rounded up to whole rollouts.
        seed: source of all randomness, the environments' included.
        num_envs: how many environments to make of each id.
        env_arguments: arguments of `gymnasium.make_vec` for ids.
        share_starts: reset all environments of an id with one seed. Courses of a round environment
            then train on the same instances.
        layers: widths of the hidden layers.
        settings: further arguments of the algorithm's class.
        made_by: command that repeats the training, for messages about damaged files.
        progress: called with the number of steps done since the last call.

    Raises:
        UnknownNameError: no such algorithm.
        InvalidArgumentError: an environment cannot be used, or their spaces differ.
        MissingDependencyError: stable-baselines3 is not installed.
    """
    require_known("algorithm", algorithm, ALGORITHMS)
    wanted = [env] if isinstance(env, str | gym.vector.VectorEnv) else list(env)
    parts = [
        make_vector(one, num_envs, env_arguments or {}) if isinstance(one, str) else one
        for one in wanted
    ]
    joined = JoinedVecEnv(parts, seed, progress, share_starts)
    options: dict[str, Any] = {
        "seed": int(stream(seed, "sb3").integers(2**32)),
        "device": "cpu",
        **(settings or {}),
        "policy_kwargs": {
            **(settings or {}).get("policy_kwargs", {}),
            "net_arch": list(layers),
        },
    }
    with _own_random_numbers():
        normalized = VecNormalize(joined, gamma=options.get("gamma", 0.99))
        model = getattr(sb3, algorithm)("MultiInputPolicy", normalized, **options)
        model.learn(steps)
    origin = {
        "algorithm": algorithm,
        "steps": int(model.num_timesteps),
        "seed": seed,
        "environments": [one if isinstance(one, str) else str(one) for one in wanted],
        "num_envs": num_envs,
        "env_arguments": dict(env_arguments or {}),
        "share_starts": share_starts,
        "layers": list(layers),
        "settings": {name: repr(value) for name, value in (settings or {}).items()},
        "stable_baselines3": sb3.__version__,
    }
    policy = _policy(model.policy, normalized, made_by, origin)
    for one, part in zip(wanted, parts, strict=True):
        if isinstance(one, str):
            part.close()
    return Training(policy, np.array(joined.episode_returns))


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """Leave the global random numbers, which stable-baselines3 seeds and uses, as they were."""
    python, legacy, threads = random.getstate(), np.random.get_state(), torch.get_num_threads()  # noqa: NPY002
    torch.set_num_threads(1)  # small networks are faster so, and round the same everywhere
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        torch.set_num_threads(threads)


def _policy(
    learned: Any, normalized: VecNormalize, made_by: str, origin: Mapping[str, Any]
) -> Policy:
    """Take the actor of an algorithm's policy apart."""
    if hasattr(learned, "actor"):
        extractor, output = learned.actor.features_extractor, "tanh"
        modules = [*learned.actor.latent_pi, learned.actor.mu]
    else:
        extractor, output = learned.pi_features_extractor, "clip"
        modules = [*learned.mlp_extractor.policy_net, learned.action_net]
    linear = [module for module in modules if isinstance(module, torch.nn.Linear)]
    between = {type(a).__name__.lower() for a, b in pairwise(modules) if b in linear}
    box, names = learned.action_space, list(extractor.extractors)
    statistics = [normalized.obs_rms[name] for name in names]
    return Policy(
        entries={name: learned.observation_space[name].shape for name in names},
        low=box.low,
        high=box.high,
        weights=tuple(layer.weight.detach().numpy().T.copy() for layer in linear),
        biases=tuple(layer.bias.detach().numpy().copy() for layer in linear),
        activation=(between - {"linear"} or {"tanh"}).pop(),
        output=output,
        mean=np.concatenate([known.mean.ravel() for known in statistics]),
        deviation=np.concatenate(
            [np.sqrt(known.var + normalized.epsilon).ravel() for known in statistics]
        ),
        limit=float(normalized.clip_obs),
        made_by=made_by,
        origin=origin,
    )
