"""Federated Thompson sampling: clients search side by side and exchange sampled functions only.

Dai, Low and Jaillet, "Federated Bayesian optimization via Thompson sampling", NeurIPS 2020,
Algorithms 1 and 2; written from the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.agents.fts.fourier_features import (
    FourierFeatures,
    draw_features,
    maximise,
    sample_weights,
)
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.seeding import stream

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FTSSettings:
    """How the clients model their objective and search.

    Attributes:
        length_scale: of the kernel, in widths of the search space.
        noise: variance of an observation, in variances of a client's own observations.
        shared_features: number of features of what clients send; the same for all.
        own_features: number of features of a client's own draws.
        candidates: number of random points per maximisation.
        initial: number of random trials of each client before it models anything.

    Raises:
        InvalidArgumentError: a number is not positive.
    """

    length_scale: float = 0.5
    noise: float = 0.02
    shared_features: int = 100
    own_features: int = 200
    candidates: int = 500
    initial: int = 3

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 < value < math.inf:
                raise InvalidArgumentError(f"`{name}` must be finite and positive, got {value}.")


def own_probability(trial: int) -> float:
    """Return p_t = 1 - 1/(t + 1)², the chance that a client's trial t uses its own model.

    As in the authors' code, t counts from 0 after the initial trials, and p_0 is p_1.
    """
    return 1.0 - 1.0 / (max(trial, 1) + 1) ** 2


class FederatedThompson:
    """One Bayesian optimizer per client; each sometimes follows a function another one sampled.

    Differs from the paper: every client is a target; a client's message is renewed after each
    of its observations, not sent once; observations are standardised per client; kernel
    parameters are fixed; the maximiser is random search. Clients are chosen uniformly.

    Attributes:
        clients: how many there are.
        dimensions: coordinates of a point of the unit cube.

    Raises:
        InvalidArgumentError: a number is below 1, or the seed is negative.
    """

    def __init__(
        self, clients: int, dimensions: int, seed: int, settings: FTSSettings | None = None
    ) -> None:
        if clients < 1 or dimensions < 1:
            raise InvalidArgumentError(
                "`clients` and `dimensions` must be at least 1, got "
                f"clients={clients}, dimensions={dimensions}."
            )
        self.clients = clients
        self.dimensions = dimensions
        self.settings = settings or FTSSettings()
        self._seed = seed
        self._points: list[list[list[float]]] = [[] for _ in range(clients)]
        self._values: list[list[float]] = [[] for _ in range(clients)]
        self._shared = self._features(self.settings.shared_features, "fts_shared")
        self._sent: dict[int, tuple[int, Array]] = {}

    def suggest(self, client: int) -> Array:
        """Return the next point of a client: (n,) in [0, 1]. Asking twice gives the same point.

        Raises:
            InvalidArgumentError: there is no such client.
        """
        trial = self._trials(client)
        rng = stream(self._seed, "fts", client, trial)
        if trial < self.settings.initial:
            return self._first_point(client, rng)
        if (point := self._guided(client, trial, rng)) is not None:
            return point
        features = draw_features(
            self.dimensions, self.settings.own_features, self.settings.length_scale, rng
        )
        weights = self._sample(client, features, rng)
        return maximise(features, weights, self.settings.candidates, rng)

    def observe(self, client: int, point: ArrayLike, value: float) -> None:
        """Tell a client what a point brought; higher is better.

        Raises:
            InvalidArgumentError: there is no such client, the point is not in the unit cube, or
                the value is not finite.
        """
        self._trials(client)
        x = np.asarray(point, dtype=np.float64)
        if x.shape != (self.dimensions,) or not np.all((x >= 0) & (x <= 1)):
            raise InvalidArgumentError(
                f"`point` must have shape ({self.dimensions},) and lie in [0, 1], got {x.tolist()}."
            )
        if not math.isfinite(value):
            raise InvalidArgumentError(f"`value` must be finite, got {value}; leave it out.")
        self._points[client].append(x.tolist())
        self._values[client].append(float(value))

    def message(self, client: int) -> Array:
        """Return what a client sends: (shared_features,) weights drawn from its posterior.

        Raises:
            InvalidArgumentError: there is no such client.
        """
        trial = self._trials(client)
        if self._sent.get(client, (-1,))[0] != trial:
            rng = stream(self._seed, "fts_message", client, trial)
            self._sent[client] = (trial, self._sample(client, self._shared, rng))
        return self._sent[client][1]

    def best(self, client: int) -> Array | None:
        """Return the best point a client has tried, (n,), or None before its first."""
        if not self._trials(client):
            return None
        return np.array(self._points[client][int(np.argmax(self._values[client]))])

    def to_dict(self) -> dict[str, Any]:
        """Return settings and observations as plain JSON data."""
        return {
            "clients": self.clients,
            "dimensions": self.dimensions,
            "seed": self._seed,
            "settings": asdict(self.settings),
            "points": [[list(point) for point in points] for points in self._points],
            "values": [list(values) for values in self._values],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild the optimizers from what `to_dict` returned; they go on as before."""
        return cls.restored(data, FTSSettings(**data["settings"]))

    @classmethod
    def restored(cls, data: Mapping[str, Any], settings: FTSSettings) -> Self:
        """Rebuild the optimizers from their data and settings."""
        made = cls(data["clients"], data["dimensions"], data["seed"], settings)
        for client in range(made.clients):
            for point, value in zip(data["points"][client], data["values"][client], strict=True):
                made.observe(client, point, value)
        return made

    def _trials(self, client: int) -> int:
        if not 0 <= client < self.clients:
            raise InvalidArgumentError(f"`client` must be in [0, {self.clients}), got {client}.")
        return len(self._values[client])

    def _first_point(self, client: int, rng: np.random.Generator) -> Array:
        """Return a point that a client tries before it models anything."""
        return rng.random(self.dimensions)

    def _guided(self, client: int, trial: int, rng: np.random.Generator) -> Array | None:
        """Return the point that another client's message leads to, or None for the own model."""
        if (other := self._followed(client, trial)) is None:
            return None
        return maximise(self._shared, self.message(other), self.settings.candidates, rng)

    def _followed(self, client: int, trial: int) -> int | None:
        """Return whose message a trial follows, or None for the client's own model."""
        initial = self.settings.initial
        others = [c for c in range(self.clients) if c != client and self._trials(c) >= initial]
        rng = stream(self._seed, "fts_mixing", client, trial)
        if not others or rng.random() < own_probability(trial - initial):
            return None
        return int(rng.choice(others))

    def _sample(self, client: int, features: FourierFeatures, rng: np.random.Generator) -> Array:
        points = np.reshape(self._points[client], (-1, self.dimensions))
        values = np.array(self._values[client], dtype=np.float64)
        if len(values):
            values = (values - values.mean()) / (values.std() or 1.0)
        return sample_weights(features(points), values, self.settings.noise, rng)

    def _features(self, number: int, name: str) -> FourierFeatures:
        scale = self.settings.length_scale
        return draw_features(self.dimensions, number, scale, stream(self._seed, name))
