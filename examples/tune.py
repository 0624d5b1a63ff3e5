"""Tune a stored problem by hand and by Optuna, in natural units, under a limit on fairness.

An evaluation pays the simulated time of its training, and the episode ends when the budget is
spent. The best trial that keeps the limit is the incumbent. Needs the extra `agents`, for optuna.
"""

import gymnasium as gym
import optuna

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.wrappers import NamedAction

ID = "FedHPO-LR-BreastCancer-v1"

optuna.logging.set_verbosity(optuna.logging.WARNING)
env = NamedAction(
    gym.make(
        ID,
        constraints={"fairness_std": {"limit": 0.05, "weight": 2.0}},
        fidelity={"client_sample_rate": 1.0},
        freeze_thaw=True,  # more rounds of a known configuration cost only the difference
        budget_s=3600.0,
    )
)
env.reset(seed=0)
configuration = {
    "learning_rate": 0.309168204254,  # values of the table's grid; see `fedhpo-gym show`
    "weight_decay": 1e-6,
    "batch_size": 32,
    "step_size": 3,
}
for rounds in (9, 27, 81):
    *_, info = env.step({**configuration, "round": rounds})
    print(
        f"round {rounds:3d}: validation loss {info['objectives']['val_loss']:.3f}, "
        f"violation {info['violation']:.3f}, "
        f"paid {info['cost']['time_s']:.0f} s for {info['cost']['rounds']} rounds"
    )

study = optuna.create_study(
    direction="maximize", sampler=optuna.samplers.TPESampler(seed=0, multivariate=True)
)
env.reset(seed=0)
space = {d.name: d.grid for d in env.get_wrapper_attr("search_space").dimensions}
done = False
while not done:
    trial = study.ask()
    action = {name: trial.suggest_categorical(name, grid) for name, grid in space.items()}
    _, reward, done, _, info = env.step(action)
    study.tell(trial, info["score"])
best = info["incumbent"]
print(f"Optuna, {info['trial']} trials in {info['elapsed_s']:.0f} simulated seconds:")
print(f"validation loss {best['val_loss']:.3f} at {best['configuration']}")
