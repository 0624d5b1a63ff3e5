"""The tree-structured Parzen estimator of Optuna, in ask-and-tell form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import Agent, Observation, score_of
from fedhpo_gym.agents.pending import Pending
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.errors import needing
from fedhpo_gym.seeding import stream

with needing("agent 'optuna-tpe'", "Optuna", "agents", "optuna"):
    import optuna


class OptunaTPE(Agent):
    """TPE (Bergstra et al., 2011): model the good and the bad trials apart, maximise their ratio.

    Differs from the paper: the implementation and its defaults are Optuna's (10 random trials to
    begin with, 24 candidates per ask), and the coordinates are those of the action box, which
    already carries logarithmic scales and grids. Dimensions are modelled independently
    (`multivariate=False`), as in the paper.

    Scores of trials, or else rewards, must be plain numbers; they are maximised.
    """

    rewards = "scalar"

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        box = self.action_space
        self._bounds: dict[str, optuna.distributions.BaseDistribution] = {
            f"x{i}": optuna.distributions.FloatDistribution(float(low), float(high))
            for i, (low, high) in enumerate(zip(box.low, box.high, strict=True))
        }
        sampler = optuna.samplers.TPESampler(
            seed=int(stream(self.seed, "optuna_tpe").integers(2**32)),
            multivariate=False,
            constant_liar=False,
        )
        with _quiet():
            self._study = optuna.create_study(
                sampler=sampler, direction="maximize", study_name="fedhpo-gym"
            )
        self._asked: Pending[optuna.trial.Trial] = Pending()

    def ask(self, observation: Observation) -> NDArray[np.float32]:
        trial = self._study.ask(self._bounds)
        action = np.array([trial.params[name] for name in self._bounds], dtype=np.float32)
        return self._asked.put(
            np.clip(action, self.action_space.low, self.action_space.high), trial
        )

    def tell(
        self,
        action: NDArray[np.float32],
        reward: float,
        observation: Observation,
        terminated: bool,
        info: Mapping[str, Any],
    ) -> None:
        score = score_of(reward, info)
        trial = self._asked.take(action)
        with _quiet():
            self._study.tell(trial, score)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back Optuna's progress messages, and leave its log level as it was."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
