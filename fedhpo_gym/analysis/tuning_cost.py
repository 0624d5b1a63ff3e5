"""Which algorithm is best once its tuning is charged (Prabhu Teja S et al., ICML 2020).

An algorithm is its update rule and the priors of its hyperparameters. A *run library* holds
finished runs under configurations drawn from these priors. From it, the expected result of a random
search of any budget is computed without another run, as `fedhpo-gym tuning-cost` does. Values are
losses throughout: lower is better.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import Axes, Range, validate_call
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.evaluation.records import running_argmin
from fedhpo_gym.evaluation.stats import Rows, Vector
from fedhpo_gym.records.incumbents import finite_number, read_lines

COLUMNS: Final = ("algorithm", "problem", "validation", "test", "cost")
"""Of a table of runs; `test` and `cost` may be missing."""
Count = Annotated[int, Range(1)]


@dataclass(frozen=True, eq=False)
class Runs:
    """Finished runs of one algorithm on one problem, (N,) each; lower is better.

    Attributes:
        validation: value that a search minimises: the lowest over the epochs of a run.
        test: value that is reported for the selected run.
        cost: cost of each run, in any unit.
    """

    validation: Floats
    test: Floats
    cost: Floats

    def __post_init__(self) -> None:
        for name in ("validation", "test", "cost"):
            array = getattr(self, name)
            if array.ndim != 1 or not len(array) or len(array) != len(self.validation):
                raise InvalidArgumentError(
                    f"`{name}` must have one entry per run, and at least one, got {array.shape}"
                )
            if np.isnan(array).any():
                raise InvalidArgumentError(f"`{name}` must not hold NaN; leave the run out")
        if np.any(self.cost <= 0):
            raise InvalidArgumentError("`cost` must be positive for every run")

    @classmethod
    def of(cls, validation: Floats, test: Floats | None = None) -> "Runs":
        """Make runs of equal cost, reported by their validation values unless told otherwise."""
        return cls(validation, validation if test is None else test, np.ones(len(validation)))

    def __len__(self) -> int:
        return len(self.validation)


@dataclass(frozen=True)
class RunLibrary:
    """Runs of every algorithm on every problem (Prabhu Teja S et al., 2020, procedure 1)."""

    algorithms: tuple[str, ...]
    problems: tuple[str, ...]
    runs: Mapping[tuple[str, str], Runs]

    def __post_init__(self) -> None:
        for algorithm, problem in product(self.algorithms, self.problems):
            if (algorithm, problem) not in self.runs:
                raise InvalidArgumentError(
                    "`runs` must hold every algorithm on every problem, but there is none of "
                    f"{algorithm!r} on {problem!r}"
                )

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[str, str, float, float, float]]) -> "RunLibrary":
        """Collect rows of algorithm, problem, validation, test and cost, in any order."""
        by_cell: dict[tuple[str, str], list[list[float]]] = {}
        for algorithm, problem, *values in rows:
            by_cell.setdefault((algorithm, problem), []).append(values)
        if not by_cell:
            raise InvalidArgumentError("`rows` must hold at least one run")
        runs = {key: Runs(*np.array(lines, dtype=np.float64).T) for key, lines in by_cell.items()}
        problems = tuple(sorted({problem for _, problem in runs}))
        return cls(tuple(dict.fromkeys(a for a, _ in runs)), problems, runs)

    def of(self, algorithm: str, problem: str) -> Runs:
        """Return the runs of an algorithm on a problem."""
        return self.runs[algorithm, problem]


@validate_call
def read_library(path: Path) -> RunLibrary:
    """Read a CSV file with a header line and a line per finished run.

    Without `test`, validation is reported; without `cost`, each run costs 1.
    """
    rows = read_lines(path, "run library", (COLUMNS[:3], COLUMNS[3:]), _parse_line)
    try:
        return RunLibrary.from_rows(rows)
    except InvalidArgumentError as error:
        raise DamagedDataError(f"{path}: {error}") from error


def _parse_line(line: Mapping[str, str | None]) -> tuple[str, str, float, float, float]:
    validation = finite_number(line, "validation")
    test = finite_number(line, "test") if "test" in line else validation
    cost = finite_number(line, "cost") if "cost" in line else 1.0
    return str(line["algorithm"]), str(line["problem"]), validation, test, cost


@validate_call
def selection(validation: Vector, budget: Count) -> Floats:
    """Return how likely each of (N,) runs is the one that a search of k trials selects: (N,).

    With values in rising order, that is the i-th of n with probability ((n - i + 1) / n)^k -
    ((n - i) / n)^k: equation 2, turned for losses. Equal runs share what they have together.
    """
    count = len(validation)
    _, group, sizes = np.unique(validation, return_inverse=True, return_counts=True)
    at_least = np.append(count - np.cumsum(sizes) + sizes, 0) / count
    shares = (at_least[:-1] ** budget - at_least[1:] ** budget) / sizes
    return np.asarray(shares[group])


@validate_call
def expected_best(runs: Runs, budget: Count) -> tuple[float, float]:
    """Return mean and variance of what is reported after k trials: equations 2 and 3.

    The paper's program also selects by test values, as `Runs.of(test)` does.
    """
    chances = selection(runs.validation, budget)
    is_selected = chances > 0  # an infinite loss that is never selected does no harm
    mean = float(chances[is_selected] @ runs.test[is_selected])
    if not np.isfinite(mean):
        return mean, float("nan")
    return mean, float(chances[is_selected] @ (runs.test[is_selected] - mean) ** 2)


@validate_call
def expected_curve(runs: Runs, budgets: Sequence[int]) -> Floats:
    """Return the means of `expected_best` for several budgets: (K,)."""
    return np.array([expected_best(runs, budget)[0] for budget in budgets])


@validate_call
def simulate(runs: Runs, budget: Count, repetitions: Count = 1000, seed: int = 0) -> Floats:
    """Return what searches of k trials report: procedure 1 itself, (repetitions,)."""
    draws = stream(seed, "procedure_1").integers(len(runs), size=(repetitions, budget))
    best = np.argmin(runs.validation[draws], axis=1)
    return np.asarray(runs.test[draws[np.arange(repetitions), best]])


@validate_call
def simulate_by_cost(runs: Runs, budgets: Vector, repetitions: Count = 1000) -> Floats:
    """Return the mean of what searches report within (K,) budgets of cost: (K,), appendix F.

    A run that does not end within a budget does not count for it; before the first ends there is
    nothing: infinity.
    """
    if not np.isfinite(budgets).all():
        raise InvalidArgumentError(f"`budgets` must be finite, got {budgets!r}")
    most = max(1, int(np.ceil(np.max(budgets) / runs.cost.min())))
    draws = stream(0, "procedure_1_by_cost").integers(len(runs), size=(repetitions, most))
    ends = np.cumsum(runs.cost[draws], axis=1)
    best = running_argmin(runs.validation[draws])
    reported = np.take_along_axis(runs.test[draws], best, axis=1)
    means = []
    for budget in budgets:
        num_ended = np.count_nonzero(ends <= budget, axis=1)
        values = reported[np.arange(repetitions), np.maximum(num_ended - 1, 0)]
        means.append(np.mean(np.where(num_ended > 0, values, np.inf)))
    return np.array(means)


@validate_call
def probability_of_best(libraries: Mapping[str, Runs], budget: Count) -> dict[str, float]:
    """Return how likely each algorithm reports the lowest value after k trials: figures 1 and 10.

    Each reports value v with probability p(v), and a higher one with G(v); equals share by lot. So
    one wins with probability sum_v p(v) int_0^1 prod_others (G(v) + (1 - u) p(v)) du, a polynomial
    that few nodes integrate exactly. The paper simulates, and gives ties to the first in its list.
    """
    if not libraries:
        raise InvalidArgumentError("`libraries` must hold at least one algorithm, got none")
    levels = np.unique(np.concatenate([runs.test for runs in libraries.values()]))
    chances = np.zeros((len(libraries), len(levels)))
    for row, runs in zip(chances, libraries.values(), strict=True):
        np.add.at(row, np.searchsorted(levels, runs.test), selection(runs.validation, budget))
    higher = np.clip(1.0 - np.cumsum(chances, axis=1), 0.0, 1.0)
    nodes, weights = np.polynomial.legendre.leggauss(len(libraries) // 2 + 1)
    probabilities = np.zeros(len(libraries))
    for node, weight in zip((1 + nodes) / 2, weights / 2, strict=True):
        not_lower = higher + node * chances
        for index in range(len(libraries)):
            others = np.prod(np.delete(not_lower, index, axis=0), axis=0)
            probabilities[index] += weight * float(chances[index] @ others)
    return dict(zip(libraries, probabilities.tolist(), strict=True))


MARGIN: Final = 0.2
"""How much worse than the best a run may be and still speak for its configuration."""

Family = Literal["uniform", "normal"]
Transform = Literal["none", "log10", "one_minus_log10"]


@dataclass(frozen=True)
class Prior:
    """A distribution of a hyperparameter, once transformed: of two ends, or mean and deviation."""

    family: Family
    a: float
    b: float
    transform: Transform = "none"

    def __post_init__(self) -> None:
        if not np.isfinite([self.a, self.b]).all() or self.b < (
            self.a if self.family == "uniform" else 0.0
        ):
            raise InvalidArgumentError(
                "`a` and `b` must be finite, and ends in order or a mean and a deviation, "
                f"got {self.a!r} and {self.b!r}"
            )

    @classmethod
    def fit(cls, values: Floats, family: Family, transform: Transform = "none") -> "Prior":
        """Fit a distribution by maximum likelihood."""
        z = np.asarray(values, dtype=np.float64)
        if transform != "none":
            with np.errstate(divide="ignore", invalid="ignore"):
                z = np.log10(z if transform == "log10" else 1.0 - z)
        if not len(z) or not np.isfinite(z).all():
            raise InvalidArgumentError(
                f"`values` must not be empty and must be in the range of {transform!r}"
            )
        if family == "uniform":
            return cls(family, float(z.min()), float(z.max()), transform)
        return cls(family, float(z.mean()), float(z.std()), transform)

    def sample(self, rng: np.random.Generator, size: int) -> Floats:
        """Draw values: (size,)."""
        draw = rng.uniform if self.family == "uniform" else rng.normal
        z: Floats = np.asarray(draw(self.a, self.b, size))
        if self.transform == "none":
            return z
        return 10.0**z if self.transform == "log10" else 1.0 - 10.0**z


@validate_call
def near_best(losses: Floats) -> np.ndarray:
    """Return which runs come near the best: loss <= (1 + `MARGIN`) best; (N,) of bool."""
    best = float(np.min(losses, initial=np.inf))
    if not 0 <= best < np.inf:
        raise InvalidArgumentError(f"`losses` must have a lowest one that is not negative, {best}")
    return np.asarray(losses) <= (1 + MARGIN) * best


@validate_call
def calibrate(
    searches: Sequence[tuple[Vector, Mapping[str, Vector]]],
    families: Mapping[str, tuple[Family, Transform]],
) -> dict[str, Prior]:
    """Fit a prior of every hyperparameter on the (N,) losses and values of wide searches."""
    if not searches:
        raise InvalidArgumentError("`searches` must hold at least one, got none")
    for losses, values in searches:
        for name in families:
            if name not in values or len(values[name]) != len(losses):
                raise InvalidArgumentError(
                    f"`searches` must have as many values of {name!r} as losses, {len(losses)}"
                )
    selected = [(near_best(losses), values) for losses, values in searches]
    pooled = {
        name: np.concatenate([values[name][near] for near, values in selected]) for name in families
    }
    return {name: Prior.fit(pooled[name], *prior) for name, prior in families.items()}


PATIENCE = 2
Losses = Annotated[Floats, Axes(1, 1, nan=True)]


@validate_call
def epochs_run(losses: Losses, patience: Count = PATIENCE, min_delta: float = 0.0) -> int:
    """Return how many of (E,) evaluations a run makes before it is stopped.

    It stops after the `patience`-th in a row that is not lower by more than `min_delta`.
    """
    lowest, waited = np.inf, 0
    for epoch, loss in enumerate(losses, start=1):
        if loss < lowest - min_delta:
            lowest, waited = float(loss), 0
        else:
            waited += 1
        if waited >= patience:
            return epoch
    return len(losses)


@validate_call
def relative_performance(expected: Annotated[Floats, Axes(3, 3)]) -> Floats:
    """Return S(o, k): mean over problems of the best over an algorithm's own, at equal budget.

    The paper's equation (section 5.2) turned for losses: 1 for an algorithm that is nowhere beaten
    with k trials. Of (A, P, K) expected losses, (A, K).
    """
    if not np.all(expected > 0):
        raise InvalidArgumentError("`expected` must be positive: ratios of losses are taken")
    return np.asarray((expected.min(axis=0) / expected).mean(axis=1))


WEIGHTS: Final[Mapping[str, Callable[[int], Floats]]] = {
    "cpe": lambda budget: _normalise(np.arange(budget, 0, -1.0)),
    "cpl": lambda budget: _normalise(np.arange(1.0, budget + 1)),
    "cpu": lambda budget: _normalise(np.ones(budget)),
    "one_shot": lambda budget: _normalise(np.eye(1, budget)[0]),
    "peak": lambda budget: _normalise(np.eye(1, budget, budget - 1)[0]),
}
"""Weights by name: cumulative performance, early, late and uniform, and of one or all trials."""


@validate_call
def omega_tunability(expected: Rows, weights: Vector) -> Floats:
    """Return sum_t omega_t L_t of (..., T) expected losses (appendix E); lower is better."""
    if weights.shape != expected.shape[-1:] or np.any(weights < 0) or abs(weights.sum() - 1) > 1e-9:
        raise InvalidArgumentError(
            f"`weights` must be {expected.shape[-1]} numbers, not negative, that sum to 1"
        )
    has_weight = weights > 0  # what has no weight may be infinite
    return np.asarray(expected[..., has_weight] @ weights[has_weight])


def _normalise(weights: Floats) -> Floats:
    if not len(weights):
        raise InvalidArgumentError("`budget` must be at least one trial")
    return np.asarray(weights / weights.sum())
