"""Runs of many agents on many problems, on a common grid of times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedhpo_gym.analysis.trajectories.rules import Numbers
from fedhpo_gym.analysis.trajectories.trajectory import Trajectory
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.typed import checked_types

FRACTIONS = np.logspace(-3, 0, 200)
"""Shares of a problem's budget at which agents are compared, from a thousandth to all of it."""


@dataclass(frozen=True, eq=False)
class Study:
    """Runs of some agents on some problems.

    Attributes:
        problems: names of the problems, sorted.
        agents: names of the agents, sorted.
        runs: trajectories of every problem and agent, in the order of their seeds.
        horizons_s: simulated seconds that a problem has: the longest of its runs.
    """

    problems: tuple[str, ...]
    agents: tuple[str, ...]
    runs: Mapping[tuple[str, str], tuple[Trajectory, ...]]
    horizons_s: Mapping[str, float] = field(init=False)

    def __post_init__(self) -> None:
        """Find how long the runs of each problem are."""
        ends = {
            problem: max(run.end_s for agent in self.agents for run in self.of(problem, agent))
            for problem in self.problems
        }
        object.__setattr__(self, "horizons_s", ends)

    @classmethod
    def whole(cls, trajectories: Iterable[Trajectory]) -> tuple[Study, ...]:
        """Sort runs into studies in which every agent has solved every problem; largest first.

        Ranks of agents mean something only over the same problems, so problems are put together by
        the agents that solved them. A problem with one agent is in no study.

        Raises:
            InvalidArgumentError: two runs have the same problem, agent and seed.
        """
        found: dict[str, dict[str, dict[int, Trajectory]]] = {}
        for run in trajectories:
            seeds = found.setdefault(run.problem, {}).setdefault(run.agent, {})
            if run.seed in seeds:
                raise InvalidArgumentError(
                    f"runs must be different, but two are of agent {run.agent!r} with seed "
                    f"{run.seed} on {run.problem}; remove one of them"
                )
            seeds[run.seed] = run
        by_agents: dict[tuple[str, ...], list[str]] = {}
        for problem in sorted(found):
            by_agents.setdefault(tuple(sorted(found[problem])), []).append(problem)
        return tuple(
            cls(
                tuple(problems),
                agents,
                {
                    (problem, agent): tuple(run for _, run in sorted(found[problem][agent].items()))
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

    def final(self, problem: str, agent: str) -> Numbers:
        """Return the values of the final incumbents: (S,), one per seed."""
        return np.array([run.final for run in self.of(problem, agent)])

    def values(self, problem: str, agent: str, fractions: Numbers = FRACTIONS) -> Numbers:
        """Return incumbents at shares of the problem's budget: (S, T); infinity before the first.

        Infinity ranks an agent that has nothing yet behind all that have something, and level with
        the others that have nothing.
        """
        times = fractions * self.horizons_s[problem]
        values = np.stack([run.at(times) for run in self.of(problem, agent)])
        return np.where(np.isnan(values), np.inf, values)

    def paired_seeds(self, problem: str) -> tuple[int, ...]:
        """Return the seeds that every agent has on a problem."""
        seeds = [{run.seed for run in self.of(problem, agent)} for agent in self.agents]
        return tuple(sorted(set.intersection(*seeds)))

    def finals_of_means(self) -> Numbers:
        """Return mean final incumbents over seeds: (P, A)."""
        return np.array(
            [[self.final(p, a).mean() for a in self.agents] for p in self.problems], dtype=float
        )

    def finals_of_runs(self) -> Numbers:
        """Return final incumbents of all runs whose seed every agent has: (R, A), paired."""
        rows = [
            [next(r.final for r in self.of(p, a) if r.seed == seed) for a in self.agents]
            for p in self.problems
            for seed in self.paired_seeds(p)
        ]
        return np.array(rows, dtype=float).reshape(-1, len(self.agents))


@checked_types
def time_grid(runs: Sequence[Trajectory], points: int = 400) -> Numbers:
    """Return times from the first incumbent of some runs to the end of the longest: (points,).

    Raises:
        InvalidArgumentError: no run has an incumbent, or there are no points.
    """
    first = min((run.time_s[0] for run in runs if len(run.time_s)), default=None)
    if first is None or points < 1:
        raise InvalidArgumentError(
            f"`runs` must hold an incumbent and `points` be at least 1, got {len(runs)} runs and "
            f"{points} points"
        )
    return np.linspace(first, max(run.end_s for run in runs), points)
