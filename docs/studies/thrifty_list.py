"""The greedy list that knows prices: what a policy over time must beat to have used its trials."""

from __future__ import annotations

import numpy as np

from fedhpo_gym.agents import learned_network, learned_transformer
from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.learned_network import PolicySource
from fedhpo_gym.agents.transfer.base import ObservedData
from fedhpo_gym.agents.transfer.ensembles import ZeroShotSearch
from fedhpo_gym.core.arrays import Floats


class ThriftyList(ZeroShotSearch):
    """`zero-shot`, whose next is what gains most on the source tasks per simulated second.

    Prices are what a transformer reads off configurations; nothing else of it is used.
    """

    def __init__(self, problem: SearchProblem, *, policy: PolicySource = None) -> None:
        """Take a network of `learned-transformer`."""
        super().__init__(problem)
        shapes = learned_transformer.transformer_shapes
        self._network = learned_network.network_for("learned-transformer", shapes, problem, policy)

    def transfer(self, own: ObservedData, candidates: Floats, rng: np.random.Generator) -> Floats:
        gains = super().transfer(own, candidates, rng)
        return gains / self._network.price(candidates.astype(np.float32))
