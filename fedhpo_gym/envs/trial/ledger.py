"""The simulated clock: what trials cost, with or without freeze-thaw."""

from __future__ import annotations

from collections.abc import Mapping

from fedhpo_gym.evaluation.records import Cost, Fidelity
from fedhpo_gym.space import Value
from fedhpo_gym.tasks import Task


class CostLedger:
    """Pays for trials by the task's system model.

    Attributes:
        freeze_thaw: training that was paid for once is not paid again.
        elapsed_s: simulated seconds since reset.
    """

    def __init__(self, task: Task, freeze_thaw: bool) -> None:
        """Create the ledger of an environment.

        Args:
            task: names the model size, the number of clients and the system.
            freeze_thaw: training that was paid for once is not paid again (Swersky et al., 2014).
        """
        self._task = task
        self.freeze_thaw = freeze_thaw
        self.reset()

    def reset(self) -> None:
        """Set the clock to zero and forget what was trained."""
        self.elapsed_s = 0.0
        self._paid: dict[tuple[object, ...], int] = {}

    def pay(self, configuration: Mapping[str, Value], fidelity: Fidelity) -> Cost:
        """Charge one evaluation and return its cost."""
        rounds = fidelity.round
        if self.freeze_thaw:
            key = (*configuration.values(), fidelity.client_sample_rate)
            rounds = max(0, fidelity.round - self._paid.get(key, 0))
            self._paid[key] = max(fidelity.round, self._paid.get(key, 0))
        size = self._task.parameters_of(configuration)
        cost = charge(self._task, size, rounds, fidelity.client_sample_rate)
        self.elapsed_s += cost.time_s
        return cost


def charge(task: Task, num_parameters: int, rounds: int, client_sample_rate: float) -> Cost:
    """Return what some rounds of a course of a model of some size cost."""
    charged = Fidelity(rounds, client_sample_rate)
    return task.system.cost(num_parameters, task.num_clients, charged)
