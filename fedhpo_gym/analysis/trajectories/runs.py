"""From run records to trials, and what makes two runs runs of one problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from fedhpo_gym.analysis.records import Header, RunRecord
from fedhpo_gym.analysis.trajectories.rules import Numbers, Places, Trials
from fedhpo_gym.analysis.trajectories.scored import Scored, level_of
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.typed import checked_types

OF_THE_AGENT: Final = (
    "fidelity", "per_client", "report_moves", "reward", "reward_transform", "render_mode",
)  # fmt: skip
"""Arguments of an environment that say how an agent sees a problem, not which problem it is."""


def problem_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an environment that belong to the problem."""
    return {name: value for name, value in kwargs.items() if name not in OF_THE_AGENT}


def problem_of(header: Header) -> dict[str, Any]:
    """Return what of a run belongs to the problem: arguments, and simulated workers if several."""
    found = problem_arguments(header.kwargs)
    return {**found, "workers": header.workers} if header.workers > 1 else found


def agent_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an environment that belong to the agent."""
    return {name: kwargs[name] for name in OF_THE_AGENT if name in kwargs}


COSTS: Final = ("time_s", "upload_bytes", "download_bytes", "rounds")
"""What a trial cost, of every record."""


@dataclass(frozen=True, eq=False)
class Course:
    """A run of a round environment: one course, tuned while it is trained.

    Attributes:
        time_s: (N,) simulated seconds after each step.
        rounds: (N,) rounds that were trained by then.
        returns: (N,) sum of the rewards so far; None where rewards are vectors.
        schedule: (N,) values of each numeric hyperparameter, in natural units; what single clients
            have is left out.
    """

    time_s: Numbers
    rounds: Numbers
    returns: Numbers | None
    schedule: Mapping[str, Numbers]

    @classmethod
    def of(cls, run: RunRecord) -> Course | None:
        """Take it from a record; None where its steps are trials."""
        steps = run.steps
        if "step" not in run.final.incumbent:
            return None
        is_scalar = not isinstance(steps[0].reward, Sequence)
        names = [n for n, v in steps[0].configuration.items() if is_scheduled(n, v)]
        return cls(
            np.array([step.elapsed_s for step in steps], dtype=np.float64),
            np.cumsum([step.cost.get("rounds", 1.0) for step in steps]),
            np.cumsum([step.reward for step in steps]) if is_scalar else None,
            {n: np.array([step.configuration[n] for step in steps], np.float64) for n in names},
        )


def is_scheduled(name: str, value: object) -> bool:
    """Return whether a value of a configuration is drawn over the rounds of a course."""
    return "@" not in name and isinstance(value, int | float)


@dataclass(frozen=True, eq=False)
class JudgedRun:
    """What a judge reads of a run record.

    Attributes:
        header: what was run.
        trials: what the run tried.
        accuracy: (N,) accuracy of each trial on the test split.
        word: what a step is called: "trial" or "step".
        described: returns configuration and fidelity of a step, by its number from 0.
        scored: all of its scores, where rewards are vectors.
        recommended: (N,) number, from 0, of the environment's incumbent after each trial.
        spent: total of each of `COSTS` that the record says.
        course: what is said of a run of a round environment; else None.
    """

    header: Header
    trials: Trials
    accuracy: Numbers
    word: str
    described: Callable[[int], tuple[Mapping[str, Any], Mapping[str, Any]]]
    scored: Scored | None = None
    recommended: Places = field(default_factory=lambda: np.zeros(0, np.int64))
    spent: Mapping[str, float] = field(default_factory=dict)
    course: Course | None = None

    @classmethod
    def of(cls, run: RunRecord) -> JudgedRun:
        """Take from a record what a judge reads.

        Raises:
            InvalidArgumentError: validation loss is not among the objectives.
        """
        steps = run.steps
        return cls(
            header=run.header,
            trials=trials_of_run(run),
            accuracy=np.array([step.test["accuracy"] for step in steps], dtype=np.float64),
            word="step" if "step" in run.final.incumbent else "trial",
            described=lambda place: (steps[place].configuration, steps[place].fidelity),
            scored=Scored.of(run),
            recommended=np.array([step.best_step - 1 for step in steps], dtype=np.int64),
            spent={
                name: float(np.sum([step.cost[name] for step in steps]))
                for name in COSTS
                if name in steps[0].cost
            },
            course=Course.of(run),
        )


@checked_types
def trials_of_run(run: RunRecord) -> Trials:
    """Return what a run tried: validation loss of every step, and its loss on the test split.

    A step of a round environment brings one course further. Its rounds are no fidelity that was
    chosen, so all of its steps have one level. Where evaluations were noisy, the values are the
    true ones, and the incumbent is chosen by what the agent was told.

    Raises:
        InvalidArgumentError: validation loss is not among the objectives.
    """
    steps = run.steps
    if lacking := [n for n, step in enumerate(steps, 1) if "val_loss" not in step.objectives]:
        raise InvalidArgumentError(
            f"`objectives` must hold 'val_loss' to be compared; step {lacking[0]} of agent "
            f"{run.header.agent!r} on {run.header.id} does not"
        )
    of_rounds = "step" in run.final.incumbent
    return Trials(
        time_s=np.array([step.elapsed_s for step in steps], dtype=np.float64),
        value=np.array([step.true_objectives["val_loss"] for step in steps], dtype=np.float64),
        level=None if of_rounds else np.array([level_of(step.fidelity) for step in steps]),
        test=np.array([step.test["loss"] for step in steps], dtype=np.float64),
        told=(
            np.array([step.objectives["val_loss"] for step in steps], dtype=np.float64)
            if any(step.truth for step in steps)
            else None
        ),
        violation=(
            np.array([step.extra["violation"] for step in steps], dtype=np.float64)
            if "violation" in steps[0].extra
            else None
        ),
        is_course=of_rounds,
    )
