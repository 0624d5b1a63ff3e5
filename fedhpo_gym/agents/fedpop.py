"""FedPop: clients train with members of a population, which evolves while the course runs.

Chen, Jiang, Zhang, Tresp, "FedPop: federated population-based hyperparameter tuning", 2023
(arXiv 2308.08634), Algorithm 1, the evolution of client hyperparameters (FedPop-L).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.clients import ArmFeedback, Point, PointAgent, Positive, PositiveInt, Share
from fedhpo_gym.core.arrays import Integers
from fedhpo_gym.core.checks import CheckedFields, Range
from fedhpo_gym.core.seeding import stream


@dataclass(frozen=True)
class FedPopSettings(CheckedFields):
    """How the population evolves.

    Attributes:
        members: of the population.
        interval: steps between two exchanges.
        share: of the population that is replaced, and share that replaces it.
        reach: the largest move of a coordinate in the first step, in [-1, 1].
        resample: chance that a coordinate is drawn anew.
        decay: steps after which a move is half as large.
    """

    members: Annotated[int, Range(2)] = 8
    interval: PositiveInt = 2
    share: Annotated[float, Range(0, 0.5, "(]")] = 0.25
    reach: Annotated[float, Range(0, 2, "(]")] = 0.2
    resample: Share = 0.1
    decay: Positive = 25.0


class FedPop(PointAgent):
    """Exploit and explore among the clients of one course.

    A member's score is the mean fall of its clients' validation losses by their local training
    since the last exchange; the worst members become moved copies of the best. Moves get smaller
    as the course goes on. A population of whole courses (FedPop-G) is population-based training,
    `fedhpo_gym.studies.population`.

    Differs from the paper: scores are falls and not losses, which differ more between clients than
    between hyperparameters; server hyperparameters are part of a row like others, where they are.

    Args:
        settings: how the population evolves.
    """

    def __init__(self, problem: SearchProblem, *, settings: FedPopSettings | None = None) -> None:
        super().__init__(problem)
        self._settings = settings or FedPopSettings()
        self._rng = stream(self.seed, "fedpop")
        self.population = self._rng.uniform(-1.0, 1.0, (self._settings.members, self.width))
        self._played: list[int] = []
        self._falls: list[list[float]] = [[] for _ in self.population]
        self._turn = self._steps = 0

    def choose(self, clients: Integers) -> Point:
        size = len(self.population)
        self._played = [(self._turn + i) % size for i in range(len(clients))]
        self._turn = (self._turn + len(clients)) % size
        return self.population[self._played]

    def learn(self, points: Point, feedbacks: Sequence[ArmFeedback]) -> None:
        member_of = dict(zip(self._clients.tolist(), self._played, strict=True))
        for feedback in feedbacks:
            self._falls[member_of[feedback.client]].append(feedback.before - feedback.after)
        self._steps += 1
        members = np.array([i for i, falls in enumerate(self._falls) if falls])
        if self._steps % self._settings.interval or len(members) < 2:
            return
        scores = [float(np.mean(self._falls[i])) for i in members]
        parents = members[exploit(scores, self._settings.share, self._rng)]
        before = self.population.copy()
        for member, parent in zip(members.tolist(), parents.tolist(), strict=True):
            if member != parent:
                self.population[member] = self._perturb(before[parent])
        self._falls = [[] for _ in self.population]

    def _perturb(self, point: Point) -> Point:
        reach = self._settings.reach * 0.5 ** (self._steps / self._settings.decay)
        neighbour = np.clip(point + self._rng.uniform(-reach, reach, self.width), -1.0, 1.0)
        is_resampled = self._rng.random(self.width) < self._settings.resample
        return np.where(is_resampled, self._rng.uniform(-1.0, 1.0, self.width), neighbour)

    def _state(self) -> dict[str, Any]:
        return {
            "rng": self._rng.bit_generator.state,
            "population": self.population.tolist(),
            "falls": [list(falls) for falls in self._falls],
            "turn": self._turn,
            "steps": self._steps,
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self.population = np.array(state["population"], dtype=np.float64)
        self._falls = [list(falls) for falls in state["falls"]]
        self._turn, self._steps = int(state["turn"]), int(state["steps"])


def exploit(scores: Sequence[float], truncation: float, rng: np.random.Generator) -> Integers:
    """Return whom each member continues: (members,) indices; most continue themselves.

    Each of the worst share copies one of the best share, chosen uniformly ("truncation
    selection"). The share is rounded up, to at most half of the population.
    """
    count = min(int(np.ceil(truncation * len(scores))), len(scores) // 2)
    order = np.argsort(np.asarray(scores), kind="stable")
    parents = np.arange(len(scores))
    parents[order[:count]] = rng.choice(order[len(scores) - count :], count)
    return parents
