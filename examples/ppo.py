"""PPO (Schulman et al., 2017) in one file, for continuous actions: `ppo.py [ID [STEPS [FILE]]]`.

Nothing in it knows this package, whose ids have vector forms of their own: there, N environments
are one. Others are put side by side. Either way an episode that ends begins anew in the same step.
The policy is left in FILE.npz as plain arrays, which `judge.py` plays. Needs PyTorch.
"""

import argparse
import sys

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers
from gymnasium.wrappers.utils import RunningMeanStd
from torch import nn
from torch.distributions import Normal

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.core.errors import FedHPOError

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("ID", nargs="?", default="FedHPO-LR-CreditG-v1")
parser.add_argument("STEPS", nargs="?", type=int, default=8_192)
parser.add_argument("FILE", nargs="?")
ID, STEPS, FILE = vars(parser.parse_args()).values()
ENVS, LENGTH, EPOCHS, PARTS = 8, 64, 10, 8
GAMMA, LAMBDA, CLIP, RATE, SEED = 0.99, 0.95, 0.2, 3e-4, 0

same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
try:
    has_vector_form = gym.spec(ID).vector_entry_point is not None
    envs = gym.make_vec(ID, ENVS, **same_step if has_vector_form else {"vector_kwargs": same_step})
except (gym.error.Error, FedHPOError) as error:  # no such id, or its data are not here
    sys.exit(f"{ID}: {error}")
envs = wrappers.RecordEpisodeStatistics(envs)
envs = wrappers.ClipAction(envs)
envs = wrappers.NormalizeReward(envs, gamma=GAMMA)

torch.manual_seed(SEED)
torch.set_num_threads(1)  # so small a network waits for its threads
inputs = gym.spaces.flatdim(envs.single_observation_space)
outputs = envs.single_action_space.shape[0]
scale = RunningMeanStd(shape=(inputs,))


def layer(size: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    """Return a layer with orthogonal weights and no bias to begin with."""
    made = nn.Linear(size, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


def network(last: int, gain: float) -> nn.Sequential:
    """Return a perceptron with two hidden layers."""
    hidden = layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh()
    return nn.Sequential(*hidden, layer(64, last, gain))


actor, critic = network(outputs, 0.01), network(1, 1.0)
log_std = nn.Parameter(torch.zeros(outputs))
parameters = [*actor.parameters(), *critic.parameters(), log_std]
optimizer = torch.optim.Adam(parameters, RATE, eps=1e-5)


def as_tensor(array: object) -> torch.Tensor:
    """Return numbers as float32."""
    return torch.as_tensor(array, dtype=torch.float32)


def normalized(observation: np.ndarray | dict[str, np.ndarray]) -> torch.Tensor:
    """Flatten and scale, which Gymnasium's wrappers do not where episodes end in the same step."""
    parts = observation.values() if isinstance(observation, dict) else [observation]
    flat = np.concatenate([part.reshape(ENVS, -1) for part in parts], axis=1)
    scale.update(flat)
    return as_tensor((flat - scale.mean) / np.sqrt(scale.var + 1e-8)).clip(-10.0, 10.0)


def policy(seen: torch.Tensor) -> Normal:
    """Return what actions are drawn from."""
    return Normal(actor(seen), log_std.exp())


returns = []
seen = normalized(envs.reset(seed=SEED)[0])
for _ in range(STEPS // (ENVS * LENGTH)):
    rows = []
    for _ in range(LENGTH):
        with torch.no_grad():
            drawn = policy(seen)
            action = drawn.sample()
            told = seen, action, drawn.log_prob(action).sum(-1), critic(seen).squeeze(-1)
        observation, reward, terminated, truncated, infos = envs.step(action.numpy())
        rows.append((*told, as_tensor(reward), as_tensor(terminated | truncated)))
        seen = normalized(observation)
        if "episode" in infos:
            returns += infos["episode"]["r"][infos["_episode"]].tolist()
    states, actions, logs, values, rewards, ends = map(torch.stack, zip(*rows, strict=True))

    with torch.no_grad():
        following, carried = critic(seen).squeeze(-1), torch.zeros(ENVS)
    advantages = torch.zeros_like(rewards)
    for step in reversed(range(LENGTH)):
        goes_on = 1.0 - ends[step]
        error = rewards[step] + GAMMA * following * goes_on - values[step]
        carried = error + GAMMA * LAMBDA * goes_on * carried
        advantages[step], following = carried, values[step]
    targets = advantages + values

    batch = [one.flatten(0, 1) for one in (states, actions, logs, advantages, targets)]
    for _ in range(EPOCHS):
        for rows_of in torch.randperm(ENVS * LENGTH).chunk(PARTS):
            state, action, log, advantage, target = (one[rows_of] for one in batch)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            ratio = (policy(state).log_prob(action).sum(-1) - log).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
            miss = (critic(state).squeeze(-1) - target).square().mean()
            optimizer.zero_grad()
            (0.5 * miss - gain).backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()

envs.close()
if FILE:
    linear = [one for one in actor if isinstance(one, nn.Linear)]
    arrays = {f"weight_{i}": one.weight.detach().numpy().T for i, one in enumerate(linear)}
    arrays |= {f"bias_{i}": one.bias.detach().numpy() for i, one in enumerate(linear)}
    np.savez(FILE, mean=scale.mean, variance=scale.var, **arrays)

print(f"{ID}: {len(returns)} episodes in {STEPS} steps")
if returns:
    quarter = -(-len(returns) // 4)
    first, last = np.mean(returns[:quarter]), np.mean(returns[-quarter:])
    print(f"mean return {first:.4f} at first, {last:.4f} at last")
