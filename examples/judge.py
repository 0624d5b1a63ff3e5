"""What a policy reaches on instances that it has not seen: `judge.py [ID [FILE]]`.

FILE.npz is what `ppo.py` left; a folder is one of `save_policy`. Without it, a policy made by hand
is judged, whose learning rate falls from round to round. Scores say where it stands: the default
has 0, and the best static configuration, which was searched on train instances, has 1. ID must be
one whose steps are rounds. The default needs no download; docs/environments.md says of each what it
needs.
"""

import argparse
import sys
from pathlib import Path
from zipfile import BadZipFile

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents.policy import load_policy
from fedhpo_gym.core.errors import FedHPOError

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("ID", nargs="?", default="FedHPO-DAC-Quadratic-v1")
parser.add_argument("FILE", nargs="?", type=Path)
ID, FILE = vars(parser.parse_args()).values()

try:
    with gym.make(ID) as env:
        if not hasattr(env.unwrapped, "references"):
            parser.error(f"ID must be one whose steps are rounds, FedHPO-DAC-*, got {ID}")
        known, names = env.unwrapped.references, env.unwrapped.search_space.names
except (gym.error.Error, FedHPOError) as error:  # no such id, or its data are not here
    sys.exit(f"{ID}: {error}")
if ID.startswith("MO-"):
    parser.error(f"ID must be one with a single reward, {ID[3:]}, got {ID}")
if known is None:
    sys.exit(f"{ID} has no references; run `fedhpo-gym references {ID}` first")
instances = list(known.instances)
envs = gym.make_vec(
    ID, len(instances), instances="test", autoreset_mode=AutoresetMode.SAME_STEP.value
)


def falling(seen: dict[str, np.ndarray]) -> np.ndarray:
    """Begin above the default learning rate and end below it."""
    actions = np.zeros(envs.action_space.shape, dtype=np.float32)
    actions[:, names.index("learning_rate")] = 0.6 * seen["remaining_rounds"][:, 0] - 0.4
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
file = Path(f"{str(FILE).removesuffix('.npz')}.npz")
if FILE and not FILE.is_dir() and not file.is_file():
    parser.error(f"FILE must be a folder or what ppo.py left, got {FILE}")
returns, going_on = np.zeros(len(instances)), np.ones(len(instances), dtype=bool)
seen, _ = envs.reset(options={"instance": instances})
try:
    if FILE and FILE.is_dir():
        act = load_policy(FILE).act
    elif FILE:
        stored, act = dict(np.load(file)), learned
    act(seen).reshape(envs.action_space.shape)  # of another problem, it fails here or before
except (FedHPOError, LookupError, ValueError, TypeError, OSError, EOFError, BadZipFile) as error:
    sys.exit(f"FILE must hold a policy of {ID}, got {FILE}: {error}")
while going_on.any():
    seen, rewards, terminated, truncated, _ = envs.step(act(seen))
    returns += np.where(going_on, rewards, 0.0)
    going_on &= ~(terminated | truncated)
envs.close()
score, low, high = known.interval(returns)
print(f"{ID}: return {returns.mean():.4f}, best static {np.mean(known.returns['static']):.4f}")
print(f"score {score:.2f}, with 95 % from {low:.2f} to {high:.2f} over {len(instances)} instances")
for paired in known.compare(returns):
    print(paired)
