"""Configurations in natural units, a fairness constraint, and a slower network."""

import gymnasium as gym

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.wrappers import NamedAction

env = NamedAction(
    gym.make(
        "FedHPO-LR-BreastCancer-v1",
        constraints={"fairness_std": {"limit": 0.05, "weight": 2.0}},
        system={"client_upload_bytes_per_s": 20_000.0},
        freeze_thaw=True,
    )
)
env.reset(seed=0)
configuration = {
    "learning_rate": 0.309168204254,  # values of the table's grid; see `fedhpo-gym show`
    "weight_decay": 1e-6,
    "batch_size": 32,
    "step_size": 3,
    "client_sample_rate": 1.0,
}
for rounds in (9, 27, 81):
    *_, info = env.step({**configuration, "round": rounds})
    print(
        f"round {rounds:3d}: val loss {info['objectives']['val_loss']:.3f}, "
        f"score {info['score']:.3f} (penalty {info['penalty']:.3f}), "
        f"paid {info['cost']['time_s']:.0f} s for {info['cost']['rounds']} rounds"
    )
