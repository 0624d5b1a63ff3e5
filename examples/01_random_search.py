"""Random search on an embedded table, and what an observation holds."""

import gymnasium as gym

import fedhpo_gym  # noqa: F401 - registers the ids

env = gym.make("FedHPO-LR-CreditG-v1", fidelity={"round": 81, "client_sample_rate": 1.0})
env.action_space.seed(0)
observation, info = env.reset(seed=0)
print({name: value.shape for name, value in observation.items()})

done = False
while not done:
    observation, reward, done, _, info = env.step(env.action_space.sample())
print(f"{info['trial']} trials in {info['elapsed_s']:.0f} simulated seconds")
print("incumbent:", info["incumbent"]["configuration"], info["incumbent"]["val_loss"])
