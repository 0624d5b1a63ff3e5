"""The Gaussian process behind all optimizers that transfer, and their baseline `gp`.

`GaussianProcessSearch` is the baseline; `EnsembleSearch` adds a model per source task, and the
other modules of this folder derive from it. Points are (n, F) features in [0, 1], scores (n,)
normal quantiles of ranks, so that source tasks of any scale can be combined.
"""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.transfer.base import ObservedData, TransferSearch
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import require_optional
from fedhpo_gym.core.seeding import stream

with require_optional("an agent that transfers", "scipy", "agents", "scipy"):
    from scipy.linalg import cho_solve
    from scipy.optimize import minimize
    from scipy.special import erfcx, ndtr
    from scipy.special import ndtri as ndtri
    from scipy.stats import rankdata as rankdata

ROOT_5: Final = math.sqrt(5.0)
JITTER: Final = 1e-6
LENGTH, SPREAD, NOISE = -1.5, 1.0, -4.0
"""Logarithms of lengths are around `LENGTH` + log(features) / 2, that of noise around `NOISE`;
chosen on meta-validation tasks of FedHPO-B."""
MOST, BEST, FEW = 256, 30, 60
"""Points of a source task in its model, the best ones among them, and points to fit settings on."""
ALWAYS, SELDOM = 30, 5
"""Trials up to which each one refits the settings, and the interval of refits after that."""
REMEMBERED: Final = 5000
"""Most predictions that are cached."""

T = TypeVar("T")


def normal_scores(scores: Floats) -> Floats:
    """Return normal quantiles of the ranks of (n,) scores; equal ones share their mean rank."""
    return np.asarray(ndtri((rankdata(scores) - 0.5) / len(scores)))


def log_expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Return log E max(y - best, 0) of normal y (Ament et al., 2023)."""
    spread = np.maximum(deviation, 1e-12)
    z = (mean - best) / spread
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    near = np.log(np.maximum(density + z * ndtr(z), 1e-300))
    low = np.clip(-z, 1.0, 1e4)
    ratio = math.sqrt(math.pi / 2.0) * low * erfcx(low / math.sqrt(2.0))
    far = -0.5 * (z**2 + math.log(2.0 * math.pi)) + np.log(np.maximum(1.0 - ratio, 1e-12))
    return np.asarray(np.where(z > -1.0, near, far) + np.log(spread))


class GaussianProcess:
    """A posterior under a Matérn 5/2 kernel with a length per feature, and no mean.

    Args:
        points: (n, F) observed points.
        targets: (n,) noisy observations.
        settings: (F + 2,) logarithms of lengths, scale and noise.
    """

    def __init__(self, points: Floats, targets: Floats, settings: Floats) -> None:
        self.points, self.targets, self.settings = points, targets, settings
        self._lengths, self.scale = np.exp(settings[:-2]), float(np.exp(settings[-2]))
        self.noise = float(np.exp(settings[-1])) + JITTER
        covariance = self.covariance(points, points)
        covariance[np.diag_indices(len(points))] += self.noise
        self._inverse = np.linalg.inv(covariance)
        self._weights = self._inverse @ targets

    def covariance(self, rows: Floats, columns: Floats) -> Floats:
        a, b = rows / self._lengths, columns / self._lengths
        squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2.0 * a @ b.T
        r = ROOT_5 * np.sqrt(np.maximum(squares, 0.0))
        return np.asarray(self.scale * (1.0 + r + r**2 / 3.0) * np.exp(-r))

    def mean(self, points: Floats) -> Floats:
        """Return (c,) means of the function."""
        return np.asarray(self.covariance(points, self.points) @ self._weights)

    def deviation(self, points: Floats) -> Floats:
        """Return (c,) deviations of the function, without noise."""
        cross = self.covariance(points, self.points)
        variance = self.scale - ((cross @ self._inverse) * cross).sum(axis=1)
        return np.asarray(np.sqrt(np.maximum(variance, 1e-10)))

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Return (c,) means and deviations of the function, without noise."""
        return self.mean(points), self.deviation(points)

    @property
    def best(self) -> float:
        """The highest mean among its points: what is to be improved, noise aside."""
        return float(self.mean(self.points).max())

    def leave_one_out(self) -> tuple[Floats, Floats]:
        """Return (n,) means and deviations of every target, given the others."""
        precision = np.diag(self._inverse)
        return self.targets - self._weights / precision, np.sqrt(1.0 / precision)


def fit_settings(tasks: Sequence[ObservedData]) -> Floats:
    """Return (F + 2,) logarithms of lengths, scale and noise: the maximum a posteriori.

    Several tasks share them. `ObservedData.scores` are the targets.
    """
    width = tasks[0].points.shape[1]
    squared_distances = [((x[:, None] - x) ** 2).reshape(-1, width) for x, _ in tasks]
    centre = np.append(np.full(width, LENGTH + 0.5 * math.log(width)), [0.0, NOISE])
    spread = np.append(np.full(width, SPREAD), [1.0, 1.0])

    def loss(settings: Floats) -> tuple[float, Floats]:
        shrink, (scale, noise) = np.exp(-2.0 * settings[:-2]), np.exp(settings[-2:])
        z = (settings - centre) / spread
        value, slopes = 0.5 * z @ z, z / spread
        for squares, (_, targets) in zip(squared_distances, tasks, strict=True):
            n = len(targets)
            r = ROOT_5 * np.sqrt(np.maximum(squares @ shrink, 0.0)).reshape(n, n)
            decay = scale * np.exp(-r)
            smooth = decay * (1.0 + r + r**2 / 3.0)
            factor = np.linalg.cholesky(smooth + (noise + JITTER) * np.eye(n))
            inverse = cho_solve((factor, True), np.eye(n))
            weights = inverse @ targets
            pull = 0.5 * (np.outer(weights, weights) - inverse)
            value += 0.5 * targets @ weights + np.log(np.diag(factor)).sum()
            slopes[:-2] -= (pull * decay * (1.0 + r) * (5.0 / 3.0)).reshape(-1) @ squares * shrink
            slopes[-2:] -= (pull * smooth).sum(), noise * np.trace(pull)
        return float(value), slopes

    start = np.append(np.full(width, 0.5 * math.log(width)), [0.0, -3.0])
    bounds = [(-4.0, 8.0)] * width + [(-4.0, 4.0), (-12.0, 2.0)]
    optimum = minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 60}
    )
    return np.asarray(optimum.x)


class GaussianProcessSearch(TransferSearch):
    """Expected improvement of the best mean so far, under a Gaussian process of its own trials.

    Scores are normal quantiles of their ranks. Settings are the maximum a posteriori. While all
    scores are equal, trials are draws.
    """

    transfers = False

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        self._settings: tuple[bytes, Floats] = b"", np.empty(0)
        self._answers: dict[tuple[str, bytes], Floats] = {}

    def model(self, trials: ObservedData) -> GaussianProcess:
        """Return the model of its own trials; beyond some, settings are chosen seldom."""
        count = len(trials.scores)
        count -= count % SELDOM if count > ALWAYS else 0
        key = trials.points[:count].tobytes() + trials.scores[:count].tobytes()
        if self._settings[0] != key:
            settings = fit_settings(
                [ObservedData(trials.points[:count], normal_scores(trials.scores[:count]))]
            )
            self._settings = key, settings
        return GaussianProcess(trials.points, normal_scores(trials.scores), self._settings[1])

    def prefer(self, trials: ObservedData, candidates: Floats, rng: np.random.Generator) -> Floats:
        if len({*trials.scores.tolist()}) < 2:  # a model of equal scores would prefer the corners
            return rng.random(len(candidates))
        model = self.model(trials)
        return log_expected_improvement(*model.predict(candidates), model.best)


def subsample(task: ObservedData, size: int = MOST, best: int = BEST) -> ObservedData:
    """Return at most `most` points of a task, its `best` best and a draw, with normal scores.

    The scores are those among all points of the task.
    """
    order = np.argsort(-task.scores, kind="stable")
    others = stream(0, "transfer sample", len(order)).permutation(order[best:])
    rows = np.sort(np.append(order[:best], others[: size - best]))
    return ObservedData(task.points[rows], normal_scores(task.scores)[rows])


CACHE_SIZE: Final = 32
"""Most sets of source tasks whose models a process caches."""
_MADE: dict[tuple[str, str], Any] = {}


def cached_by_sources(name: str, sources: Sequence[ObservedData], make: Callable[[], T]) -> T:
    """Return the result of `make` for source tasks, cached by their content."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(repr(source.points.shape).encode("ascii"))
        digest.update(source.points.tobytes() + source.scores.tobytes())
    key = name, digest.hexdigest()
    if key not in _MADE:
        if len(_MADE) >= CACHE_SIZE:
            _MADE.pop(next(iter(_MADE)))
        _MADE[key] = make()
    return cast("T", _MADE[key])


class EnsembleSearch(GaussianProcessSearch):
    """Base of methods that learn from source tasks: a model of each; the baseline without any."""

    transfers = True

    def prefer(self, trials: ObservedData, candidates: Floats, rng: np.random.Generator) -> Floats:
        if not self.sources:
            return super().prefer(trials, candidates, rng)
        return self.transfer(trials, candidates, rng)

    @abstractmethod
    def transfer(
        self, trials: ObservedData, candidates: Floats, rng: np.random.Generator
    ) -> Floats:
        """Return what `prefer` does, where there are sources."""

    @cached_property
    def models(self) -> list[GaussianProcess]:
        """A model per source task; all have the same settings, the likeliest for all."""

        def make() -> list[GaussianProcess]:
            settings = fit_settings([subsample(source, FEW, FEW // 3) for source in self.sources])
            return [GaussianProcess(*subsample(source), settings) for source in self.sources]

        return cached_by_sources("gaussian_process", self.sources, make)

    def model(self, trials: ObservedData) -> GaussianProcess:
        """Return the model of its own trials, with the settings of the sources' models."""
        if not self.sources:
            return super().model(trials)
        return GaussianProcess(trials.points, normal_scores(trials.scores), self.models[0].settings)

    def means(self, points: Floats, used: NDArray[np.intp] | slice = slice(None)) -> Floats:
        """Return (u, n) means of the models that are used."""
        return self._predict_cached(GaussianProcess.mean, points, used)

    def deviations(self, points: Floats, used: NDArray[np.intp] | slice = slice(None)) -> Floats:
        """Return (u, n) deviations of the models that are used."""
        return self._predict_cached(GaussianProcess.deviation, points, used)

    def _predict_cached(
        self,
        predict: Callable[[GaussianProcess, Floats], Floats],
        points: Floats,
        models: NDArray[np.intp] | slice,
    ) -> Floats:
        """Return (u, n) predictions of models, from a cache by point."""
        if len(self._answers) > REMEMBERED:
            self._answers.clear()
        keys = [(predict.__name__, point.tobytes()) for point in points]
        no_answer = np.full(len(self.models), np.nan)
        answers = np.stack([self._answers.get(key, no_answer) for key in keys], axis=1)
        for index in np.arange(len(self.models))[models].tolist():
            new = np.isnan(answers[index])
            if new.any():
                answers[index, new] = predict(self.models[index], points[new])
        self._answers.update(zip(keys, answers.T, strict=True))
        return answers[models]

    def improvement(
        self, weights: Floats, trials: ObservedData, candidates: Floats, deviation: Floats
    ) -> Floats:
        """Return log EI of a weighted mean; of the (m,) weights, the last is its own model's."""
        model, sources = self.model(trials), np.flatnonzero(weights[:-1])
        used_weights = weights[[*sources, -1]]
        mean = used_weights @ np.vstack([self.means(candidates, sources), model.mean(candidates)])
        fitted = used_weights @ np.vstack(
            [self.means(trials.points, sources), model.mean(trials.points)]
        )
        return log_expected_improvement(mean, deviation, float(fitted.max()))
