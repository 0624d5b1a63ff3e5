"""A backend that is a formula: instant, exact, and without data, tables or torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.backends import Backend
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
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import Task, get_task
from fedhpo_gym.wrappers import BudgetTermination, ScalarizePenalty


class Analytic(Backend):
    """A bowl over the action coordinates that gets deeper with every round.

    The loss of seed s and client i is 0.2 + |u - 0.3|^2 / n + 1 / round + 0.01 s + 0.02 i, the
    accuracy and F1 are exp(-loss); training data do a little better, test data a little worse.
    """

    name = "analytic"

    def __init__(self, task: Task, seed: int | None = None) -> None:
        """Create the backend of a task; only the shape of the task matters."""
        super().__init__(task, seed, task.space, task.fidelity_space)

    @property
    def fingerprint(self) -> str:
        """See `Backend.fingerprint`."""
        return "analytic-1"

    def look_up(self, columns: Mapping[str, NDArray[Any]], reads: Entries = ENTRIES) -> Evaluations:
        """See `Backend.look_up`."""
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

    Args:
        task: name in the catalogue.
        vector_reward: leave the reward a vector.
        budget_s: simulated seconds; the task's budget if no budget is given.
        budget_rounds: communication rounds.
        budget_trials: number of trials.
        constraints: soft constraints of `ScalarizePenalty`.
        render_mode: "human", "rgb_array" or None.
        arguments: further arguments of `TrialSetup.of`.
    """
    found = get_task(task)
    if budget_s is None and budget_rounds is None and budget_trials is None:
        budget_s = found.budget_s
    env: gym.Env[Any, Any] = BudgetTermination(
        TrialEnv(TrialSetup.of(found, Analytic(found), **arguments), render_mode=render_mode),
        budget_s=budget_s,
        budget_rounds=budget_rounds,
        budget_trials=budget_trials,
    )
    return env if vector_reward else ScalarizePenalty(env, constraints=constraints)
