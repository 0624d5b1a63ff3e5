"""Runs of one problem, put together over seeds: curves over simulated time, and final results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.analysis.records import RunRecord
from fedhpo_gym.errors import InvalidArgumentError

GRID_POINTS = 400


@dataclass(frozen=True, eq=False)
class Curve:
    """Incumbent validation loss of one agent over simulated time.

    Attributes:
        time_s: (T,) simulated seconds, increasing.
        median: (T,) median over the runs.
        lower: (T,) first quartile.
        upper: (T,) third quartile.
    """

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
    def of(cls, values: Iterable[float]) -> Summary:
        """Summarise one number per run."""
        array = np.array(list(values), dtype=np.float64)
        return cls(float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None)


@dataclass(frozen=True)
class AgentResult:
    """What the runs of one agent came to.

    Attributes:
        agent: name of the agent.
        runs: number of runs.
        val_loss: validation loss of the final incumbents.
        test_loss: test loss of the final incumbents.
        test_accuracy: test accuracy of the final incumbents.
        trials: trials that fit into the budget.
    """

    agent: str
    runs: int
    val_loss: Summary
    test_loss: Summary
    test_accuracy: Summary
    trials: Summary


@dataclass(frozen=True)
class Problem:
    """All runs of one environment under the same settings on the same data.

    Attributes:
        id: environment id.
        kwargs: what the environment was made with.
        fingerprint: identifies the table, surrogate or data that answered.
        runs: the records of every agent, in the order of their seeds.
    """

    id: str
    kwargs: Mapping[str, Any]
    fingerprint: str
    runs: Mapping[str, tuple[RunRecord, ...]]

    def results(self) -> tuple[AgentResult, ...]:
        """Return the final results, one per agent."""
        return tuple(_result(agent, runs) for agent, runs in self.runs.items())

    def curves(self) -> Mapping[str, Curve]:
        """Return the curve of every agent, on one time grid.

        The curve of an agent begins when every one of its runs has finished a trial.
        """
        ends = [[step.elapsed_s for step in run.steps] for run in self._all_runs()]
        first, last = min(times[0] for times in ends), max(times[-1] for times in ends)
        grid = np.linspace(first, last, GRID_POINTS)
        return {agent: _curve(runs, grid) for agent, runs in self.runs.items()}

    def winner(self) -> RunRecord:
        """Return the run whose final incumbent has the lowest validation loss."""
        return min(self._all_runs(), key=lambda run: float(run.final.incumbent["val_loss"]))

    def _all_runs(self) -> list[RunRecord]:
        return [run for runs in self.runs.values() for run in runs]


def group(records: Iterable[tuple[Path, RunRecord]]) -> tuple[Problem, ...]:
    """Sort records into problems; runs of different settings or data are never mixed.

    Raises:
        InvalidArgumentError: two files hold the same agent and seed of one problem.
    """
    found: dict[str, dict[tuple[str, int], tuple[Path, RunRecord]]] = {}
    for path, record in records:
        header = record.header
        key = json.dumps([header.id, header.kwargs, header.fingerprint], sort_keys=True)
        runs = found.setdefault(key, {})
        run = (header.agent, header.seed)
        if run in runs:
            raise InvalidArgumentError(
                f"records must be different runs, but {runs[run][0]} and {path} both hold agent "
                f"{header.agent!r} with seed {header.seed} on {header.id}; remove one of them"
            )
        runs[run] = (path, record)
    return tuple(_problem(found[key]) for key in sorted(found))


def step_function(run: RunRecord, time_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the incumbent validation loss of a run at some times; NaN before its first trial.

    A trial counts from the moment it is paid for; the last value holds after the end of the run.
    """
    elapsed = np.array([step.elapsed_s for step in run.steps])
    losses = np.array([np.nan, *(step.incumbent["val_loss"] for step in run.steps)])
    values: NDArray[np.float64] = losses[np.searchsorted(elapsed, time_s, side="right")]
    return values


def _curve(runs: Iterable[RunRecord], grid: NDArray[np.float64]) -> Curve:
    values = np.stack([step_function(run, grid) for run in runs])
    known = ~np.isnan(values).any(axis=0)
    lower, median, upper = np.quantile(values[:, known], [0.25, 0.5, 0.75], axis=0)
    return Curve(grid[known], median, lower, upper)


def _result(agent: str, runs: tuple[RunRecord, ...]) -> AgentResult:
    return AgentResult(
        agent=agent,
        runs=len(runs),
        val_loss=Summary.of(run.final.incumbent["val_loss"] for run in runs),
        test_loss=Summary.of(run.final_test["loss"] for run in runs),
        test_accuracy=Summary.of(run.final_test["accuracy"] for run in runs),
        trials=Summary.of(len(run.steps) for run in runs),
    )


def _problem(runs: Mapping[tuple[str, int], tuple[Path, RunRecord]]) -> Problem:
    by_agent: dict[str, tuple[RunRecord, ...]] = {}
    for agent, seed in sorted(runs):
        by_agent[agent] = (*by_agent.get(agent, ()), runs[agent, seed][1])
    header = next(iter(runs.values()))[1].header
    return Problem(header.id, header.kwargs, header.fingerprint, by_agent)
