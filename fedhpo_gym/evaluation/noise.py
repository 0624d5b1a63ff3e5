"""Noise of evaluation: few clients, biased participation, other clients' samples, and privacy.

Kuo, Thaker, Khodak, Nguyen, Jiang, Talwalkar, Smith, "On Noisy Evaluation in Federated
Hyperparameter Tuning", MLSys 2023.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Bools, Floats
from fedhpo_gym.core.checks import Range, check_fields
from fedhpo_gym.core.errors import InvalidArgumentError, suggest
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Evaluations, sampled_clients

STREAM: Final = "evaluation_noise"
"""Name of the random streams: one for each episode and trial."""
FLOOR: Final = 1.0001
"""What a client's error is subtracted from: a client with error 1 may still take part."""
EVALUATIONS: Final = 16
"""Evaluations that share an epsilon where nothing bounds the trials: N of Kuo et al. (2023)."""
WHOLE: Final = 0.01
"""How far a count of right answers may lie from a whole number: stored numbers are float32."""

TRAIN, VAL = SPLITS.index("train"), SPLITS.index("val")
ACCURACY: Final = METRICS.index("accuracy")
HEARD: Final = (TRAIN, VAL)
"""Splits in which only the evaluated clients count; test metrics are nobody's observation."""

Generators = Sequence[np.random.Generator]


@dataclass(frozen=True)
class Noise:
    """What evaluations lack; the defaults lack nothing.

    Attributes:
        clients: share of the clients that evaluate a trial, drawn anew without replacement.
        bias: b of a client's probability, proportional to (1.0001 - its validation error)^b.
        iid: share of its validation samples that a client exchanges for samples of all clients.
        epsilon: privacy of all evaluations of an episode together, for each client.
        evaluations: trials that share it; by default the budget of trials, or 16.
    """

    clients: Annotated[float, Range(0, 1, "(]")] = 1.0
    bias: Annotated[float, Range(0, 1e3)] = 0.0
    iid: Annotated[float, Range(0, 1)] = 0.0
    epsilon: Annotated[float, Range(1e-9)] = math.inf
    evaluations: Annotated[int, Range(1)] | None = None

    def __post_init__(self) -> None:
        check_fields(self, "noise['{}']")
        for name in ("clients", "bias", "iid", "epsilon"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.evaluations is not None and not self.private:
            raise InvalidArgumentError(
                "`noise['evaluations']` counts the trials that share an epsilon, got "
                f"{self.evaluations} without 'epsilon'; leave it out"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Noise":
        """Return the noise that a user wrote as a mapping."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise InvalidArgumentError(
                    f"`noise` has no entry {name!r}, only {known}.{suggest(name, known)}"
                )
        number = given.get("evaluations")  # one of them, a mapping of floats makes a float
        if isinstance(number, float) and number.is_integer():
            given = {**given, "evaluations": int(number)}
        return cls(**given)

    @property
    def private(self) -> bool:
        """Whether evaluations are private."""
        return math.isfinite(self.epsilon)

    @property
    def withholds(self) -> bool:
        """Whether only the objectives are told: each number more costs a share of epsilon."""
        return self.private or self.iid > 0

    def describe(self) -> dict[str, float]:
        """Return what `reset` says; an infinite epsilon is left out."""
        return {
            name: value
            for name, value in vars(self).items()
            if value is not None and value != math.inf
        }

    def apply(self, evaluations: Evaluations, rngs: Generators, bounds: Floats) -> Evaluations:
        """Return what the server hears of B evaluations, of metrics with (metrics, 2) bounds.

        Who is not heard has no samples in it, and NaN in place of metrics. Under privacy all
        clients that are heard count the same, and their metrics are clipped to their bounds: one
        client then changes a mean of n by at most the width of the bounds over n.
        """
        if not (self.private or self.iid or self.clients < 1):
            return evaluations
        best: NDArray[np.floating] = evaluations.best
        weights = np.empty(best.shape[:-1], dtype=evaluations.num_samples.dtype)
        weights[...] = evaluations.num_samples
        if self.iid:
            best = best.astype(np.float64)
            for row, rng in enumerate(rngs):
                accuracy = best[row, ..., VAL, ACCURACY]
                accuracy[:] = exchanged(accuracy, weights[row, ..., VAL], self.iid, rng)
        if self.clients < 1:
            silent = ~self.cohorts(best[..., VAL, ACCURACY], weights, rngs)
            for split in HEARD:
                weights[..., split][silent] = 0
        if self.private:
            best = np.clip(np.nan_to_num(best, nan=0.0), bounds[:, 0], bounds[:, 1])
            weights[..., HEARD] = weights[..., HEARD] > 0
        best = np.where(weights[..., None] > 0, best, np.nan)
        return replace(evaluations, best=best, num_samples=weights, find_current=None)

    def cohorts(
        self, accuracy: NDArray[np.floating], samples: NDArray[np.integer], rngs: Generators
    ) -> Bools:
        """Return the (B, S, N) marks of the clients that evaluate, of as many accuracies.

        Clients are drawn one after the other, each time in proportion to (1.0001 - error)^b among
        those that are left. That is the order in which exponential waiting times of these rates end
        (Efraimidis and Spirakis, 2006). Who has no samples to train or to validate on is not drawn.
        """
        able = (samples[..., TRAIN] > 0) & (samples[..., VAL] > 0)
        waits = np.array([rng.standard_exponential(able.shape[1:]) for rng in rngs])
        if self.bias:
            error = 1.0 - np.fmin(np.fmax(accuracy, 0.0), 1.0)
            with np.errstate(divide="ignore"):  # a rate that rounds to 0 waits for ever
                waits /= (FLOOR - error) ** self.bias
        waits[~able] = np.inf
        number = sampled_clients(self.clients, able.sum(axis=-1)).astype(np.intp)
        ends = np.sort(waits, axis=-1).reshape(-1, waits.shape[-1])
        last = ends[np.arange(len(ends)), number.ravel() - 1].reshape(*number.shape, 1)
        before, tied = waits < last, able & (waits == last)
        # Who waits as long as the last one is drawn in the clients' order.
        left = number - before.sum(axis=-1)
        return np.asarray(before | (tied & (tied.cumsum(axis=-1) <= left[..., None])))

    def laplace(self, sensitivities: Floats, evaluations: int, rngs: Generators) -> Floats:
        """Return the (B, R) noise of B trials that tell R numbers of (B, R, S) sensitivities.

        A trial has epsilon / M of the privacy of M trials, and each of its R numbers an equal share
        of that (basic composition; Dwork et al., 2006). So the scale of a number of sensitivity s
        is R M s / epsilon. The noise of a mean over seeds is the mean of theirs.
        """
        drawn = np.stack([rng.laplace(size=sensitivities.shape[1:]) for rng in rngs])
        scales = sensitivities * (sensitivities.shape[1] * evaluations / self.epsilon)
        return np.asarray((drawn * scales).mean(axis=-1))

    def private_values(
        self,
        objectives: Sequence[Any],
        values: Floats,
        heard: Evaluations,
        evaluations: int,
        rngs: Generators,
    ) -> Floats:
        """Return (B, R) values of objectives with the noise of `laplace`, clipped."""
        clients = clients_evaluated(heard)
        each = np.stack([one.sensitivity(clients) for one in objectives], axis=1)
        low, high = np.array([one.bounds for one in objectives]).T
        return np.clip(values + self.laplace(each, evaluations, rngs), low, high)


def clients_evaluated(evaluations: Evaluations) -> Floats:
    """Return how many clients are heard in each of the B evaluations and S seeds: (B, S)."""
    found = (evaluations.num_samples[..., VAL] > 0).sum(axis=-1, dtype=np.float64)
    return np.broadcast_to(found, evaluations.diverged.shape)


def exchanged(
    accuracy: NDArray[np.floating],
    samples: NDArray[np.integer],
    share: float,
    rng: np.random.Generator,
) -> Floats:
    """Return the (S, N) accuracies of clients that exchange a share of their (S, N) samples.

    Every sample goes into a pool with this probability, and the pool is dealt out so that all
    clients have as many as before. Which answers are right does not change, so counts decide all.
    """
    has = samples > 0
    exact = np.where(has, accuracy, 0.0).astype(np.float64) * samples
    right = np.rint(np.nan_to_num(exact, nan=-1.0)).astype(np.int64)
    if np.abs(exact - right).max(initial=0.0) > WHOLE or (right > samples).any():
        raise InvalidArgumentError(
            "`noise['iid']` needs to know how many answers of each client are right, but an "
            "accuracy is no such count over its samples; leave `iid` out"
        )
    given = rng.binomial(samples, share)
    given_right = rng.hypergeometric(right, samples - right, given)
    dealt = [
        rng.multivariate_hypergeometric(places, int(pool), method="marginals")
        for places, pool in zip(given, given_right.sum(axis=1), strict=True)
    ]
    now = right - given_right + np.stack(dealt)
    return np.where(has, now / np.maximum(samples, 1), accuracy)


def check_noise(noise: Noise, objectives: Sequence[Any], backend: str) -> None:
    """Refuse noise that the answers of a backend do not determine."""
    for objective in objectives:
        if noise.private and objective.sensitivity is None:
            raise InvalidArgumentError(
                "`noise['epsilon']` needs to know how much one client can change an objective, but "
                f"{objective.name!r} has no known sensitivity; choose others, such as 'val_loss', "
                "or state the `sensitivity` of an objective of your own"
            )
        name = objective.name
        of_counts = name == "val_error" or name.startswith("fairness_")
        if noise.iid and objective.reads_clients and not of_counts:
            raise InvalidArgumentError(
                "`noise['iid']` deals out validation samples anew. Answers say of each client how "
                "many of its samples are right, but not the loss or the class of a sample, so "
                f"{objective.name!r} would not be known; use objectives=['val_error']"
            )
    if noise.iid and backend == "surrogate":
        raise InvalidArgumentError(
            "`noise['iid']` must be 0 for backend='surrogate': what it predicts of a client is no "
            "number of right answers; use a table or backend='raw'"
        )
