"""What a policy reaches on instances that it has not seen: `judge.py [ID [FILE]]`.

FILE.npz is what `ppo.py` left; a folder is one of `save_policy`. Without it, a policy made by hand
is judged, whose learning rate falls from round to round. Scores say where it stands: the default
has 0, and the best static configuration, which was searched on train instances, has 1.
"""

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents.policy import load_policy

ID = sys.argv[1] if len(sys.argv) > 1 else "FedHPO-DAC-FewClients-v1"

with gym.make(ID) as env:
    known, names = env.unwrapped.references, env.unwrapped.search_space.names
if known is None:
    sys.exit(f"{ID} has no references; run `fedhpo-gym references {ID}` first")
instances = list(known.instances)
envs = gym.make_vec(
    ID, len(instances), instances="test", autoreset_mode=AutoresetMode.SAME_STEP.value
)


def falling(seen: dict[str, np.ndarray]) -> np.ndarray:
    """Begin with the default and end with the lowest learning rate."""
    actions = np.zeros(envs.action_space.shape, dtype=np.float32)
    actions[:, names.index("learning_rate")] = seen["remaining_rounds"][:, 0] - 1.0
    return actions


def learned(seen: dict[str, np.ndarray]) -> np.ndarray:
    """Do what the network in FILE says, without exploring."""
    flat = np.concatenate([part.reshape(len(instances), -1) for part in seen.values()], axis=1)
    rows = ((flat - stored["mean"]) / np.sqrt(stored["variance"] + 1e-8)).clip(-10.0, 10.0)
    layers = sum(name.startswith("weight") for name in stored)
    for layer in range(layers):
        rows = rows @ stored[f"weight_{layer}"] + stored[f"bias_{layer}"]
        rows = np.tanh(rows) if layer < layers - 1 else rows
    return rows.clip(-1.0, 1.0).astype(np.float32)


act = falling
if len(sys.argv) > 2 and Path(sys.argv[2]).is_dir():
    act = load_policy(sys.argv[2]).act
elif len(sys.argv) > 2:
    stored, act = dict(np.load(f"{sys.argv[2].removesuffix('.npz')}.npz")), learned
returns, going_on = np.zeros(len(instances)), np.ones(len(instances), dtype=bool)
seen, _ = envs.reset(options={"instance": instances})
while going_on.any():
    seen, rewards, terminated, truncated, _ = envs.step(act(seen))
    returns += np.where(going_on, rewards, 0.0)
    going_on &= ~(terminated | truncated)
envs.close()
score, low, high = known.interval(returns)
print(f"{ID}: return {returns.mean():.4f}, best static {np.mean(known.returns['static']):.4f}")
print(f"score {score:.2f}, with 95 % from {low:.2f} to {high:.2f} over {len(instances)} instances")
