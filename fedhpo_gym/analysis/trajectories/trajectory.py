"""The incumbent of one run over simulated time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.analysis.trajectories.rules import Numbers, Trials, incumbents


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The incumbent of one run over simulated time: a step function, kept where it changes.

    Attributes:
        problem: name of what was solved.
        agent: who solved it.
        seed: which run of the agent this is.
        time_s: (T,) simulated seconds at which the incumbent changed, rising strictly.
        value: (T,) its value from then on; lower is better.
        test: (T,) its counterpart on the test split, or None.
        end_s: simulated seconds when the run ended.
        level: (T,) level of the trial that it is, or None where all trials have one fidelity.
    """

    problem: str
    agent: str
    seed: int
    time_s: Numbers
    value: Numbers
    test: Numbers | None
    end_s: float
    level: Numbers | None = None

    @classmethod
    def of(
        cls, problem: str, agent: str, seed: int, trials: Trials, rule: str = "highest_fidelity"
    ) -> Trajectory:
        """Follow the incumbent of some trials; see `fedhpo_gym.analysis.trajectories.rules`.

        Where several trials were paid for at one moment, the incumbent after the last one holds.

        Raises:
            UnknownNameError: there is no such rule.
        """
        places = incumbents(trials, rule)
        is_last = np.append(trials.time_s[1:] > trials.time_s[:-1], True)
        kept, found = np.flatnonzero(is_last), places[is_last]
        changed = np.diff(found, prepend=-1) != 0
        moments, found = trials.time_s[kept[changed]], found[changed]
        test = None if trials.test is None else trials.test[found]
        level = None if trials.level is None else trials.level[found]
        value, end_s = trials.value[found], float(trials.time_s[-1])
        if trials.violation is not None:
            value = np.where(trials.violation[found] > 0, np.inf, value)
        return cls(problem, agent, seed, moments, value, test, end_s, level)

    def since(self, level: float) -> Trajectory:
        """Return the incumbents of at least a level; there are none before the first such trial."""
        if self.level is None:
            return self
        counts = self.level >= level
        test = None if self.test is None else self.test[counts]
        return replace(
            self, time_s=self.time_s[counts], value=self.value[counts], test=test,
            level=self.level[counts],
        )  # fmt: skip

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

    def at(self, time_s: Numbers) -> Numbers:
        """Return the incumbent's value at some times; NaN before there is one.

        A trial counts from the moment it is paid for; the last value holds after the end.
        """
        return _stepped(self.time_s, self.value, time_s)

    def test_at(self, time_s: Numbers) -> Numbers:
        """Return the test value of the incumbent at some times; NaN where it is unknown."""
        test = np.full_like(self.value, np.nan) if self.test is None else self.test
        return _stepped(self.time_s, test, time_s)


def _stepped(time_s: Numbers, value: Numbers, at: Numbers) -> NDArray[np.float64]:
    values: NDArray[np.float64] = np.concatenate([[np.nan], value])
    return values[np.searchsorted(time_s, at, side="right")]
