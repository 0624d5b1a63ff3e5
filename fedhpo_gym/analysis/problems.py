"""Runs of one problem over seeds: curves over simulated time, regret, fronts and final results.

`fedhpo_gym.analysis.group` makes a `ProblemRuns` of run records, and reports draw it. Runs end
incumbents at different times, so all curves are read on one grid of `POINTS` times, (T,). Regret
needs `ReferenceValues`, which `fedhpo_gym.studies.regret.known_of` reads from stored numbers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.multi_objective import can_compute_volumes
from fedhpo_gym.evaluation.stats import Band, bootstrap_band
from fedhpo_gym.records.incumbents import Trajectory, final_range
from fedhpo_gym.records.record import Header
from fedhpo_gym.records.runs import (
    COST_OBJECTIVES,
    CourseProgress,
    ScoredTrials,
    at_full_level,
    volume_regret,
)

POINTS: Final = 400
"""Number of times at which curves are evaluated."""
LARGEST: Final = float(np.finfo(np.float32).max)
"""Validation loss of a course that diverged."""
NO_GUARANTEE: Final = 1e4
"""Epsilon that stands for no privacy."""


@dataclass(frozen=True, eq=False)
class QuartileCurve:
    """Quartiles over the runs of one agent, (T,) each, of the incumbent's validation loss."""

    time_s: NDArray[np.float64]
    median: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation over runs; the latter is None for a single run."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Summary | None":
        """Summarise one number per run; None where a run has none, or there is no run."""
        per_run = list(values)
        if None in per_run or not per_run:
            return None
        array = np.array(per_run, dtype=np.float64)
        several = len(array) > 1 and bool(np.isfinite(array).all())
        return cls(float(array.mean()), float(array.std(ddof=1)) if several else None)


@dataclass(frozen=True)
class FinalIncumbent:
    """The final incumbent of a run: step `number` of `steps`, from 1, and its true objectives.

    Its test accuracy is None where it is unknown.
    """

    word: str
    number: int
    steps: int
    configuration: Mapping[str, Any]
    fidelity: Mapping[str, Any]
    objectives: Mapping[str, float]
    test_accuracy: float | None


@dataclass(frozen=True, eq=False)
class Run:
    """A reduced run: a record of 100,000 trials becomes some hundred numbers.

    Attributes:
        trajectory: its incumbent over time, named by problem and contestant.
        path: where it was read.
        best: its final incumbent; None for a run of a foreign table.
        header: of its record; None for a run of a foreign table.
        scored: its trials, where rewards are vectors.
        configurations: of its incumbents, by number of the trial from 0.
        regret: regret of those at full fidelity over time; None where it is unknown.
        relative: their relative regret.
        total_costs: costs of all its trials; empty for a run of a foreign table.
        diverged: how many of its trials diverged.
        varies: whether the fidelity of a trial was the agent's to choose.
        course: progress of a run of a round environment; else None.
    """

    trajectory: Trajectory
    path: Path
    best: FinalIncumbent | None = None
    header: Header | None = None
    scored: ScoredTrials | None = None
    configurations: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    regret: Trajectory | None = None
    relative: Trajectory | None = None
    total_costs: Mapping[str, float] = field(default_factory=dict)
    diverged: int = 0
    varies: bool = False
    course: CourseProgress | None = None

    @property
    def returned(self) -> Trajectory | None:
        """The negative return of a course over time; None where rewards are vectors, or trials."""
        if self.course is None or self.course.returns is None:
            return None
        line = self.trajectory
        is_last = np.append(np.diff(self.course.time_s) > 0, True)
        return replace(line, value=-self.course.returns[is_last], test=None)

    def judged(self, references: "ReferenceValues | None") -> "Run":
        """Return this run with its regret, where it is known, and its losses at full fidelity."""
        line = self.trajectory
        if references is None or line.trial is None or not self.configurations:
            return self
        configurations = [self.configurations[trial] for trial in line.trial.tolist()]
        line = replace(line, budget_s=references.budget_s, level=None)
        try:
            regret, relative = (
                references.regret_at(configurations) if configurations else (line.value, line.value)
            )
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{self.path}: {error} Leave this record out.") from error
        losses = references.best + regret if references.objective == "val_loss" else line.value
        return replace(
            self, trajectory=replace(line, value=losses), regret=replace(line, value=regret),
            relative=replace(line, value=relative),
        )  # fmt: skip


@dataclass(frozen=True)
class ReferenceValues:
    """Reference values of a problem from stored numbers, the same for every agent.

    Attributes:
        objective: name of the first objective, which regret is of.
        best: its best feasible value at full fidelity.
        typical: that of the median configuration there, which a random one is expected to have.
        exact: whether all configurations were evaluated; else a surrogate was searched.
        budget_s: simulated seconds of an episode; None where it ends by something else.
        regret_at: returns regret and relative regret of configurations at full fidelity.
        volume_regret: returns hypervolume regret after each trial of a run of vector rewards.
    """

    objective: str
    best: float
    typical: float
    exact: bool
    budget_s: float | None
    regret_at: Callable[[Sequence[Mapping[str, Any]]], tuple[NDArray[Any], NDArray[Any]]]
    volume_regret: Callable[[ScoredTrials], NDArray[np.float64]] | None = None


def finals(runs: Sequence[Run]) -> dict[str, list[float | None]]:
    """Return the final results of each run; None is unknown.

    `returned` is the sum of the rewards of a course; regrets are of what a run recommends at its
    end, all else of its final incumbent; `trials` fit into the budget.
    """
    rows = []
    for run in runs:
        test, best, returned = run.trajectory.test, run.best, run.returned
        rows.append(
            {
                "val_loss": run.trajectory.final,
                "test_loss": None if test is None or not len(test) else float(test[-1]),
                "test_accuracy": best.test_accuracy if best else None,
                "trials": best.steps if best else None,
                "regret": run.regret.final if run.regret else None,
                "relative_regret": run.relative.final if run.relative else None,
                "returned": -returned.final if returned else None,
            }
        )
    return {name: [row[name] for row in rows] for name in rows[0]}


@dataclass(frozen=True)
class ProblemRuns:
    """All runs of one environment under the same settings on the same data.

    Attributes:
        name: the id, and what tells it from other problems of that id.
        id: environment id.
        kwargs: arguments of the environment, without those that belong to the agent.
        fingerprints: of its table, surrogate or data, under all names of the records.
        runs: the runs of every contestant, in the order of their seeds.
        known: its reference values; None where they are unknown.
    """

    name: str
    id: str
    kwargs: Mapping[str, Any]
    fingerprints: tuple[str, ...]
    runs: Mapping[str, tuple[Run, ...]]
    known: ReferenceValues | None = None

    def curves(self) -> Mapping[str, QuartileCurve]:
        """Return each agent's curve, from when every run has a feasible incumbent."""
        grid = self._grid()
        curves = {agent: _quartile_curve(runs, grid) for agent, runs in self.runs.items()}
        return {agent: curve for agent, curve in curves.items() if len(curve.time_s)}

    def regret(self) -> Mapping[str, tuple[NDArray[np.float64], Band]]:
        """Return times and mean regret of every agent, with bootstrap bands.

        It is the regret of recommended configurations, and for many objectives that of the
        hypervolume. Where it is unknown, validation loss above the lowest here replaces it. Values
        are clipped at the end of `scale`, because one diverged course would dominate a mean.
        """
        best, most = self.scale()
        grid, bands = self._grid(), {}
        for agent, lines in self.regret_lines().items():
            values = np.minimum(np.stack([line.at(grid) for line in lines]) - best, most)
            is_known = np.isfinite(values).all(axis=0)
            if is_known.any():
                bands[agent] = (grid[is_known], bootstrap_band(values[:, is_known]))
        return bands

    def regret_lines(self) -> Mapping[str, tuple[Trajectory, ...]]:
        """Return the runs that `regret` is the mean of, before clipping."""
        volumes: dict[str, tuple[Trajectory, ...]] = {}
        for line in self.volumes() if can_compute_volumes() else ():
            volumes[line.agent] = (*volumes.get(line.agent, ()), line)
        if volumes:
            return volumes
        is_known = all(run.regret for run in self.all_runs())
        return {
            agent: tuple((is_known and run.regret) or run.trajectory for run in runs)
            for agent, runs in self.runs.items()
        }

    def scale(self) -> tuple[float, float]:
        """Return the value of regret 0, and the regret at which values are clipped."""
        if can_compute_volumes() and any(run.scored for run in self.all_runs()):
            return 0.0, 1.0
        if self.known is not None and all(run.regret for run in self.all_runs()):
            return 0.0, max(self.known.typical - self.known.best, 1e-12)
        best, first = final_range([run.trajectory for run in self.all_runs()])
        return best, max(first - best, 1e-12)

    def scored(self) -> Mapping[str, tuple[ScoredTrials, ...]]:
        """Return each agent's trials of full fidelity, or all where a cost is an objective."""
        runs = [
            (agent, run.scored)
            for agent, of_agent in self.runs.items()
            for run in of_agent
            if run.scored
        ]
        by_agent: dict[str, tuple[ScoredTrials, ...]] = {}
        scored = [trials for _, trials in runs if trials is not None]
        # Where a cost is an objective, a trial of low fidelity can be on the front.
        of_costs = any(name in COST_OBJECTIVES for trials in scored for name in trials.names)
        full = scored if of_costs else at_full_level(scored)
        for (agent, _), trials in zip(runs, full, strict=True):
            by_agent[agent] = (*by_agent.get(agent, ()), trials)
        return by_agent

    def volumes(self) -> tuple[Trajectory, ...]:
        """Return the hypervolume regret of every run over time, of the true front if known."""
        runs = [run for run in self.all_runs() if run.scored is not None]
        true_regret = self.known and self.known.volume_regret
        full = [trials for of_agent in self.scored().values() for trials in of_agent]
        if true_regret:
            full = [run.scored for run in runs if run.scored is not None]
        if not any(len(trials.time_s) for trials in full):
            return ()
        lines = []
        regrets = [true_regret(trials) for trials in full] if true_regret else volume_regret(full)
        for run, trials, regret in zip(runs, full, regrets, strict=True):
            line = run.trajectory
            # Of trials that end at the same moment, only the state after the last one counts.
            is_last = np.append(trials.time_s[1:] > trials.time_s[:-1], True)[: len(trials.time_s)]
            times, values = trials.time_s[is_last], regret[is_last]
            is_change = np.diff(values, prepend=np.inf) != 0
            arrays = {"time_s": times[is_change], "value": values[is_change]}
            lines.append(replace(line, **arrays, test=None, level=None, trial=None))
        return tuple(lines)

    def winner(self) -> Run | None:
        """Return the run whose final incumbent is known, keeps the constraints and is lowest."""
        feasible = [
            run for run in self.all_runs() if run.best and np.isfinite(run.trajectory.final)
        ]
        return min(feasible, key=lambda run: run.trajectory.final, default=None)

    def _grid(self) -> NDArray[np.float64]:
        """Return times from the first incumbent of a run to the end of the longest run."""
        lines = [run.trajectory for run in self.all_runs()]
        first = min((line.time_s[0] for line in lines if len(line.time_s)), default=None)
        if first is None:
            raise InvalidArgumentError(f"`runs` on {self.name} must hold an incumbent, got none")
        return np.linspace(first, max(line.end_s for line in lines), POINTS)

    @property
    def is_course(self) -> bool:
        """Whether runs are courses that were tuned while they were trained."""
        return any(run.course for run in self.all_runs())

    def all_runs(self) -> list[Run]:
        """Return the runs of all contestants."""
        return [run for runs in self.runs.values() for run in runs]


def _quartile_curve(runs: Iterable[Run], grid: NDArray[np.float64]) -> QuartileCurve:
    values = np.stack([run.trajectory.at(grid) for run in runs])
    is_known = np.isfinite(values).all(axis=0)
    lower, median, upper = np.quantile(values[:, is_known], [0.25, 0.5, 0.75], axis=0)
    return QuartileCurve(grid[is_known], median, lower, upper)
