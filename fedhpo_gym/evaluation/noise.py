"""Noise of evaluations: client sampling, biased participation, sample exchange, and privacy.

Trial and round environments apply a `Noise` to exact evaluations to get what the server receives.
The noise models are those of Kuo, Thaker, Khodak, Nguyen, Jiang, Talwalkar, Smith, "On Noisy
Evaluation in Federated Hyperparameter Tuning", MLSys 2023. Randomness comes from one generator per
evaluation, so the result does not depend on how evaluations are batched.
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
from fedhpo_gym.evaluation.records import METRICS, SPLITS, Evaluations, num_sampled_clients

NOISE_STREAM: Final = "evaluation_noise"
"""Name of the random streams: one for each episode and trial."""
ERROR_OFFSET: Final = 1.0001
"""Minuend of a client's error, above 1 so that a client with error 1 may still participate."""
DEFAULT_EVALUATIONS: Final = 16
"""Evaluations that share an epsilon if the trials are unbounded: N of Kuo et al. (2023)."""
COUNT_TOLERANCE: Final = 0.01
"""Tolerance for a count of correct answers to be integer: stored accuracies are float32."""

TRAIN, VAL = SPLITS.index("train"), SPLITS.index("val")
ACCURACY: Final = METRICS.index("accuracy")
REPORTED_SPLITS: Final = (TRAIN, VAL)
"""Splits in which only sampled clients count; test metrics are never observed."""

Generators = Sequence[np.random.Generator]


@dataclass(frozen=True)
class Noise:
    """The noise of evaluations; by default there is none.

    Attributes:
        clients: share of the clients that evaluate a trial, sampled without replacement per trial.
        bias: exponent b: a client's probability is proportional to (1.0001 - validation error)^b.
        iid: share of its validation samples that a client exchanges for samples of all clients.
        epsilon: privacy of all evaluations of an episode together, for each client.
        evaluations: trials that share epsilon; by default the budget of trials, or 16.
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
    def of(cls, entries: Mapping[str, Any]) -> "Noise":
        """Return the noise that a user wrote as a mapping."""
        names = [field.name for field in fields(cls)]
        for name in entries:
            if name not in names:
                raise InvalidArgumentError(
                    f"`noise` has no entry {name!r}, only {names}.{suggest(name, names)}"
                )
        evaluations = entries.get("evaluations")  # `Mapping[str, float]` makes it a float
        if isinstance(evaluations, float) and evaluations.is_integer():
            entries = {**entries, "evaluations": int(evaluations)}
        return cls(**entries)

    @property
    def private(self) -> bool:
        """Whether evaluations are private."""
        return math.isfinite(self.epsilon)

    @property
    def withholds(self) -> bool:
        """Whether only objectives are reported, because each value uses a share of epsilon."""
        return self.private or self.iid > 0

    def describe(self) -> dict[str, float]:
        """Return the entries for the info of `reset`, without an infinite epsilon."""
        return {
            name: value
            for name, value in vars(self).items()
            if value is not None and value != math.inf
        }

    def apply(self, evaluations: Evaluations, rngs: Generators, bounds: Floats) -> Evaluations:
        """Return what the server receives of B evaluations; `bounds` are (metrics, 2).

        Clients that are not sampled have no samples in the result, and NaN as metrics. Under
        privacy, all sampled clients have equal weights and their metrics are clipped to the bounds,
        so that one client changes a mean of n clients by at most the width of the bounds over n.
        """
        if not (self.private or self.iid or self.clients < 1):
            return evaluations
        best: NDArray[np.floating] = evaluations.best  # (B, S, N, splits, metrics)
        weights = np.empty(best.shape[:-1], dtype=evaluations.num_samples.dtype)
        weights[...] = evaluations.num_samples
        if self.iid:
            best = best.astype(np.float64)
            for row, rng in enumerate(rngs):
                accuracy = best[row, ..., VAL, ACCURACY]
                accuracy[:] = exchange_samples(accuracy, weights[row, ..., VAL], self.iid, rng)
        if self.clients < 1:
            silent = ~self.cohorts(best[..., VAL, ACCURACY], weights, rngs)
            for split in REPORTED_SPLITS:
                weights[..., split][silent] = 0
        if self.private:
            best = np.clip(np.nan_to_num(best, nan=0.0), bounds[:, 0], bounds[:, 1])
            weights[..., REPORTED_SPLITS] = weights[..., REPORTED_SPLITS] > 0
        best = np.where(weights[..., None] > 0, best, np.nan)
        return replace(evaluations, best=best, num_samples=weights, find_current=None)

    def cohorts(
        self, accuracy: NDArray[np.floating], samples: NDArray[np.integer], rngs: Generators
    ) -> Bools:
        """Return which clients evaluate, for (B, S, N) validation accuracies: (B, S, N).

        Clients are drawn one after the other, in proportion to (1.0001 - error)^b among those that
        remain. Sorting exponential waiting times of these rates gives the same distribution
        (Efraimidis and Spirakis, 2006). Clients without training or validation samples are skipped.
        """
        is_eligible = (samples[..., TRAIN] > 0) & (samples[..., VAL] > 0)
        waits = np.array([rng.standard_exponential(is_eligible.shape[1:]) for rng in rngs])
        if self.bias:
            error = 1.0 - np.fmin(np.fmax(accuracy, 0.0), 1.0)
            with np.errstate(divide="ignore"):  # a rate rounded to 0 has an infinite wait
                waits /= (ERROR_OFFSET - error) ** self.bias
        waits[~is_eligible] = np.inf
        cohort_size = num_sampled_clients(self.clients, is_eligible.sum(axis=-1)).astype(np.intp)
        sorted_waits = np.sort(waits, axis=-1).reshape(-1, waits.shape[-1])
        last = sorted_waits[np.arange(len(sorted_waits)), cohort_size.ravel() - 1]
        last = last.reshape(*cohort_size.shape, 1)
        before, tied = waits < last, is_eligible & (waits == last)
        # Ties with the last client of the cohort are broken by the order of clients.
        open_places = cohort_size - before.sum(axis=-1)
        return np.asarray(before | (tied & (tied.cumsum(axis=-1) <= open_places[..., None])))

    def laplace(self, sensitivities: Floats, evaluations: int, rngs: Generators) -> Floats:
        """Return the (B, R) Laplace noise of B trials that report R values each.

        `sensitivities` are (B, R, S). Each of M trials uses epsilon / M, and each of its R values
        an equal share of that (basic composition; Dwork et al., 2006). So a value of sensitivity s
        has noise of scale R M s / epsilon. A mean over seeds has the mean of their noise.
        """
        unit_noise = np.stack([rng.laplace(size=sensitivities.shape[1:]) for rng in rngs])
        scales = sensitivities * (sensitivities.shape[1] * evaluations / self.epsilon)
        return np.asarray((unit_noise * scales).mean(axis=-1))

    def private_values(
        self,
        objectives: Sequence[Any],
        values: Floats,
        reported: Evaluations,
        evaluations: int,
        rngs: Generators,
    ) -> Floats:
        """Return (B, R) values of objectives with the noise of `laplace`, clipped."""
        clients = count_reporting_clients(reported)
        sensitivities = np.stack(
            [objective.sensitivity(clients) for objective in objectives], axis=1
        )
        low, high = np.array([objective.bounds for objective in objectives]).T
        return np.clip(values + self.laplace(sensitivities, evaluations, rngs), low, high)


def count_reporting_clients(evaluations: Evaluations) -> Floats:
    """Return the number of clients with validation samples, per evaluation and seed: (B, S)."""
    counts = (evaluations.num_samples[..., VAL] > 0).sum(axis=-1, dtype=np.float64)
    return np.broadcast_to(counts, evaluations.diverged.shape)


def exchange_samples(
    accuracy: NDArray[np.floating],
    samples: NDArray[np.integer],
    share: float,
    rng: np.random.Generator,
) -> Floats:
    """Return the (S, N) accuracies after clients exchange a share of their (S, N) samples.

    Each sample goes into a pool with this probability, and the pool is dealt out so that all
    clients have as many samples as before. Correct answers stay correct, so it is enough to draw
    counts of them.
    """
    has_samples = samples > 0
    exact = np.where(has_samples, accuracy, 0.0).astype(np.float64) * samples
    right = np.rint(np.nan_to_num(exact, nan=-1.0)).astype(np.int64)
    if np.abs(exact - right).max(initial=0.0) > COUNT_TOLERANCE or (right > samples).any():
        raise InvalidArgumentError(
            "`noise['iid']` needs to know how many answers of each client are correct, but an "
            "accuracy is no count of answers over samples; leave `iid` out"
        )
    pooled = rng.binomial(samples, share)
    pooled_right = rng.hypergeometric(right, samples - right, pooled)
    dealt = [
        rng.multivariate_hypergeometric(open_places, int(pool), method="marginals")
        for open_places, pool in zip(pooled, pooled_right.sum(axis=1), strict=True)
    ]
    right_after = right - pooled_right + np.stack(dealt)
    return np.where(has_samples, right_after / np.maximum(samples, 1), accuracy)


def check_noise(noise: Noise, objectives: Sequence[Any], backend: str) -> None:
    """Check that the results of a backend suffice to compute this noise."""
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
