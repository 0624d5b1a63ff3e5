"""The same configuration looked up, predicted, and trained (needs the extras raw and data)."""

import gymnasium as gym

import fedhpo_gym  # noqa: F401 - registers the ids

# learning rate 1e-5, no weight decay, batch size 32, 3 local epochs
ACTION = [-1.0, -1.0, 0.0, 0.0]

for backend in ("tabular", "surrogate", "raw"):
    env = gym.make(
        "FedHPO-LR-BreastCancer-v0",
        backend=backend,
        grid=True,
        fidelity={"round": 81, "client_sample_rate": 0.6},
    )
    env.reset(seed=0)
    _, _, _, _, info = env.step(env.action_space.low * 0 + ACTION)
    print(f"{backend:>9}: val loss {info['objectives']['val_loss']:.4f}, test {info['test']}")
