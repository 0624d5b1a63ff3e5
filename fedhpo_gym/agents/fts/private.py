"""DP-FTS-DE: the server mixes clipped messages, adds noise, and clients explore parts of the space.

Dai, Low and Jaillet, "Differentially private federated Bayesian optimization with distributed
exploration", NeurIPS 2021, Algorithms 1 and 2; written from the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fedhpo_gym.agents.fts.agent import FTS
from fedhpo_gym.agents.fts.fourier_features import maximise
from fedhpo_gym.agents.fts.policy import Array, FederatedThompson, FTSSettings, own_probability
from fedhpo_gym.agents.problem import SearchProblem
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.seeding import stream


@dataclass(frozen=True)
class PrivateSettings(FTSSettings):
    """How messages are made private, besides how clients model and search.

    Attributes:
        clip: the largest length of a client's messages of all parts together, S.
        noise_multiplier: z; the noise of a coordinate has the standard deviation z S phi / q.
        share: chance that a client's messages are in the mixture of a step, q.
        halvings: the space is cut in half along so many coordinates: 2^halvings parts.
        preference: weight of a client that explored a part, relative to 1 for one that did not.
        fading: trials after which this preference has fallen to its e-th part.
    """

    clip: float = 10.0
    noise_multiplier: float = 1.0
    share: float = 0.35
    halvings: int = 1
    preference: float = 10.0
    fading: float = 20.0


class PrivateThompson(FederatedThompson):
    """Federated Thompson sampling whose clients see noisy mixtures instead of messages.

    Differs from the paper: every client is a target; a mixture is made anew for each trial number,
    and the number of trials stands for the iteration. Privacy is not accounted for here: a trial
    number's mixture is one subsampled Gaussian mechanism of multiplier z and rate q, whose
    composition any accountant knows.

    Raises:
        InvalidArgumentError: `share` is above 1, or `halvings` no whole number of coordinates.
    """

    def __init__(
        self, clients: int, dimensions: int, seed: int, settings: FTSSettings | None = None
    ) -> None:
        chosen = PrivateSettings() if settings is None else settings
        if not isinstance(chosen, PrivateSettings) or chosen.share > 1:
            raise InvalidArgumentError(
                f"`settings` must be PrivateSettings with a share of at most 1, got {chosen}."
            )
        if chosen.halvings != int(chosen.halvings) or chosen.halvings > dimensions:
            raise InvalidArgumentError(
                f"`halvings` must be an integer of at most {dimensions}, got {chosen.halvings}."
            )
        super().__init__(clients, dimensions, seed, chosen)
        self._private = chosen
        self._parts = 2**chosen.halvings

    def mixture(self, trial: int) -> Array:
        """Return (parts, features) what the server sends for trials of this number.

        Eq. 3: every part is a weighted sum over the chosen clients of their clipped messages, plus
        normal noise; weights prefer those who explored this part, less so as time goes by.
        """
        chosen, rng = self._private, stream(self._seed, "private_mixture", trial)
        fresh = [c for c in range(self.clients) if self._trials(c) >= chosen.initial]
        weights = self._weights(trial)
        taken = rng.random(self.clients) < chosen.share
        total = np.zeros((self._parts, chosen.shared_features))
        for client in (c for c in fresh if taken[c]):
            message = self.message(client)
            limit = chosen.clip / np.sqrt(self._parts)
            message = message / max(1.0, float(np.linalg.norm(message)) / limit)
            total += weights[:, client, None] * message / chosen.share
        scale = chosen.noise_multiplier * chosen.clip * float(weights.max()) / chosen.share
        return total + scale * rng.standard_normal(total.shape)

    def part_of(self, points: Array) -> Array:
        """Return the (m,) parts that (m, n) points of the unit cube lie in."""
        halves = points[:, : self._private.halvings] >= 0.5
        return np.asarray(halves @ (2 ** np.arange(self._private.halvings)))

    def _weights(self, trial: int) -> Array:
        """Return (parts, clients) shares of each client in each part; rows sum to 1."""
        own = np.arange(self.clients) % self._parts
        gain = (self._private.preference - 1.0) * np.exp(-trial / self._private.fading)
        raw = 1.0 + gain * (own == np.arange(self._parts)[:, None])
        return np.asarray(raw / raw.sum(axis=1, keepdims=True))

    def _first_point(self, client: int, rng: np.random.Generator) -> Array:
        """Return a draw from the part that a client explores."""
        point, part = rng.random(self.dimensions), client % self._parts
        for axis in range(self._private.halvings):
            point[axis] = (point[axis] + (part >> axis & 1)) / 2.0
        return point

    def _guided(self, client: int, trial: int, rng: np.random.Generator) -> Array | None:
        own = own_probability(trial - self._private.initial)
        if stream(self._seed, "fts_mixing", client, trial).random() < own:
            return None
        weights = self.mixture(trial)

        def value(points: Array) -> Array:
            rows = weights[self.part_of(points)]
            return np.asarray((self._shared(points) * rows).sum(axis=1))

        return maximise(self._shared, weights[0], self._private.candidates, rng, value)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        settings = PrivateSettings(**data["settings"])
        return cls.restored(data, settings)


class PrivateFTS(FTS):
    """DP-FTS-DE on the rounds of one course; see `PrivateThompson` for what differs.

    Args:
        problem: of a round environment made with `per_client=True`.
        settings: how clients search and how their messages are made private.
    """

    def __init__(self, problem: SearchProblem, *, settings: PrivateSettings | None = None) -> None:
        super().__init__(problem)
        clients, width = self.action_space.shape
        self.policy = PrivateThompson(clients, width, self.seed, settings)
