"""NSGA-II and hypervolume-based TPE of optuna on an `MO-` id, against its known Pareto front.

Both see what any user sees: actions, rewards, and when the budget is spent. How much of the known
hypervolume they still miss, over simulated time, is computed afterwards from what trials brought.
Needs the extras `agents`, for optuna, and `fronts`.
"""

import gymnasium as gym
import numpy as np
import optuna

import fedhpo_gym

ID = "MO-FedHPO-LR-BreastCancer-v1"
CHOSEN = {"fidelity": {"client_sample_rate": 1.0}}  # rounds stay part of the action
HOURS = (1, 2, 4)

optuna.logging.set_verbosity(optuna.logging.WARNING)
truth = fedhpo_gym.truth(ID, **CHOSEN)
names = [objective.name for objective in truth.objectives]
print(f"{len(truth.front())} of {len(truth.values)} queries are on the front of {names}")
print("hypervolume regret after", ", ".join(f"{hour} h" for hour in HOURS))

SAMPLERS = {
    "random": optuna.samplers.RandomSampler(seed=0),
    "NSGA-II": optuna.samplers.NSGAIISampler(population_size=20, seed=0),
    "TPE": optuna.samplers.TPESampler(seed=0),
}
for name, sampler in SAMPLERS.items():
    study = optuna.create_study(sampler=sampler, directions=["maximize"] * len(names))
    env = gym.make(ID, budget_s=3600.0 * HOURS[-1], disable_env_checker=True, **CHOSEN)
    env.reset(seed=0)
    values, elapsed_s, done = [], [], False
    while not done:
        trial = study.ask()
        size = env.action_space.shape[0]
        action = [trial.suggest_float(f"coordinate {i}", -1.0, 1.0) for i in range(size)]
        _, reward, done, _, info = env.step(np.array(action, dtype=np.float32))
        study.tell(trial, reward.tolist())  # scores: higher is better, whatever the objective
        values.append(list(info["objectives"].values()))
        elapsed_s.append(info["elapsed_s"])
    missing = truth.hypervolume_regret(values)
    last = [np.searchsorted(elapsed_s, 3600.0 * hour, side="right") - 1 for hour in HOURS]
    print(f"{name:8}", *(f"{missing[at]:.3f}" for at in last), f"({len(values)} trials)")
