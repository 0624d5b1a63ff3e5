"""The same configuration looked up, predicted, and trained.

A table answers the points of its grid, a surrogate everything between them, and "raw" trains: it
needs the extra `compiled`, and `data` for the data set.
"""

import gymnasium as gym

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.wrappers import NamedAction

CONFIGURATION = {
    "learning_rate": 0.309168204254,  # values of the table's grid; see `fedhpo-gym show`
    "weight_decay": 1e-6,
    "batch_size": 32,
    "step_size": 3,
}
FIDELITY = {"round": 81, "client_sample_rate": 0.6}

for backend in ("tabular", "surrogate", "raw"):
    env = NamedAction(gym.make("FedHPO-LR-BreastCancer-v1", backend=backend, fidelity=FIDELITY))
    env.reset(seed=0)
    *_, info = env.step(CONFIGURATION)
    loss, test = info["objectives"]["val_loss"], info["test"]
    print(f"{backend:>9}: validation loss {loss:.4f}, test accuracy {test['accuracy']:.4f}")
