"""Environments that are formulas: instant, exact, and without data, tables or torch.

The conformance kit runs its laws on them, and tests of agents use them. `Analytic` is a backend of
trials, which `make_env` wraps as registered ids are; `AnalyticRounds` has the interface of round
environments. Their optima are known in closed form.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import Backend
from fedhpo_gym.core.arrays import Bools, Floats, Singles
from fedhpo_gym.envs.trial.env import TrialEnv
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.evaluation.records import (
    ENTRIES,
    SPLITS,
    Entries,
    Evaluation,
    Evaluations,
    Fidelity,
)
from fedhpo_gym.space import Dimension, SearchSpace, Value
from fedhpo_gym.tasks import Task, get_task
from fedhpo_gym.wrappers import BudgetTermination, ScalarizePenalty


class Analytic(Backend):
    """A bowl over the action coordinates that gets deeper with every round.

    The loss of seed s and client i is 0.2 + (u - 0.3)^2 / n + 1 / round + 0.01 s + 0.02 i, the
    accuracy and F1 are exp(-loss); training data do a little better, test data a little worse.
    """

    name = "analytic"

    def __init__(self, task: Task, seed: int | None = None) -> None:
        super().__init__(task, seed, task.space, task.fidelity_space)

    @property
    def fingerprint(self) -> str:
        return "analytic-1"

    def look_up(self, columns: Mapping[str, NDArray[Any]], reads: Entries = ENTRIES) -> Evaluations:
        del reads
        return Evaluations.stack([self._answer(*query) for query in self.queries(columns)])

    def _answer(self, configuration: Mapping[str, Value], fidelity: Fidelity) -> Evaluation:
        distance = float(np.mean((self.space.encode(configuration) - 0.3) ** 2))
        shape = (len(self.seeds), self.task.num_clients, len(SPLITS))
        seed = 0.01 * np.array(self.seeds)[:, None, None]
        client = 0.02 * np.arange(shape[1])[:, None]
        split = np.array([-0.05, 0.0, 0.05])
        loss = 0.2 + distance + 1.0 / max(fidelity.round, 1) + seed + client + split
        metrics = np.stack([loss, np.exp(-loss), np.exp(-loss)], axis=-1)
        return Evaluation(
            best=metrics,
            current=metrics.copy(),
            num_samples=np.full(shape, 10) + np.arange(shape[1])[:, None],
            best_round=np.full(shape[0], fidelity.round),
            diverged=np.zeros(shape[0], dtype=bool),
            seeds=self.seeds,
            fidelity=fidelity,
        )


def make_env(
    *,
    task: str = "LR-CreditG-v0",
    vector_reward: bool = False,
    budget_s: float | None = None,
    budget_rounds: int | None = None,
    budget_trials: int | None = None,
    constraints: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
    **arguments: Any,
) -> gym.Env[Any, Any]:
    """Build a trial environment on the analytic backend, wrapped as the registered ids are.

    Budgets are simulated seconds, communication rounds and trials; without any, the task's holds.
    `constraints` are those of `ScalarizePenalty`, further arguments those of `TrialSetup.of`.
    """
    task_ = get_task(task)
    if budget_s is None and budget_rounds is None and budget_trials is None:
        budget_s = task_.budget_s
    env: gym.Env[Any, Any] = BudgetTermination(
        TrialEnv(TrialSetup.of(task_, Analytic(task_), **arguments), render_mode=render_mode),
        budget_s=budget_s,
        budget_rounds=budget_rounds,
        budget_trials=budget_trials,
    )
    return env if vector_reward else ScalarizePenalty(env, constraints=constraints)


Observation = dict[str, Singles]

SPACE = SearchSpace(
    (
        Dimension("learning_rate", 1e-4, 1.0, "float", log=True),
        Dimension("step_size", 1, 4, "int"),
        Dimension("batch_size", 16, 64, "int", values=(16, 32, 64)),
    )
)
REWARDS = ("improvement", "time")
FLOOR = 0.1
START = 3.0


class AnalyticRounds(gym.Env[Observation, Singles]):
    """The public interface of `RoundEnv` that agents use, with losses that are formulas.

    The loss of a client that trains falls towards 0.1: what is above that is multiplied by
    0.4 + 0.6 min(1, d), where d is the mean squared distance of the client's action from 0.3 plus
    0.1 times its number. All clients start at 3. Accuracies are exp(-loss). How losses fall stands
    for how the model moves.
    """

    step_kind = "round"

    def __init__(
        self,
        *,
        clients: int = 5,
        sampled: int = 3,
        horizon: int = 8,
        per_client: bool = False,
        vector_reward: bool = False,
    ) -> None:
        """Make a course of `horizon` steps in which `sampled` of the `clients` train."""
        self.search_space, self.fidelity_space = SPACE, SearchSpace(())
        self.per_client, self.vector_reward = per_client, vector_reward
        self.reward_space = gym.spaces.Box(-START, START, (len(REWARDS),), np.float32)
        shape = (clients, len(SPACE)) if per_client else (len(SPACE),)
        self.action_space = gym.spaces.Box(-1.0, 1.0, shape, np.float32)
        entries = {"remaining_rounds": (0.0, 1.0, 1), "val_loss": (0.0, START, 1)}
        if per_client:
            entries["sampled"] = (0.0, 1.0, clients)
        boxes: dict[str, gym.spaces.Space[Any]] = {
            name: gym.spaces.Box(low, high, (size,), np.float32)
            for name, (low, high, size) in entries.items()
        }
        self.observation_space = gym.spaces.Dict(boxes)  # type: ignore[assignment]
        self._horizon, self._count = horizon, sampled
        self._optima = 0.3 + 0.1 * np.arange(clients)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._steps, self._moved = 0, np.zeros(len(self._optima))
        self._losses = np.full(len(self._optima), START)
        self._draw()
        return self._observation(), self.describe()

    def describe(self) -> dict[str, Any]:
        return {"objective_names": list(REWARDS)}

    def step(self, action: Singles) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        rows = np.broadcast_to(action, (len(self._optima), len(SPACE)))
        before, trained = self._losses, self._sampled
        distance = ((rows - self._optima[:, None]) ** 2).mean(axis=1)
        after = FLOOR + (before - FLOOR) * (0.4 + 0.6 * np.minimum(distance, 1.0))
        self._losses = np.where(trained, after, before)
        self._steps += 1
        scores = np.array([before.mean() - self._losses.mean(), -1.0 / self._horizon], np.float32)
        info = self._info(before, trained)
        self._moved = before - self._losses
        self._draw()
        reward = scores if self.vector_reward else float(scores[0] + 0.1 * scores[1])
        return self._observation(), reward, self._steps >= self._horizon, False, info

    def _info(self, before: Floats, trained: Bools) -> dict[str, Any]:
        loss, samples = float(self._losses.mean()), 10 + np.arange(len(trained))
        info = {
            "objectives": {"val_loss": loss},
            "val_loss": loss,
            "val_accuracy": float(np.exp(-self._losses).mean()),
            "diverged": False,
            "move_product": float(np.sum((before - self._losses) * self._moved)),
            "num_train_samples": np.where(trained, samples, 0).tolist(),
            "num_val_samples": np.where(trained, samples, 0).tolist(),
        }
        if self.per_client:
            info["val_loss_before"] = np.where(trained, before, 0.0).tolist()
            info["val_loss_after"] = np.where(trained, self._losses, 0.0).tolist()
        return info

    def _draw(self) -> None:
        order = self.np_random.permutation(len(self._optima))
        self._sampled = np.isin(np.arange(len(order)), order[: self._count])

    def _observation(self) -> Observation:
        observation = {
            "remaining_rounds": np.array([1.0 - self._steps / self._horizon], np.float32),
            "val_loss": np.array([self._losses.mean()], np.float32),
        }
        if self.per_client:
            observation["sampled"] = self._sampled.astype(np.float32)
        return observation
