"""FLoRA: clients search locally at first, and one configuration is derived from their results.

Zhou, Ram, Salonidis, Baracaldo, Samulowitz, Ludwig, "Single-shot general hyper-parameter
optimization for federated learning", ICLR 2023, Algorithm 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.clients import ArmFeedback, Point, PointAgent, PositiveInt
from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import require_known, require_optional
from fedhpo_gym.core.seeding import stream

with require_optional("agent 'flora'", "scikit-learn", "agents", "sklearn"):
    from sklearn.ensemble import RandomForestRegressor

SURFACES = ("sgm", "aplm", "mplm")
TREES, CANDIDATES = 20, 2000
Pairs = list[list[Any]]


class FLoRA(PointAgent):
    """Asynchronous local searches first, then a single configuration for the rest of the course.

    In the first `local_steps` steps, every client that trains tries a draw of its own. Client c
    keeps pairs of a configuration and the change of its validation loss by local training. Then
    the server fits a loss surface on all pairs, takes its lowest point, and stays with it.

    `surface` is "sgm" (one model of all pairs), "aplm" (the mean of a model per client), or "mplm"
    (their maximum, for the worst client). Models are forests.

    Differs from the paper: local searches are draws from the prior; they are steps of the course
    itself, which goes on from where they leave it; and a loss is a change of loss, because the
    models that clients start from get better while they search.

    Args:
        local_steps: steps of the local searches.
        surface: one of the above.
    """

    @validate_call
    def __init__(
        self, problem: SearchProblem, *, local_steps: PositiveInt = 5, surface: str = "aplm"
    ) -> None:
        super().__init__(problem)
        require_known("loss surface", surface, SURFACES)
        self._local_steps, self._surface, self._steps = local_steps, surface, 0
        self._pairs: dict[int, Pairs] = {}
        self.chosen: Point | None = None

    def choose(self, clients: NDArray[np.int64]) -> Point:
        step = self._steps
        self._steps += 1
        if step < self._local_steps or not self._pairs:
            draws = [stream(self.seed, "flora_local", int(c), step) for c in clients]
            return np.array([rng.uniform(-1.0, 1.0, self.width) for rng in draws])
        if self.chosen is None:
            self.chosen = self._lowest()
        return np.tile(self.chosen, (len(clients), 1))

    def learn(self, points: Point, feedbacks: Sequence[ArmFeedback]) -> None:
        if self.chosen is not None:
            return
        for feedback in feedbacks:
            pair = [points[feedback.client].tolist(), feedback.after - feedback.before]
            self._pairs.setdefault(feedback.client, []).append(pair)

    def _lowest(self) -> Point:
        """Return where the loss surface is lowest, among all tried points and draws."""
        rng = stream(self.seed, "flora_server")
        groups = list(self._pairs.values())
        all_pairs = [pair for pairs in groups for pair in pairs]
        points = np.array([point for point, _ in all_pairs])
        candidates = np.concatenate([points, rng.uniform(-1.0, 1.0, (CANDIDATES, self.width))])
        pair_sets = [all_pairs] if self._surface == "sgm" else groups
        surfaces = np.array([_predict(pairs, candidates, rng) for pairs in pair_sets])
        surface = surfaces.max(axis=0) if self._surface == "mplm" else surfaces.mean(axis=0)
        return np.asarray(candidates[np.argmin(surface)])

    def _state(self) -> dict[str, Any]:
        return {
            "steps": self._steps,
            "pairs": [[client, pairs] for client, pairs in self._pairs.items()],
            "chosen": None if self.chosen is None else self.chosen.tolist(),
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._steps = int(state["steps"])
        self._pairs = {int(client): list(pairs) for client, pairs in state["pairs"]}
        self.chosen = None if state["chosen"] is None else np.array(state["chosen"])


def _predict(pairs: Pairs, places: Point, rng: np.random.Generator) -> Point:
    """Return (m,) what a forest of some pairs predicts at (m, n) places, in their deviations."""
    changes = np.array([change for _, change in pairs])
    scale = changes.std() or 1.0
    forest = RandomForestRegressor(TREES, random_state=int(rng.integers(2**31)), n_jobs=1)
    fitted = forest.fit(np.array([point for point, _ in pairs]), changes / scale)
    return np.asarray(fitted.predict(places))
