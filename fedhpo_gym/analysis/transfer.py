"""HPO-B's measures of methods: mean normalised regret, ranks, and critical differences.

Definitions are those of `benchmark_plot.py` of HPO-B (Pineda Arango et al., 2021) and of the text,
where they differ. A result is {search space: {data set: {seed: values}}}; a value is the best
response so far, in [0, 1], after the initial rows and after each trial. Names of axes: R runs, M
methods, T = trials + 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final, Literal

import numpy as np

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import Axes, Range, validate_call
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.stats import CriticalDifference, critical_difference, ranks

Result = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
Run = tuple[str, str, str]
"""Search space, data set and seed."""
Over = Literal["runs", "search spaces"]
DECIMALS: Final = 8
"""Values that are the same to so many decimals share a rank, as in HPO-B."""


@dataclass(frozen=True, eq=False)
class MethodRuns:
    """What some methods reached in the same runs.

    Attributes:
        methods: (M,) names.
        runs: (R,) search space, data set and seed of each.
        regret: (R, M, T) normalised regret, 1 less the best response so far.
    """

    methods: tuple[str, ...]
    runs: tuple[Run, ...]
    regret: Floats

    @cached_property
    def ranks(self) -> Floats:
        """(R, M, T) ranks within each run and trial, 1 the lowest regret; ties share the mean."""
        by_method: Floats = ranks(np.round(self.regret, DECIMALS).transpose(0, 2, 1))
        return by_method.transpose(0, 2, 1)

    @validate_call
    def mean(self, values: Annotated[Floats, Axes(1)], over: Over = "runs") -> Floats:
        """Return the mean of (R, ...) values, such as `regret` or `ranks`: (...).

        HPO-B's code takes the mean over all runs; its text first means over the runs of each
        search space, then the mean of these, so that all search spaces count the same.

        Raises:
            InvalidArgumentError: `values` has another number of runs.
        """
        self._check(values)
        if over == "runs":
            return np.asarray(values.mean(axis=0), np.float64)
        spaces = np.array([space for space, _, _ in self.runs])
        means = [values[spaces == name].mean(axis=0) for name in dict.fromkeys(spaces.tolist())]
        return np.asarray(np.mean(means, axis=0), np.float64)

    @validate_call
    def band(self, values: Annotated[Floats, Axes(1)]) -> Floats:
        """Return how far HPO-B's shades reach from the mean over all runs of (R, ...) values.

        It is half of 1.96 standard errors: 0.5 * 1.96 * s / sqrt(R), s over all R and not R - 1.
        """
        self._check(values)
        return np.asarray(0.5 * 1.96 * values.std(axis=0) / np.sqrt(len(values)), np.float64)

    @validate_call
    def critical_difference(
        self, trial: Annotated[int, Range(0)], alpha: Annotated[float, Range(0, 1)] = 0.05
    ) -> CriticalDifference:
        """Compare the ranks of all methods at a trial; 0 is before the first.

        Friedman's test, then Wilcoxon's of all pairs on the ranks in each run, differences of
        zero ranked and left out (Pratt), with Holm's correction. `analysis.figures.draw_difference`
        draws it.

        Raises:
            InvalidArgumentError: there are fewer trials, or fewer than two methods.
        """
        if trial >= self.regret.shape[2]:
            raise InvalidArgumentError(
                f"`trial` must be at most {self.regret.shape[2] - 1}, the last, got {trial}"
            )
        return critical_difference(self.ranks[:, :, trial], self.methods, alpha)

    def _check(self, values: Floats) -> None:
        if len(values) != len(self.runs):
            raise InvalidArgumentError(
                f"`values` must have a row for each of {len(self.runs)} runs, got {len(values)}"
            )


@validate_call
def align_runs(results: Mapping[str, Result], n_trials: Annotated[int, Range(1)]) -> MethodRuns:
    """Return results, by method, up to a trial; each must have all runs of the first.

    As in HPO-B, values that end early at the best response of the task, 1, go on with it.

    Raises:
        InvalidArgumentError: there is none, a method lacks a run, or a run has too few values.
    """
    if not results:
        raise InvalidArgumentError("`results` must hold at least one method, got none")
    first = next(iter(results.values()))
    runs = [
        (s, d, seed) for s, sets in first.items() for d, seeds in sets.items() for seed in seeds
    ]
    if not runs:
        raise InvalidArgumentError("`results` must hold at least one run of each method, got none")
    per_run = [
        [_run_values(m, result, run, n_trials) for m, result in results.items()] for run in runs
    ]
    values = np.array(per_run, np.float64)
    if not np.isfinite(values).all():
        raise InvalidArgumentError("`results` must hold finite values, got NaN or infinity")
    return MethodRuns(tuple(results), tuple(runs), 1.0 - values)


def _run_values(method: str, result: Result, run: Run, n_trials: int) -> list[float]:
    """Return the values of a run, one more than there are trials."""
    space, dataset, seed = run
    try:
        values = list(result[space][dataset][seed])
    except KeyError as error:
        raise InvalidArgumentError(
            f"`results` must hold the same runs of all methods; {method} has none of search space "
            f"{space}, data set {dataset}, seed {seed}"
        ) from error
    if len(values) <= n_trials and values and values[-1] == 1:
        values += [1.0] * (n_trials + 1 - len(values))
    if len(values) <= n_trials:
        raise InvalidArgumentError(
            f"`n_trials` must be less than the {len(values)} values that {method} has in search "
            f"space {space}, data set {dataset}, seed {seed}, got {n_trials}"
        )
    return values[: n_trials + 1]
