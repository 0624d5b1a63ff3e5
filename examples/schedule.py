"""Set the learning rate while a course is trained: a constant, a step decay, and a random one.

A step of a `DAC-` id trains some rounds with what the action says. Needs the extra `compiled`, and
`data` for the data set.
"""

import gymnasium as gym
import numpy as np

import fedhpo_gym  # noqa: F401 - registers the ids

env = gym.make("FedHPO-DAC-LR-BreastCancer-v1", horizon=60, rounds_per_step=5)
names = env.get_wrapper_attr("search_space").names
rate = names.index("learning_rate")
rng = np.random.default_rng(0)

POLICIES = {
    "constant": lambda _: 0.0,
    "step decay": lambda share: 0.3 if share < 0.5 else -0.3,
    "random": lambda _: rng.uniform(-1.0, 1.0),
}
for name, policy in POLICIES.items():
    env.reset(seed=0)
    done, total, share = False, 0.0, 0.0
    while not done:
        action = np.zeros(len(names), dtype=np.float32)
        action[rate] = policy(share)
        _, reward, terminated, truncated, info = env.step(action)
        total, done = total + reward, terminated or truncated
        share += 5 / 60
    print(f"{name:10} return {total:.3f}, final loss {info['objectives']['val_loss']:.4f}")
