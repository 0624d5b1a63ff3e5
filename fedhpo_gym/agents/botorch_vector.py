"""Many objectives with BoTorch: random scalarisations (ParEGO), and expected hypervolume.

Both agents share `VectorModelSearch`, which fits a Gaussian process per objective and maximises an
acquisition function; they differ in this function. Points are (n,) in the unit cube, scores are
(m, k) and maximised. Nothing is kept between suggestions: each one fits the models anew.
"""

import itertools
import math
import warnings
from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.base import SearchProblem
from fedhpo_gym.agents.search import TrialSearch, has_cells
from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import require_optional
from fedhpo_gym.core.seeding import stream

with (
    require_optional("an agent of BoTorch", "BoTorch", "bo", "botorch", "gpytorch", "torch"),
    warnings.catch_warnings(),
):
    # A dependency of BoTorch still uses what torch calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch
    from botorch.acquisition.logei import qLogNoisyExpectedImprovement
    from botorch.acquisition.multi_objective import logei
    from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
    from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
    from botorch.acquisition.multi_objective.parego import qLogNParEGO
    from botorch.acquisition.objective import GenericMCObjective
    from botorch.fit import fit_gpytorch_mll
    from botorch.models.gp_regression import SingleTaskGP
    from botorch.models.model_list_gp_regression import ModelListGP
    from botorch.models.transforms import Standardize
    from botorch.optim.optimize import optimize_acqf, optimize_acqf_discrete
    from botorch.sampling.normal import SobolQMCNormalSampler
    from botorch.utils.multi_objective.hypervolume import infer_reference_point
    from botorch.utils.multi_objective.pareto import is_non_dominated
    from gpytorch.mlls import SumMarginalLogLikelihood

SAMPLES, RESTARTS, RAW = 64, 4, 64
"""Samples of an acquisition value, restarts of its maximiser, and points to choose these from."""
SAMPLER_SEED = 1
MOST_CELLS, TOGETHER = 10_000, 256
"""Most cells of a grid that are enumerated, and the size of a batch of them."""

# BoTorch would compile a kernel for this very processor when it is first needed: the same seed
# would suggest other trials on another machine, and a lock that a killed compiler left behind
# would keep every later run waiting for ever. There is no other switch.
logei._load_attempted = True


class VectorModelSearch(TrialSearch):
    """A Gaussian process per objective, and an acquisition function over them.

    Models are BoTorch's defaults (Matérn kernels with a length scale per coordinate, standardised
    scores), in the unit cube; coordinates of grids are in the middle of their cells. On a pure grid
    of at most `MOST_CELLS` cells, all untried cells are compared. Trials in flight are pending
    points. The first `initial` trials are draws from the prior, by default twice as many as
    coordinates, plus two. Torch runs on its default number of threads.

    Scores below Tukey's lower fence of their objective are clipped at that fence, because a few
    diverged trials would dominate the scale. An objective that has not varied so far has no model;
    if only one has, its expected improvement is maximised; if none has, trials are draws from the
    prior.

    With constraints, the total violation has a model, too, and an acquisition value is weighted
    with the probability that it is zero (BoTorch's `constraints`). A feasible trial counts as far
    below zero as the median violation is above, because its distance to the limits is not reported.

    Args:
        initial: trials before there is a model.
    """

    rewards = "vector"
    replays = False
    takes_constraints = True

    def __init__(self, problem: SearchProblem, *, initial: int | None = None) -> None:
        super().__init__(problem)
        self._initial = 2 * self.action_space.shape[0] + 2 if initial is None else initial
        self._cells = self._all_cells()

    def _all_cells(self) -> Floats | None:
        """Return (cells, n) the middle of every cell; None if they are too many, or none at all."""
        dimensions = self.problem.search_space.dimensions
        if not all(map(has_cells, dimensions)):
            return None
        # A range takes no memory, however long.
        axes = [d.values or range(int(d.low), int(d.high) + 1) for d in dimensions]
        if math.prod(map(len, axes)) > MOST_CELLS:
            return None
        coordinates = [
            (dimension.encode_many(np.array(axis)) + 1.0) / 2.0
            for dimension, axis in zip(dimensions, axes, strict=True)
        ]
        return np.array([*itertools.product(*coordinates)])

    def _suggest(self, trial_index: int) -> NDArray[Any]:
        rng = stream(self.seed, "vector_model", trial_index)
        width = self.action_space.shape[0]
        if len(self.results) < max(self._initial, 1):
            return self.from_unit(rng.random(width))
        actions, scores = self.reported()
        scores = np.maximum(scores, _lower_fence(scores))[:, np.ptp(scores, axis=0) > 0]
        if not scores.shape[1]:
            return self.from_unit(rng.random(width))
        points = self.on_grid(self.to_unit(actions))
        pending = self.on_grid(self.to_unit(self.in_flight()))
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # Of kernels that are hard to invert: not the user's.
            warnings.simplefilter("ignore")
            torch.manual_seed(int(rng.integers(2**31)))
            best = self._maximiser(points, scores, pending if len(pending) else None)
        return self.from_unit(self.on_grid(best)[0])

    def _maximiser(self, points: Floats, scores: Floats, pending: Floats | None) -> Floats:
        x, y = torch.from_numpy(points), torch.from_numpy(scores)
        excess = self._excess()
        columns = [*y.T] if excess is None else [*y.T, torch.from_numpy(excess)]
        models = [
            SingleTaskGP(x, column[:, None], outcome_transform=Standardize(m=1))
            for column in columns
        ]
        model = ModelListGP(*models)
        fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
        options = {"model": model, "X_baseline": x, "prune_baseline": True}
        options["sampler"] = SobolQMCNormalSampler(torch.Size([SAMPLES]), seed=SAMPLER_SEED)
        options["X_pending"] = None if pending is None else torch.from_numpy(pending)
        if excess is not None:
            y = y[excess < 0] if (excess < 0).any() else y
            options["constraints"] = [lambda outcomes: outcomes[..., -1]]
        acquisition = (
            self._acquisition(y, options) if y.shape[1] > 1 else _expected_improvement(options)
        )
        cells = self._untried(points if pending is None else np.concatenate([points, pending]))
        if cells is not None:
            choices = torch.from_numpy(cells)
            best, _ = optimize_acqf_discrete(acquisition, 1, choices, max_batch_size=TOGETHER)
        else:
            bounds = torch.stack([torch.zeros(x.shape[1]), torch.ones(x.shape[1])]).to(x)
            best, _ = optimize_acqf(
                acquisition, bounds, q=1, num_restarts=RESTARTS, raw_samples=RAW
            )
        return np.asarray(best.detach().numpy(), dtype=np.float64)

    def _untried(self, points: Floats) -> Floats | None:
        """Return the cells of the grid that are not among (m, n) points; all if none is left."""
        if self._cells is None:
            return None
        is_untried = np.ones(len(self._cells), dtype=np.bool_)
        for point in points:
            is_untried &= np.abs(self._cells - point).max(axis=1) > 1e-6
        return self._cells[is_untried] if is_untried.any() else self._cells

    def _excess(self) -> Floats | None:
        """Return (m,) violations of the told trials, below zero for none; None if all are alike."""
        if not self.violations:
            return None
        violations = np.array([self.violations[trial_index] for trial_index in self.results])
        if not np.ptp(violations):
            return None
        return np.where(violations > 0, violations, -np.median(violations[violations > 0]))

    @abstractmethod
    def _acquisition(self, y: Any, options: dict[str, Any]) -> Any:
        """Return the acquisition function of a fitted model of (m, k) scores `y`."""


class QLogNEHVI(VectorModelSearch):
    """The expected gain of hypervolume under noise (Daulton et al., 2021; Ament et al., 2023).

    The reference point is inferred from the front so far, as BoTorch recommends: a tenth of the
    range below the worst point of the front, in every objective.
    """

    def _acquisition(self, y: Any, options: dict[str, Any]) -> Any:
        corner = infer_reference_point(y[is_non_dominated(y)]).tolist()
        objective = IdentityMCMultiOutputObjective(outcomes=[*range(y.shape[1])])
        return qLogNoisyExpectedHypervolumeImprovement(
            ref_point=corner, objective=objective, **options
        )


class ParEGO(VectorModelSearch):
    """A random augmented Chebyshev scalarisation per trial (Knowles, 2006), with noisy EI.

    Differs from the paper: there is a model per objective, and the improvement of their
    scalarisation is expected, as in Daulton et al. (2020).
    """

    def _acquisition(self, y: Any, options: dict[str, Any]) -> Any:
        objective = IdentityMCMultiOutputObjective(outcomes=[*range(y.shape[1])])
        return qLogNParEGO(objective=objective, **options)


def _expected_improvement(options: dict[str, Any]) -> Any:
    """Return the noisy expected improvement of a single objective, the first output."""

    def first(outcomes: Any, X: Any = None) -> Any:  # noqa: ARG001, N803 - BoTorch's names
        return outcomes[..., 0]

    return qLogNoisyExpectedImprovement(objective=GenericMCObjective(first), **options)


def _lower_fence(scores: Floats) -> Floats:
    """Return (k,) Tukey's lower fence of every column of (m, k) scores; none if half are equal."""
    quarter, three_quarters = np.quantile(scores, (0.25, 0.75), axis=0)
    spread = three_quarters - quarter
    return np.where(spread > 0, quarter - 1.5 * spread, -np.inf)
