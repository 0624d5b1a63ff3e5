"""A trial that diverged is worst in everything that an agent sees of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.envs import TrialEnv
from fedhpo_gym.envs.trial.setup import TrialSetup
from fedhpo_gym.envs.trial.vector import TrialVectorEnv
from fedhpo_gym.evaluation.records import Evaluation, Fidelity
from fedhpo_gym.objectives import CAP, MAX_LOSS, WORST_FAIRNESS
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import get_task
from fedhpo_gym.testing.analytic import Analytic
from fedhpo_gym.wrappers import BudgetTermination
from fedhpo_gym.wrappers.budget import Budget

TASK = get_task("LR-CreditG")


class Fragile(Analytic):
    """The best of all models, which diverges after 100 rounds under the second of three seeds.

    Other configurations are as bad as 10^5 nats.
    """

    def _answer(self, configuration: Mapping[str, Value], fidelity: Fidelity) -> Evaluation:
        found = super()._answer(configuration, fidelity)
        if configuration["learning_rate"] < 0.1:
            found.best[..., 0] = 1e5
            return found
        found.best[:] = [0.01, 1.0, 1.0]
        failed = (np.array(self.seeds) == self.seeds[1]) & (fidelity.round > 100)
        return replace(found, diverged=failed)


def make(objectives: tuple[str, ...] = ("val_loss", "fairness_std", "epsilon")) -> Any:
    return BudgetTermination(
        TrialEnv(TrialSetup.of(TASK, Fragile(TASK), objectives=objectives)), budget_trials=9
    )


def action(learning_rate: float, rounds: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the action with the highest or lowest learning rate and rounds, -1 or 1."""
    names = make().unwrapped.search_space.names
    chosen = {"learning_rate": learning_rate, "round": rounds}
    return np.array([chosen.get(name, 1.0) for name in names], np.float32)


def test_it_is_seen_and_rewarded_as_worst() -> None:
    env = make(("val_loss", "val_f1", "fairness_std", "fairness_jain", "epsilon"))
    env.reset(seed=0)
    seen, reward, _, _, info = env.step(action(1.0, 1.0))
    assert info["diverged"]
    assert reward.tolist() == [-MAX_LOSS, 0.0, -0.5, 0.0, -CAP]
    assert seen["loss"].tolist() == [MAX_LOSS, MAX_LOSS]
    assert seen["accuracy"].tolist() == seen["f1"].tolist() == [0.0, 0.0]
    assert seen["fairness"].tolist() == list(WORST_FAIRNESS)
    assert env.observation_space.contains(seen)
    assert np.isfinite(list(info["objectives"].values())).all()


def test_fewer_rounds_of_the_same_configuration_count() -> None:
    env = make()
    env.reset(seed=0)
    _, reward, _, _, info = env.step(action(1.0, -1.0))
    assert not info["diverged"]
    assert reward[0] == pytest.approx(-0.01)


def test_the_worst_finite_model_is_a_better_incumbent() -> None:
    env = make()
    env.reset(seed=0)
    trials = [action(1.0, 1.0), action(-1.0, 1.0), action(1.0, 1.0), action(1.0, -1.0)]
    incumbents = [env.step(one)[-1]["incumbent"]["trial"] for one in trials]
    assert incumbents == [1, 2, 2, 4]


def test_many_environments_agree_bit_for_bit() -> None:
    single: Any = make()
    many = TrialVectorEnv(3, single.unwrapped.setup, Budget(budget_trials=9))
    many.reset(seed=0)
    for actions in ([(1, 1), (-1, 1), (1, -1)], [(1, -1), (1, 1), (1, 1)]):
        chosen = np.stack([action(*one) for one in actions])
        seen, rewards, _, _, info = many.step(chosen)
        for index, one in enumerate(chosen):
            single.reset(seed=0)
            alone, reward, _, _, said = single.step(one)
            np.testing.assert_array_equal(rewards[index], reward)
            for name in ("loss", "accuracy", "f1", "fairness", "privacy"):
                np.testing.assert_array_equal(seen[name][index], alone[name])
            for name, value in said["objectives"].items():
                assert info["objectives"][name][index] == value
