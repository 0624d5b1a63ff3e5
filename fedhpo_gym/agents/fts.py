"""Federated Thompson sampling (FTS), and its differentially private form DP-FTS-DE.

Dai, Low and Jaillet, "Federated Bayesian optimization via Thompson sampling", NeurIPS 2020,
Algorithms 1 and 2, and "Differentially private federated Bayesian optimization with distributed
exploration", NeurIPS 2021, Algorithms 1 and 2; written from the papers.

`FTS` and `PrivateFTS` are the agents; `FederatedThompson` and `PrivateThompson` are the algorithms,
one optimizer per client in the unit cube. Draws depend only on the seed, the client and the number
of its trials, so that asking twice gives the same point and no random state is stored.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.clients import (
    ArmFeedback,
    PointAgent,
    Positive,
    PositiveInt,
    normalised_weights,
)
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import CheckedFields, Range, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.core.seeding import stream

REFINEMENTS: Final = (0.1, 0.03, 0.01, 0.003)
"""Standard deviations of the random steps around the best point, one stage each."""


@dataclass(frozen=True, eq=False)
class FourierFeatures:
    """Features whose inner products approximate a squared-exponential kernel of variance 1.

    Rahimi and Recht (NeurIPS 2007); normalised as in Dai, Low and Jaillet (2020), Section 2:
    `frequencies` (features, n) of N(0, 1 / length_scale²), `phases` (features,) of [0, 2π).
    """

    frequencies: Floats
    phases: Floats

    def __call__(self, points: Floats) -> Floats:
        """Return the (m, features) features of (m, n) points; every row has length 1."""
        waves = np.cos(points @ self.frequencies.T + self.phases)
        return np.asarray(waves / np.linalg.norm(waves, axis=1, keepdims=True))


def draw_features(
    dimensions: int, count: int, length_scale: float, rng: np.random.Generator
) -> FourierFeatures:
    """Draw features for points of some dimensions."""
    frequencies = rng.standard_normal((count, dimensions)) / length_scale
    return FourierFeatures(frequencies, rng.uniform(0.0, 2.0 * np.pi, count))


def sample_weights(
    features: Floats, values: Floats, noise: float, rng: np.random.Generator
) -> Floats:
    """Draw (features,) weights of a function from the posterior, given the observations.

    With Φ (m, features), y (m,), Σ = ΦᵀΦ + noise I and the prior N(0, I), the weights are
    N(Σ⁻¹Φᵀy, noise Σ⁻¹), Eq. 1. A draw from the prior is corrected by what it lacks to a draw of
    the observations (Matheron's rule), so that only an (m, m) system is solved.
    """
    weights = rng.standard_normal(features.shape[1])
    residuals = values - features @ weights - np.sqrt(noise) * rng.standard_normal(len(values))
    covariance = features @ features.T + noise * np.eye(len(values))
    return np.asarray(weights + features.T @ np.linalg.solve(covariance, residuals))


def maximise(
    features: FourierFeatures,
    weights: Floats,
    candidates: int,
    rng: np.random.Generator,
    value: Callable[[Floats], Floats] | None = None,
) -> Floats:
    """Return the (n,) point of the unit cube where the drawn function, or `value`, is largest.

    The best of `candidates` uniform points, then of a tenth as many around it per stage.
    """
    dimensions = features.frequencies.shape[1]
    points = rng.random((candidates, dimensions))
    for spread in (*REFINEMENTS, 0.0):
        values = features(points) @ weights if value is None else value(points)
        best: Floats = points[np.argmax(values)]
        steps = spread * rng.standard_normal((max(candidates // 10, 1), dimensions))
        points = np.concatenate([best[None], np.clip(best + steps, 0.0, 1.0)])
    return best


@dataclass(frozen=True)
class FTSSettings(CheckedFields):
    """How the clients model their objective and search.

    Attributes:
        length_scale: of the kernel, in widths of the search space.
        spread: standard deviation of the objective under the prior, whose mean is 0, the worst.
        noise: variance of an observation, in variances of the prior.
        shared_features: number of features of what clients send; the same for all.
        own_features: number of features of a client's own draws.
        candidates: number of random points per maximisation.
        initial: number of random trials of each client before it models anything; they lie in the
            middle half of every range, because extremes may ruin the model for all rounds to come.
    """

    length_scale: Positive = 0.5
    spread: Positive = 0.1
    noise: Annotated[float, Range(1e-9)] = 0.3
    shared_features: PositiveInt = 100
    own_features: PositiveInt = 200
    candidates: PositiveInt = 500
    initial: PositiveInt = 3


def own_probability(trial: int) -> float:
    """Return p_t = 1 - 1/(t + 1)², the chance of the own model; t counts from 0, and p_0 is p_1."""
    return 1.0 - 1.0 / (max(trial, 1) + 1) ** 2


class FederatedThompson:
    """One Bayesian optimizer per client, which sometimes uses a function sampled by another one.

    The objective lies in [0, 1], as the authors' does (an area under the curve), and the prior has
    the mean 0: a point far from all trials counts as bad, so it is seldom tried. Where trials are
    rounds of one course, this keeps clients from ruining the model that they share.

    Differs from the paper: every client is a target; a client's message is renewed after each
    of its observations, not sent once; kernel parameters are fixed; the maximiser is random
    search; the first trials keep away from extremes. Clients are chosen uniformly.
    """

    @validate_call
    def __init__(
        self,
        clients: PositiveInt,
        dimensions: PositiveInt,
        seed: int,
        settings: FTSSettings | None = None,
    ) -> None:
        self.clients = clients
        self.dimensions = dimensions
        self.settings = settings or FTSSettings()
        self._seed = seed
        self._points: list[list[list[float]]] = [[] for _ in range(clients)]
        self._values: list[list[float]] = [[] for _ in range(clients)]
        count, scale = self.settings.shared_features, self.settings.length_scale
        self._shared = draw_features(dimensions, count, scale, stream(seed, "fts_shared"))
        self._sent: dict[int, tuple[int, Floats]] = {}

    def suggest(self, client: int) -> Floats:
        """Return the next point of a client: (n,) in [0, 1]. Asking twice gives the same point."""
        trial = self._trials(client)
        rng = stream(self._seed, "fts", client, trial)
        if trial < self.settings.initial:
            return 0.25 + 0.5 * self._first_point(client, rng)
        if (point := self._follow_message(client, trial, rng)) is not None:
            return point
        features = draw_features(
            self.dimensions, self.settings.own_features, self.settings.length_scale, rng
        )
        weights = self._sample(client, features, rng)
        return maximise(features, weights, self.settings.candidates, rng)

    def observe(self, client: int, point: ArrayLike, value: float) -> None:
        """Add what a point brought to a client: from 0, as if it had diverged, to 1."""
        self._trials(client)
        x = np.asarray(point, dtype=np.float64)
        if x.shape != (self.dimensions,) or not np.all((x >= 0) & (x <= 1)):
            raise InvalidArgumentError(
                f"`point` must have shape ({self.dimensions},) and lie in [0, 1], got {x.tolist()}."
            )
        if not 0 <= value <= 1:
            raise InvalidArgumentError(f"`value` must be in [0, 1], got {value}.")
        self._points[client].append(x.tolist())
        self._values[client].append(float(value))

    def message(self, client: int) -> Floats:
        """Return what a client sends: (shared_features,) weights drawn from its posterior."""
        trial = self._trials(client)
        if self._sent.get(client, (-1,))[0] != trial:
            rng = stream(self._seed, "fts_message", client, trial)
            self._sent[client] = (trial, self._sample(client, self._shared, rng))
        return self._sent[client][1]

    def to_dict(self) -> dict[str, Any]:
        return {"points": deepcopy(self._points), "values": deepcopy(self._values)}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on where those were that returned `data`, with the same seed and settings."""
        self._points = [[] for _ in range(self.clients)]
        self._values = [[] for _ in range(self.clients)]
        self._sent = {}
        for client, observations in enumerate(zip(data["points"], data["values"], strict=True)):
            for point, value in zip(*observations, strict=True):
                self.observe(client, point, value)

    def _trials(self, client: int) -> int:
        if not 0 <= client < self.clients:
            raise InvalidArgumentError(f"`client` must be in [0, {self.clients}), got {client}.")
        return len(self._values[client])

    def _first_point(self, client: int, rng: np.random.Generator) -> Floats:
        """Return a point for a trial before there is a model; the trial uses its middle half."""
        return rng.random(self.dimensions)

    def _follow_message(self, client: int, trial: int, rng: np.random.Generator) -> Floats | None:
        """Return the point that another client's message leads to, or None for the own model."""
        initial = self.settings.initial
        others = [c for c in range(self.clients) if c != client and self._trials(c) >= initial]
        mixing = stream(self._seed, "fts_mixing", client, trial)
        if not others or mixing.random() < own_probability(trial - initial):
            return None
        message = self.message(int(mixing.choice(others)))
        return maximise(self._shared, message, self.settings.candidates, rng)

    def _sample(self, client: int, features: FourierFeatures, rng: np.random.Generator) -> Floats:
        points = np.reshape(self._points[client], (-1, self.dimensions))
        values = np.array(self._values[client], dtype=np.float64) / self.settings.spread
        return sample_weights(features(points), values, self.settings.noise, rng)


class FTS(PointAgent):
    """Dai et al. (2020) on the rounds of one course; see `FederatedThompson` for what differs.

    The objective of a client whose model has the validation loss L after its local training is
    U / (U + L): 1 is best, 0 is a client that diverged. U is the loss of the model it received, or
    the mean loss of the first models where that is higher. Differences of losses would not do: a
    single loss of 1e9 makes all others equal, and they are largest where the model is ruined.
    """

    def __init__(self, problem: SearchProblem, *, settings: FTSSettings | None = None) -> None:
        super().__init__(problem)
        clients = self.action_space.shape[0]
        self.policy = FederatedThompson(clients, self.width, self.seed, settings)
        self._first: float | None = None  # mean loss of the models of the first step

    def choose(self, clients: NDArray[np.int64]) -> Floats:
        return np.array([2.0 * self.policy.suggest(client) - 1.0 for client in clients.tolist()])

    def learn(self, points: Floats, feedbacks: Sequence[ArmFeedback]) -> None:
        if self._first is None:
            before = normalised_weights(feedbacks) @ [feedback.before for feedback in feedbacks]
            self._first = max(float(before), sys.float_info.min)
        for feedback in feedbacks:
            value = 1.0 / (1.0 + max(feedback.after, 0.0) / max(feedback.before, self._first))
            point = (points[feedback.client] + 1.0) / 2.0
            self.policy.observe(feedback.client, point, 0.0 if feedback.diverged else value)

    def _state(self) -> dict[str, Any]:
        return {**self.policy.to_dict(), "first": self._first}

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.policy.restore(state)
        self._first = state["first"]


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

    clip: Positive = 10.0
    noise_multiplier: Positive = 1.0
    share: Annotated[float, Range(0, 1, "(]")] = 0.35
    halvings: PositiveInt = 1
    preference: Positive = 10.0
    fading: Positive = 20.0


class PrivateThompson(FederatedThompson):
    """Federated Thompson sampling whose clients see noisy mixtures instead of messages.

    Differs from the paper: every client is a target; one mixture is made for each trial number, of
    the messages of when the first client asks, and the number of trials stands for the iteration.
    The authors' p_t is 1 - 1/(t + 1); here it is that of FTS, which follows mixtures less often:
    among few clients they are noise (of z S phi / q per coordinate, beside messages of length S).
    Privacy is not accounted for here: a trial number's mixture is one subsampled Gaussian mechanism
    of multiplier z and rate q, whose composition any accountant knows.
    """

    @validate_call
    def __init__(
        self, clients: int, dimensions: int, seed: int, settings: PrivateSettings | None = None
    ) -> None:
        options = settings or PrivateSettings()
        if options.halvings > dimensions:
            raise InvalidArgumentError(
                f"`halvings` must be at most {dimensions}, got {options.halvings}."
            )
        super().__init__(clients, dimensions, seed, options)
        self._private = options
        self._parts = 2**options.halvings
        self._mixtures: dict[int, Floats] = {}

    def mixture(self, trial: int) -> Floats:
        """Return (parts, features) what the server sends for trials of this number (Eq. 3).

        Every part is a weighted sum over the chosen clients of their clipped messages, plus normal
        noise; weights prefer those who explored this part, less so as time goes by.
        """
        # The same noise on two sums would reveal their difference, so noise is drawn once per sum.
        if trial not in self._mixtures:
            least = min(map(self._trials, range(self.clients)))
            if trial < least:
                raise InvalidArgumentError(
                    f"`trial` must be one that a client still has before it, at least {least}, got "
                    f"{trial}"
                )
            needed = {
                trial_number: weights
                for trial_number, weights in self._mixtures.items()
                if trial_number >= least
            }
            self._mixtures = {**needed, trial: self._mix(trial)}
        return self._mixtures[trial]

    def to_dict(self) -> dict[str, Any]:
        mixtures = {str(trial): weights.tolist() for trial, weights in self._mixtures.items()}
        return {**super().to_dict(), "mixtures": mixtures}

    def restore(self, data: Mapping[str, Any]) -> None:
        super().restore(data)
        self._mixtures = {
            int(trial): np.array(weights) for trial, weights in data["mixtures"].items()
        }

    def _mix(self, trial: int) -> Floats:
        settings, rng = self._private, stream(self._seed, "private_mixture", trial)
        ready = [c for c in range(self.clients) if self._trials(c) >= settings.initial]
        weights = self._weights(trial)
        is_sampled = rng.random(self.clients) < settings.share
        total = np.zeros((self._parts, settings.shared_features))
        for client in (c for c in ready if is_sampled[c]):
            message = self.message(client)
            limit = settings.clip / np.sqrt(self._parts)
            message = message / max(1.0, float(np.linalg.norm(message)) / limit)
            total += weights[:, client, None] * message / settings.share
        scale = settings.noise_multiplier * settings.clip * float(weights.max()) / settings.share
        return total + scale * rng.standard_normal(total.shape)

    def part_of(self, points: Floats) -> Floats:
        """Return the (m,) parts that (m, n) points of the unit cube lie in."""
        halves = points[:, : self._private.halvings] >= 0.5
        return np.asarray(halves @ (2 ** np.arange(self._private.halvings)))

    def _weights(self, trial: int) -> Floats:
        """Return (parts, clients) shares of each client in each part; rows sum to 1."""
        home_part = np.arange(self.clients) % self._parts
        gain = (self._private.preference - 1.0) * np.exp(-trial / self._private.fading)
        raw = 1.0 + gain * (home_part == np.arange(self._parts)[:, None])
        return np.asarray(raw / raw.sum(axis=1, keepdims=True))

    def _first_point(self, client: int, rng: np.random.Generator) -> Floats:
        point, home_part = rng.random(self.dimensions), client % self._parts
        for axis in range(self._private.halvings):
            point[axis] = (point[axis] + (home_part >> axis & 1)) / 2.0
        return point

    def _follow_message(self, client: int, trial: int, rng: np.random.Generator) -> Floats | None:
        probability = own_probability(trial - self._private.initial)
        if stream(self._seed, "fts_mixing", client, trial).random() < probability:
            return None
        weights = self.mixture(trial)

        def value(points: Floats) -> Floats:
            return np.asarray((self._shared(points) * weights[self.part_of(points)]).sum(axis=1))

        return maximise(self._shared, weights[0], self._private.candidates, rng, value)


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
