"""The Gaussian process that optimizers that transfer are built on, and must beat."""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.transfer.base import Known, TransferSearch
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
"""Points of a source task in its model, how many are its best, and points that settings are of."""
ALWAYS, SELDOM = 30, 5
"""Trials up to which settings are chosen anew at each, and how often they are after that."""
REMEMBERED: Final = 5000
"""Answers about points that are kept at most."""

Made = TypeVar("Made")


def normal_scores(scores: Floats) -> Floats:
    """Return normal quantiles of the ranks of (n,) scores; equal ones share their mean rank."""
    return np.asarray(ndtri((rankdata(scores) - 0.5) / len(scores)))


def log_expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Return log E max(y - best, 0) of normal y (Ament et al., 2023)."""
    wide = np.maximum(deviation, 1e-12)
    z = (mean - best) / wide
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    near = np.log(np.maximum(density + z * ndtr(z), 1e-300))
    low = np.clip(-z, 1.0, 1e4)
    ratio = math.sqrt(math.pi / 2.0) * low * erfcx(low / math.sqrt(2.0))
    far = -0.5 * (z**2 + math.log(2.0 * math.pi)) + np.log(np.maximum(1.0 - ratio, 1e-12))
    return np.asarray(np.where(z > -1.0, near, far) + np.log(wide))


class GaussianProcess:
    """A posterior under a Matérn 5/2 kernel with a length per feature, and no mean.

    Args:
        points: (n, F) where it is known.
        targets: (n,) what is known, with noise.
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

    def covariance(self, left: Floats, right: Floats) -> Floats:
        a, b = left / self._lengths, right / self._lengths
        squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2.0 * a @ b.T
        r = ROOT_5 * np.sqrt(np.maximum(squares, 0.0))
        return np.asarray(self.scale * (1.0 + r + r**2 / 3.0) * np.exp(-r))

    def mean(self, points: Floats) -> Floats:
        """Return (c,) means of the function."""
        return np.asarray(self.covariance(points, self.points) @ self._weights)

    def deviation(self, points: Floats) -> Floats:
        """Return (c,) deviations of the function, without noise."""
        cross = self.covariance(points, self.points)
        left = self.scale - ((cross @ self._inverse) * cross).sum(axis=1)
        return np.asarray(np.sqrt(np.maximum(left, 1e-10)))

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


def likeliest(tasks: Sequence[Known]) -> Floats:
    """Return (F + 2,) logarithms of lengths, scale and noise: the maximum a posteriori.

    Several tasks have them in common. `Known.scores` are what is modelled.
    """
    width = tasks[0].points.shape[1]
    apart = [((x[:, None] - x) ** 2).reshape(-1, width) for x, _ in tasks]
    centre = np.append(np.full(width, LENGTH + 0.5 * math.log(width)), [0.0, NOISE])
    spread = np.append(np.full(width, SPREAD), [1.0, 1.0])

    def loss(settings: Floats) -> tuple[float, Floats]:
        shrink, (scale, noise) = np.exp(-2.0 * settings[:-2]), np.exp(settings[-2:])
        away = (settings - centre) / spread
        value, slopes = 0.5 * away @ away, away / spread
        for squares, (_, targets) in zip(apart, tasks, strict=True):
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
    found = minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 60}
    )
    return np.asarray(found.x)


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

    def model(self, own: Known) -> GaussianProcess:
        """Return the model of its own trials; beyond some, settings are chosen seldom."""
        known = len(own.scores)
        known -= known % SELDOM if known > ALWAYS else 0
        key = own.points[:known].tobytes() + own.scores[:known].tobytes()
        if self._settings[0] != key:
            chosen = likeliest([Known(own.points[:known], normal_scores(own.scores[:known]))])
            self._settings = key, chosen
        return GaussianProcess(own.points, normal_scores(own.scores), self._settings[1])

    def prefer(self, own: Known, candidates: Floats, rng: np.random.Generator) -> Floats:
        if len({*own.scores.tolist()}) < 2:  # a model of nothing would look at the corners first
            return rng.random(len(candidates))
        model = self.model(own)
        return log_expected_improvement(*model.predict(candidates), model.best)


def sample_of(known: Known, most: int = MOST, best: int = BEST) -> Known:
    """Return at most `most` points of a task, its `best` best and a draw, with normal scores.

    The scores are those among all points of the task.
    """
    order = np.argsort(-known.scores, kind="stable")
    others = stream(0, "transfer sample", len(order)).permutation(order[best:])
    chosen = np.sort(np.append(order[:best], others[: most - best]))
    return Known(known.points[chosen], normal_scores(known.scores)[chosen])


KEPT: Final = 32
"""What was learned of sets of source tasks that a process keeps, at most."""
_MADE: dict[tuple[str, str], Any] = {}


def made_once(name: str, sources: Sequence[Known], make: Callable[[], Made]) -> Made:
    """Return what is made of source tasks, once for all tasks of equal content."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(repr(source.points.shape).encode("ascii"))
        digest.update(source.points.tobytes() + source.scores.tobytes())
    key = name, digest.hexdigest()
    if key not in _MADE:
        if len(_MADE) >= KEPT:
            _MADE.pop(next(iter(_MADE)))
        _MADE[key] = make()
    return cast("Made", _MADE[key])


class EnsembleSearch(GaussianProcessSearch):
    """What methods share that learn from source tasks: a model of each; `gp` without any."""

    transfers = True

    def prefer(self, own: Known, candidates: Floats, rng: np.random.Generator) -> Floats:
        if not self.sources:
            return super().prefer(own, candidates, rng)
        return self.transfer(own, candidates, rng)

    @abstractmethod
    def transfer(self, own: Known, candidates: Floats, rng: np.random.Generator) -> Floats:
        """Return what `prefer` does, where there are sources."""

    @cached_property
    def models(self) -> list[GaussianProcess]:
        """A model per source task; all have the same settings, the likeliest for all."""

        def make() -> list[GaussianProcess]:
            settings = likeliest([sample_of(source, FEW, FEW // 3) for source in self.sources])
            return [GaussianProcess(*sample_of(source), settings) for source in self.sources]

        return made_once("gaussian_process", self.sources, make)

    def model(self, own: Known) -> GaussianProcess:
        """Return the model of its own trials, with the settings of the sources' models."""
        if not self.sources:
            return super().model(own)
        return GaussianProcess(own.points, normal_scores(own.scores), self.models[0].settings)

    def means(self, points: Floats, used: NDArray[np.intp] | slice = slice(None)) -> Floats:
        """Return (u, n) means of the models that are used."""
        return self._remembered(GaussianProcess.mean, points, used)

    def deviations(self, points: Floats, used: NDArray[np.intp] | slice = slice(None)) -> Floats:
        """Return (u, n) deviations of the models that are used."""
        return self._remembered(GaussianProcess.deviation, points, used)

    def _remembered(
        self,
        ask: Callable[[GaussianProcess, Floats], Floats],
        points: Floats,
        used: NDArray[np.intp] | slice,
    ) -> Floats:
        """Return (u, n) answers of models, computing those that it was not asked for before."""
        if len(self._answers) > REMEMBERED:
            self._answers.clear()
        keys = [(ask.__name__, point.tobytes()) for point in points]
        unknown = np.full(len(self.models), np.nan)
        answers = np.stack([self._answers.get(key, unknown) for key in keys], axis=1)
        for place in np.arange(len(self.models))[used].tolist():
            new = np.isnan(answers[place])
            if new.any():
                answers[place, new] = ask(self.models[place], points[new])
        self._answers.update(zip(keys, answers.T, strict=True))
        return answers[used]

    def improvement(
        self, weights: Floats, own: Known, candidates: Floats, deviation: Floats
    ) -> Floats:
        """Return log EI of a weighted mean; of the (m,) weights, the last is its own model's."""
        model, used = self.model(own), np.flatnonzero(weights[:-1])
        kept = weights[[*used, -1]]
        mean = kept @ np.vstack([self.means(candidates, used), model.mean(candidates)])
        known = kept @ np.vstack([self.means(own.points, used), model.mean(own.points)])
        return log_expected_improvement(mean, deviation, float(known.max()))
