"""Runs of one problem, put together over seeds: curves over simulated time, and final results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.multi_objective import can_compute_volumes
from fedhpo_gym.evaluation.stats import Band, bootstrap_band
from fedhpo_gym.records.incumbents import Trajectory, ends
from fedhpo_gym.records.record import Header
from fedhpo_gym.records.runs import (
    COST_OBJECTIVES,
    Course,
    ScoredTrials,
    at_full_level,
    volume_regret,
)

POINTS: Final = 400
"""Times at which curves are known."""
LARGEST: Final = float(np.finfo(np.float32).max)
"""Validation loss of a course that diverged."""
NO_GUARANTEE: Final = 1e4
"""Epsilon that stands for no privacy."""


@dataclass(frozen=True, eq=False)
class Curve:
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
        found = list(values)
        if None in found or not found:
            return None
        array = np.array(found, dtype=np.float64)
        several = len(array) > 1 and bool(np.isfinite(array).all())
        return cls(float(array.mean()), float(array.std(ddof=1)) if several else None)


@dataclass(frozen=True)
class FinalIncumbent:
    """The final incumbent of a run: step `number` of `steps`, from 1, and its true objectives.

    Its test accuracy is None where nobody knows it.
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
    """What is kept of one run: a record of 100,000 trials becomes some hundred numbers.

    Attributes:
        trajectory: its incumbent over time, named by problem and contestant.
        path: where it was read.
        best: its final incumbent; None for a run of a foreign table.
        header: of its record; None for a run of a foreign table.
        scored: its trials, where rewards are vectors.
        configurations: of its incumbents, by number of the trial from 0.
        regret: regret of those at full fidelity over time; None where nobody knows.
        relative: their relative regret.
        spent: what all its trials cost; empty for a run of a foreign table.
        diverged: how many of its trials diverged.
        varies: whether the fidelity of a trial was the agent's to choose.
        course: what is said of a run of a round environment; else None.
    """

    trajectory: Trajectory
    path: Path
    best: FinalIncumbent | None = None
    header: Header | None = None
    scored: ScoredTrials | None = None
    configurations: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    regret: Trajectory | None = None
    relative: Trajectory | None = None
    spent: Mapping[str, float] = field(default_factory=dict)
    diverged: int = 0
    varies: bool = False
    course: Course | None = None

    @property
    def returned(self) -> Trajectory | None:
        """The negative return of a course over time; None where rewards are vectors, or trials."""
        if self.course is None or self.course.returns is None:
            return None
        line = self.trajectory
        is_last = np.append(np.diff(self.course.time_s) > 0, True)
        return replace(line, value=-self.course.returns[is_last], test=None)

    def judged(self, known: "ReferenceValues | None") -> "Run":
        """Return this run with its regret, where it is known, and its losses at full fidelity."""
        line = self.trajectory
        if known is None or line.trial is None or not self.configurations:
            return self
        asked = [self.configurations[trial] for trial in line.trial.tolist()]
        line = replace(line, budget_s=known.budget_s, level=None)
        try:
            regret, relative = known.regret_at(asked) if asked else (line.value, line.value)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{self.path}: {error} Leave this record out.") from error
        losses = known.best + regret if known.objective == "val_loss" else line.value
        return replace(
            self, trajectory=replace(line, value=losses), regret=replace(line, value=regret),
            relative=replace(line, value=relative),
        )  # fmt: skip


@dataclass(frozen=True)
class ReferenceValues:
    """What stored numbers know of a problem, whoever tunes it.

    Attributes:
        objective: name of the first objective, which regret is of.
        best: its best feasible value at full fidelity.
        typical: that of the median configuration there, which a random one is expected to have.
        exact: whether nothing else can be asked for; else a surrogate was searched.
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
    """Return what each run came to; None is what nobody knows.

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
class Problem:
    """All runs of one environment under the same settings on the same data.

    Attributes:
        name: the id, and what tells it from other problems of that id.
        id: environment id.
        kwargs: what the environment was made with, without what is the agent's affair.
        fingerprints: of the table, surrogate or data that answered, under all names of the records.
        runs: the runs of every contestant, in the order of their seeds.
        known: what stored numbers know of it; None where nobody knows.
    """

    name: str
    id: str
    kwargs: Mapping[str, Any]
    fingerprints: tuple[str, ...]
    runs: Mapping[str, tuple[Run, ...]]
    known: ReferenceValues | None = None

    def curves(self) -> Mapping[str, Curve]:
        """Return each agent's curve, from when every run has a feasible incumbent."""
        grid = self._grid()
        curves = {agent: _curve(runs, grid) for agent, runs in self.runs.items()}
        return {agent: curve for agent, curve in curves.items() if len(curve.time_s)}

    def regret(self) -> Mapping[str, tuple[NDArray[np.float64], Band]]:
        """Return times and mean regret of every agent, with bootstrap bands.

        It is that of what the runs recommend, and of many objectives that of the hypervolume. Where
        nobody knows it, validation loss above the lowest here stands in its place. What is above
        `scale` counts as its end: one course that diverged would else be all that a mean says.
        """
        best, rim = self.scale()
        grid, found = self._grid(), {}
        for agent, lines in self.regret_lines().items():
            values = np.minimum(np.stack([line.at(grid) for line in lines]) - best, rim)
            known = np.isfinite(values).all(axis=0)
            if known.any():
                found[agent] = (grid[known], bootstrap_band(values[:, known]))
        return found

    def regret_lines(self) -> Mapping[str, tuple[Trajectory, ...]]:
        """Return what `regret` is the mean of, before anything is cut off."""
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
        """Return the value of regret 0, and the regret that is as bad as any."""
        if can_compute_volumes() and any(run.scored for run in self.all_runs()):
            return 0.0, 1.0
        if self.known is not None and all(run.regret for run in self.all_runs()):
            return 0.0, max(self.known.typical - self.known.best, 1e-12)
        best, first = ends([run.trajectory for run in self.all_runs()])
        return best, max(first - best, 1e-12)

    def scored(self) -> Mapping[str, tuple[ScoredTrials, ...]]:
        """Return each agent's trials of full fidelity, or all where a cost is an objective."""
        runs = [(agent, run.scored) for agent, of in self.runs.items() for run in of if run.scored]
        found: dict[str, tuple[ScoredTrials, ...]] = {}
        scored = [one for _, one in runs if one is not None]
        # A short trial is no half-trained one where what it costs is among the objectives.
        of_costs = any(name in COST_OBJECTIVES for one in scored for name in one.names)
        full = scored if of_costs else at_full_level(scored)
        for (agent, _), one in zip(runs, full, strict=True):
            found[agent] = (*found.get(agent, ()), one)
        return found

    def volumes(self) -> tuple[Trajectory, ...]:
        """Return the hypervolume regret of every run over time, of the true front if known."""
        runs = [run for run in self.all_runs() if run.scored is not None]
        known = self.known and self.known.volume_regret
        full = [one for of in self.scored().values() for one in of]
        if known:
            full = [run.scored for run in runs if run.scored is not None]
        if not any(len(one.time_s) for one in full):
            return ()
        found = []
        missing = [known(one) for one in full] if known else volume_regret(full)
        for run, one, regret in zip(runs, full, missing, strict=True):
            line = run.trajectory
            # Of trials that were paid for at one moment, the last one holds.
            last = np.append(one.time_s[1:] > one.time_s[:-1], True)[: len(one.time_s)]
            times, values = one.time_s[last], regret[last]
            changed = np.diff(values, prepend=np.inf) != 0
            changes = {"time_s": times[changed], "value": values[changed]}
            found.append(replace(line, **changes, test=None, level=None, trial=None))
        return tuple(found)

    def winner(self) -> Run | None:
        """Return the run whose final incumbent is known, keeps the constraints and is lowest."""
        known = [run for run in self.all_runs() if run.best and np.isfinite(run.trajectory.final)]
        return min(known, key=lambda run: run.trajectory.final, default=None)

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


def _curve(runs: Iterable[Run], grid: NDArray[np.float64]) -> Curve:
    values = np.stack([run.trajectory.at(grid) for run in runs])
    known = np.isfinite(values).all(axis=0)
    lower, median, upper = np.quantile(values[:, known], [0.25, 0.5, 0.75], axis=0)
    return Curve(grid[known], median, lower, upper)
