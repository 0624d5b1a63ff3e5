"""Incumbents of runs over simulated time, by one rule for agents with and without fidelities.

Reports, comparisons and regrets read runs as the `Trials`, `Trajectory` and `Study` of this module.

The rule "recommended" takes the environment's incumbent, `info["incumbent"]` (docs/regret.md). The
rule "highest_fidelity" is that of Wang et al. (2022, section 4.1), by "higher fidelity results are
preferred over lower ones": a trial becomes the incumbent if its level is higher, or if its level is
equal and its value lower. Trials that keep constraints come before all others.

The rule "full_fidelity" counts only trials of the highest level of any run on the problem. It
needs all runs of a problem, so it equals "highest_fidelity" here, and `fedhpo_gym.analysis.group`
drops the incumbents of lower levels.
"""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from fedhpo_gym.core.arrays import Floats, Integers
from fedhpo_gym.core.checks import validate_call
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    require_known,
)
from fedhpo_gym.evaluation.records import running_argmin

RULE: Final = "recommended"
"""The rule, unless another is asked for."""


@dataclass(frozen=True, eq=False)
class Trials:
    """What a run tried, in the order in which it was paid for, (N,) each.

    Attributes:
        time_s: simulated seconds when the trial was paid for, never falling.
        value: what is minimised; never NaN.
        level: how much of a course was trained; None where all trials have one fidelity.
        test: the value's counterpart on the test split, or None.
        observed: the noisy values by which incumbents are chosen; None where they are `value`.
        is_course: whether these are steps of one course, each the incumbent until the next.
        violation: total violation of constraints, which comes first; None where there are none.
        recommended: index of the environment's incumbent; None where the record has none.
    """

    time_s: Floats
    value: Floats
    level: Floats | None = None
    test: Floats | None = None
    observed: Floats | None = None
    violation: Floats | None = None
    is_course: bool = False
    recommended: Integers | None = None

    def __post_init__(self) -> None:
        if self.time_s.ndim != 1 or not len(self.time_s):
            raise InvalidArgumentError("`time_s` must have one entry per trial, and at least one")
        for name in ("value", "level", "test", "observed", "violation"):
            array = getattr(self, name)
            if array is not None and array.shape != self.time_s.shape:
                raise InvalidArgumentError(
                    f"`{name}` must have one entry per trial, {self.time_s.shape}, "
                    f"got {array.shape}"
                )
        if any(np.isnan(x).any() for x in (self.value, self.ranked, self.time_s)):
            raise InvalidArgumentError("`value` and `time_s` must not be NaN; leave the trial out")
        if np.any(self.time_s[1:] < self.time_s[:-1]):
            raise InvalidArgumentError("`time_s` must not run backwards; sort the trials")

    @property
    def ranked(self) -> Floats:
        """(N,) what incumbents are chosen by."""
        values = self.value if self.observed is None else self.observed
        if self.violation is None or not self.violation.any():
            return values
        values = np.where(self.violation > 0, 0.0, values)  # of those, violations alone decide
        pairs = np.stack([self.violation, values], axis=1)
        return np.unique(pairs, axis=0, return_inverse=True)[1].astype(np.float64).reshape(-1)


@validate_call
def incumbents(trials: Trials, rule: str = RULE) -> Integers:
    """Return the index of the incumbent after each trial: (N,)."""
    require_known("rule of incumbents", rule, RULES)
    if trials.is_course:
        return np.arange(len(trials.time_s))
    return RULES[rule](trials)


def recommended(trials: Trials) -> Integers:
    """Return the environment's incumbent, and where none is named, the paper's."""
    return highest_fidelity(trials) if trials.recommended is None else trials.recommended


def highest_fidelity(trials: Trials) -> Integers:
    """Return the first of the lowest values of the highest level so far: the paper's rule."""
    if trials.level is None:
        return running_argmin(trials.ranked)
    level = trials.level
    if trials.violation is not None:
        level = np.where(trials.violation > 0, -1.0, level)  # below any that is feasible
    highest = np.maximum.accumulate(level)
    starts = np.flatnonzero(np.diff(highest, prepend=-np.inf) > 0)
    indices = np.empty(len(highest), dtype=np.int64)
    for start, end in zip(starts, [*starts[1:], len(highest)], strict=True):
        is_highest = level[start:end] == highest[start]
        values = np.where(is_highest, trials.ranked[start:end], np.inf)
        # The first trial of a new level is of that level, so it stands if all values are infinite.
        indices[start:end] = start + running_argmin(values)
    return indices


RULES: Final[Mapping[str, Callable[[Trials], Integers]]] = {
    RULE: recommended,
    "highest_fidelity": highest_fidelity,
    "full_fidelity": highest_fidelity,
}
"""Rules by name."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The incumbent of one run over simulated time: a step function, kept where it changes.

    Attributes:
        seed: which run of the agent this is.
        time_s: (T,) simulated seconds at which the incumbent changed, rising strictly.
        value: (T,) its value from then on; lower is better.
        test: (T,) its counterpart on the test split, or None.
        end_s: simulated seconds when the run ended.
        level: (T,) level of the trial that it is, or None where all trials have one fidelity.
        trial: (T,) index of this trial; None where it was not recorded.
        budget_s: simulated seconds that its problem gives; None where it is not stated.
    """

    problem: str
    agent: str
    seed: int
    time_s: Floats
    value: Floats
    test: Floats | None
    end_s: float
    level: Floats | None = None
    trial: Integers | None = None
    budget_s: float | None = None

    @classmethod
    def of(
        cls, problem: str, agent: str, seed: int, trials: Trials, rule: str = RULE
    ) -> "Trajectory":
        """Follow the incumbent of some trials over simulated time."""
        # Of trials that end at the same moment, only the state after the last one counts.
        is_last = np.append(trials.time_s[1:] > trials.time_s[:-1], True)
        time_s, trial = trials.time_s[is_last], incumbents(trials, rule)[is_last]
        is_change = np.diff(trial, prepend=-1) != 0
        time_s, trial = time_s[is_change], trial[is_change]
        test = None if trials.test is None else trials.test[trial]
        level = None if trials.level is None else trials.level[trial]
        value, end_s = trials.value[trial], float(trials.time_s[-1])
        if trials.violation is not None:
            value = np.where(trials.violation[trial] > 0, np.inf, value)
        return cls(problem, agent, seed, time_s, value, test, end_s, level, trial)

    def since(self, level: float) -> "Trajectory":
        """Return the incumbents of at least a level; there are none before the first such trial."""
        if self.level is None:
            return self
        is_high, names = self.level >= level, ("time_s", "value", "test", "level", "trial")
        arrays = {name: getattr(self, name) for name in names}
        selected = {name: array[is_high] for name, array in arrays.items() if array is not None}
        return replace(self, **selected)

    @property
    def final(self) -> float:
        """Value of the incumbent at the end; infinity if there never was one."""
        return float(self.value[-1]) if len(self.value) else float("inf")

    def rows(self) -> list[tuple[str, str, int, float, float]]:
        """Return problem, agent, seed, time and value of each change, and of the run's end."""
        moments = [*zip(self.time_s.tolist(), self.value.tolist(), strict=True)]
        if moments and self.end_s > moments[-1][0]:
            moments.append((self.end_s, moments[-1][1]))
        return [(self.problem, self.agent, self.seed, *moment) for moment in moments]

    def at(self, time_s: Floats) -> Floats:
        """Return the incumbent's value at some times, from when it is paid for; NaN before."""
        values = np.concatenate([[np.nan], self.value])
        return np.asarray(values[np.searchsorted(self.time_s, time_s, side="right")])


FRACTIONS = np.logspace(-3, 0, 200)
"""Shares of a problem's budget at which agents are compared, from a thousandth to all of it."""


@dataclass(frozen=True, eq=False)
class Study:
    """Runs of some agents on some problems, in the order of names and seeds."""

    problems: tuple[str, ...]
    agents: tuple[str, ...]
    runs: Mapping[tuple[str, str], tuple[Trajectory, ...]]

    @property
    def has_budgets(self) -> bool:
        """Whether problems state their budgets, so that no curve depends on the longest run."""
        return all(any(run.budget_s for run in runs) for runs in self.runs.values())

    @cached_property
    def horizons_s(self) -> Mapping[str, float]:
        """The stated budget of each problem, whoever has run; else its longest run here."""
        horizons = {}
        for problem in self.problems:
            runs = [run for agent in self.agents for run in self.of(problem, agent)]
            budgets = [run.budget_s for run in runs if run.budget_s is not None]
            horizons[problem] = max(budgets or [run.end_s for run in runs])
        return horizons

    @classmethod
    def whole(cls, trajectories: Iterable[Trajectory]) -> "tuple[Study, ...]":
        """Sort runs into studies in which every agent has solved every problem; largest first.

        A problem with one agent is in no study.
        """
        by_problem: dict[str, dict[str, dict[int, Trajectory]]] = {}
        for run in trajectories:
            seeds = by_problem.setdefault(run.problem, {}).setdefault(run.agent, {})
            if run.seed in seeds:
                raise InvalidArgumentError(
                    f"runs must be different, but two are of agent {run.agent!r} with seed "
                    f"{run.seed} on {run.problem}; remove one of them"
                )
            seeds[run.seed] = run
        by_agents: dict[tuple[str, ...], list[str]] = {}
        for problem in sorted(by_problem):
            by_agents.setdefault(tuple(sorted(by_problem[problem])), []).append(problem)
        return tuple(
            cls(
                tuple(problems),
                agents,
                {
                    (problem, agent): tuple(
                        run for _, run in sorted(by_problem[problem][agent].items())
                    )
                    for problem in problems
                    for agent in agents
                },
            )
            for agents, problems in sorted(by_agents.items(), key=lambda item: -len(item[1]))
            if len(agents) > 1
        )

    def of(self, problem: str, agent: str) -> tuple[Trajectory, ...]:
        """Return the runs of an agent on a problem."""
        return self.runs[problem, agent]

    def final(self, problem: str, agent: str) -> Floats:
        """Return the values of the final incumbents: (S,), one per seed."""
        return np.array([run.final for run in self.of(problem, agent)])

    def values(self, problem: str, agent: str, fractions: Floats = FRACTIONS) -> Floats:
        """Return incumbents at shares of the problem's budget: (S, T); infinity before the first.

        The trial that crosses the budget counts in full, at its end.
        """
        times = np.where(fractions < 1, fractions * self.horizons_s[problem], np.inf)
        values = np.stack([run.at(times) for run in self.of(problem, agent)])
        return np.where(np.isnan(values), np.inf, values)

    def paired_seeds(self, problem: str) -> tuple[int, ...]:
        """Return the seeds that every agent has on a problem."""
        seeds = [{run.seed for run in self.of(problem, agent)} for agent in self.agents]
        return tuple(sorted(set.intersection(*seeds)))

    def finals_of_means(self) -> Floats:
        """Return mean final incumbents over seeds: (P, A)."""
        return np.array([[self.final(p, a).mean() for a in self.agents] for p in self.problems])

    def finals_of_runs(self) -> Floats:
        """Return final incumbents of all runs whose seed every agent has: (R, A), paired."""
        rows = [
            [next(r.final for r in self.of(p, a) if r.seed == seed) for a in self.agents]
            for p in self.problems
            for seed in self.paired_seeds(p)
        ]
        return np.array(rows, dtype=float).reshape(-1, len(self.agents))


def final_range(runs: Sequence[Trajectory]) -> tuple[float, float]:
    """Return the lowest final value of any run, and the median of the first values; or zeros."""
    finite_values = [run.value[np.isfinite(run.value)] for run in runs]
    firsts = [float(values[0]) for values in finite_values if len(values)]
    finals = [run.final for run in runs if len(run.value) and np.isfinite(run.final)]
    return (min(finals), float(np.median(firsts))) if finals else (0.0, 0.0)


COLUMNS: Final = ("problem", "agent", "seed", "time", "value")
"""What every table has: simulated seconds, and what is minimised."""
OPTIONAL: Final = ("level", "test")
"""What it may have: how much of a course was trained, and the value on the test split."""

_Key = tuple[str, str, int]
T = TypeVar("T")


@validate_call
def read_table(path: Path, rule: str = RULE) -> tuple[Trajectory, ...]:
    """Read a CSV file with a header line and one line per trial, in any order of the runs.

    It has the columns `COLUMNS`, and those of `OPTIONAL` if they are known.
    """
    lines_by_run: dict[_Key, list[dict[str, float]]] = {}
    for key, line in read_lines(path, "table", (COLUMNS, OPTIONAL), _parse_line):
        lines_by_run.setdefault(key, []).append(line)
    if not lines_by_run:
        raise DamagedDataError(f"{path} has no line after its header")
    runs = []
    for key, lines in lines_by_run.items():
        ordered = sorted(lines, key=lambda line: line["time"])
        columns = {name: np.array([line[name] for line in ordered]) for name in lines[0]}
        try:
            trials = Trials(
                columns["time"], columns["value"], columns.get("level"), columns.get("test")
            )
        except FedHPOError as error:
            raise DamagedDataError(f"{path}, run {key}: {error}") from error
        runs.append(Trajectory.of(*key, trials, rule))
    return tuple(runs)


def read_lines(
    path: Path,
    kind: str,
    columns: tuple[Sequence[str], Sequence[str]],
    parse: Callable[[Mapping[str, str | None]], T],
) -> list[T]:
    """Return the parsed lines of a CSV file; `columns` are the required and the optional ones."""
    required, optional = (", ".join(names) for names in columns)
    if path.is_dir():
        raise InvalidArgumentError(
            f"a {kind} must be a CSV file with the columns {required}, and a line per trial, got "
            f"the folder {path}; write the lines of its run records from `fedhpo_gym.load_runs`"
        )
    if not path.is_file():
        raise MissingDataError(f"there is no {kind} {path}; give a CSV file with {required}")
    parsed = []
    with path.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.DictReader(handle, strict=True)
        try:
            names = reader.fieldnames or ()
            legal = {*columns[0]} <= {*names} <= {*columns[0], *columns[1]}
            if not legal or len(set(names)) < len(names):
                raise DamagedDataError(
                    f"{path} must have the columns {required} and may have {optional}, once each, "
                    f"got {', '.join(names)}"
                )
            for line in reader:
                try:
                    parsed.append(parse(line))
                except (TypeError, ValueError) as error:
                    raise DamagedDataError(f"{path}, line {reader.line_num}: {error}") from error
        except (csv.Error, UnicodeDecodeError) as error:
            raise DamagedDataError(f"{path} is no CSV file: {error}") from error
    return parsed


def _parse_line(line: Mapping[str, str | None]) -> tuple[_Key, dict[str, float]]:
    values = {
        name: finite_number(line, name) for name in ("time", "value", *OPTIONAL) if name in line
    }
    return (str(line["problem"]), str(line["agent"]), int(line["seed"] or "")), values


def finite_number(line: Mapping[str, str | None], name: str) -> float:
    """Return the finite number that a field of a table says."""
    with suppress(ValueError):
        if math.isfinite(value := float(line[name] or "")):
            return value
    raise ValueError(f"`{name}` must be a finite number, got {line[name]!r}")
