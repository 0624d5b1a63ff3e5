"""From run records to trials and fronts, and what makes two runs runs of one problem.

Rewards of `MO-` ids are scores, higher is better; here they are errors, their negatives. Only
trials of the highest level of any run on a problem count: front and volume would else be of unlike
things. Under noise, an agent presents the trials that are not dominated by what it observed, and
they count with what they truly are, cut off where scores are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.errors import InvalidArgumentError
from fedhpo_gym.evaluation.multi_objective import hypervolume, incumbent_volumes, non_dominated
from fedhpo_gym.records.incumbents import Trials
from fedhpo_gym.records.record import Header, RunRecord
from fedhpo_gym.space.per_client import shared_names


def level_of(fidelity: Mapping[str, Any]) -> float:
    """Return how much of a course a fidelity trains: the product of its numbers."""
    numbers = [value for value in fidelity.values() if not isinstance(value, str)]
    return float(np.prod(np.array(numbers, dtype=np.float64)))


@dataclass(frozen=True, eq=False)
class ScoredTrials:
    """What a run of vector rewards tried and may present: feasible trials, as they were paid for.

    Attributes:
        time_s: (N,) simulated seconds when a trial was paid for.
        errors: (N, k) negated rewards; under noise, the true ones, cut off where scores are.
        level: (N,) how much of a course was trained.
        observed: (N, k) errors as the agent saw them, under noise; else None.
    """

    time_s: Floats
    errors: Floats
    level: Floats
    names: tuple[str, ...]
    observed: Floats | None = None

    @classmethod
    def of(cls, run: RunRecord) -> "ScoredTrials | None":
        """Take the trials of a record; None where rewards are no vectors or steps no trials."""
        steps = run.steps
        if "step" in run.final.incumbent or not isinstance(steps[0].reward, Sequence):
            return None
        rewards = np.array([step.reward for step in steps], dtype=np.float64)
        width, named = rewards.shape[1], tuple(steps[0].objectives)
        names = named if len(named) == width else tuple(f"objective {i + 1}" for i in range(width))
        is_noisy = any(step.truth for step in steps)
        found = cls(
            np.array([step.elapsed_s for step in steps], dtype=np.float64),
            _true_errors(run, rewards) if is_noisy else -rewards,
            np.array([level_of(step.fidelity) for step in steps], dtype=np.float64),
            names,
            -rewards if is_noisy else None,
        )
        return found.where(np.array([step.extra.get("violation", 0.0) == 0 for step in steps]))

    def where(self, kept: NDArray[np.bool_]) -> "ScoredTrials":
        """Return some of the trials."""
        observed = None if self.observed is None else self.observed[kept]
        return ScoredTrials(
            self.time_s[kept], self.errors[kept], self.level[kept], self.names, observed
        )

    def presented(self) -> Floats:
        """Return (M, k) the errors of the trials that the agent presents as its front."""
        return self.errors[non_dominated(self.errors if self.observed is None else self.observed)]


def _true_errors(run: RunRecord, rewards: Floats) -> Floats:
    """Return (N, k) what the objectives truly are, as errors that end where scores end."""
    names = [*run.steps[0].objectives]
    observed = np.array([[step.objectives[n] for n in names] for step in run.steps])
    truth = np.array([[step.true_objectives[n] for n in names] for step in run.steps])
    if observed.shape != rewards.shape:
        raise InvalidArgumentError(
            "`reward` of a noisy run must have an entry per objective to be judged, got "
            f"{rewards.shape[1]} for {names}; see agent {run.header.agent!r}, seed "
            f"{run.header.seed}, on {run.header.id}"
        )
    signs = _signs(rewards, observed)
    return _cut_off(signs * truth, signs * observed, -rewards)


def _signs(rewards: Floats, observed: Floats) -> Floats:
    """Return (k,) -1 of objectives to be maximised, told by how scores rise with them, else 1."""
    slopes = ((rewards - rewards[0]) * (observed - observed[0])).sum(axis=0)
    # A score of what is to be low is its negative, and that of 0 is -0.0.
    still = np.copysign(1.0, rewards[0]) * np.copysign(1.0, observed[0])
    return np.where(np.where(slopes == 0, still, slopes) > 0, -1.0, 1.0)


def _cut_off(errors: Floats, observed: Floats, scored: Floats) -> Floats:
    """Return true errors, cut off where the scores of what was observed were, if they were."""
    ends = scored.min(axis=0), scored.max(axis=0)
    # Scores are float32 numbers.
    low = np.where(observed.min(axis=0) < ends[0] - 1e-6 * np.abs(ends[0]), ends[0], -np.inf)
    high = np.where(observed.max(axis=0) > ends[1] + 1e-6 * np.abs(ends[1]), ends[1], np.inf)
    is_cut = np.isclose(np.clip(observed, low, high), scored, rtol=1e-6, atol=0.0).all(axis=0)
    return np.where(is_cut, np.clip(errors, low, high), errors)


OF_THE_AGENT: Final = (
    "fidelity", "choose_fidelity", "per_client", "report_moves", "reward", "reward_transform",
    "render_mode",
)  # fmt: skip
"""Arguments of an environment that say how an agent sees a problem, not which problem it is."""


def problem_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an environment that belong to the problem."""
    return {name: value for name, value in kwargs.items() if name not in OF_THE_AGENT}


def problem_of(header: Header) -> dict[str, Any]:
    """Return what of a run belongs to the problem: arguments, several workers, a shared start."""
    workers = {"workers": header.workers} if header.workers > 1 else {}
    start = {"shared_start": header.shared_start} if header.shared_start else {}
    return {**problem_arguments(header.kwargs), **workers, **start}


def run_arguments(header: Header) -> dict[str, Any]:
    """Return what tells runs of one id, agent and seed apart: those of the agent, too."""
    return {**header.kwargs, **problem_of(header)}


def agent_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an environment that belong to the agent."""
    return {name: kwargs[name] for name in OF_THE_AGENT if name in kwargs}


Described: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, float]]

COSTS: Final = ("time_s", "upload_bytes", "download_bytes", "rounds")
"""What a trial cost, of every record."""
COST_OBJECTIVES: Final = frozenset(
    {"time_s", "upload_bytes", "download_bytes", "flops", "energy_j"}
)
"""Objectives in which a trial of lower fidelity is better."""


@dataclass(frozen=True, eq=False)
class Course:
    """A run of a round environment: one course, tuned while it is trained.

    Attributes:
        time_s: (N,) simulated seconds after each step.
        rounds: (N,) rounds that were trained by then.
        returns: (N,) sum of the rewards so far; None where rewards are vectors.
        schedule: (N,) values of each numeric hyperparameter that all clients share.
    """

    time_s: Floats
    rounds: Floats
    returns: Floats | None
    schedule: Mapping[str, Floats]

    @classmethod
    def of(cls, run: RunRecord) -> "Course | None":
        """Take it from a record; None where its steps are trials."""
        steps = run.steps
        if "step" not in run.final.incumbent:
            return None
        is_scalar = not isinstance(steps[0].reward, Sequence)
        named = shared_names(steps[0].configuration)
        configurations = [step.configuration for step in steps]
        names = [
            name
            for name in named
            if all(isinstance(one.get(name), int | float) for one in configurations)
        ]
        return cls(
            np.array([step.elapsed_s for step in steps], dtype=np.float64),
            np.cumsum([step.cost.get("rounds", 1.0) for step in steps]),
            np.cumsum([step.reward for step in steps]) if is_scalar else None,
            {n: np.array([one[n] for one in configurations], np.float64) for n in names},
        )


@dataclass(frozen=True, eq=False)
class JudgedRun:
    """What comparisons and reports need of a run record.

    Attributes:
        accuracy: (N,) accuracy of each trial on the test split; None where it is not known.
        described: returns configuration, fidelity and true objectives of a step, from 0.
        scored: all of its scores, where rewards are vectors.
        spent: total of each of `COSTS` that the record says.
        course: what is said of a run of a round environment; else None.
    """

    header: Header
    trials: Trials
    accuracy: Floats | None
    described: Callable[[int], Described]
    scored: ScoredTrials | None = None
    spent: Mapping[str, float] = field(default_factory=dict)
    course: Course | None = None

    @classmethod
    def of(cls, run: RunRecord) -> "JudgedRun":
        """Take from a record what comparisons and reports need."""
        steps, of_rounds = run.steps, "step" in run.final.incumbent
        if lacking := [n for n, step in enumerate(steps, 1) if "val_loss" not in step.objectives]:
            raise InvalidArgumentError(
                f"`objectives` must hold 'val_loss' to be compared; step {lacking[0]} of agent "
                f"{run.header.agent!r} on {run.header.id} does not"
            )
        observed = np.array([step.objectives["val_loss"] for step in steps], dtype=np.float64)
        trials = Trials(
            time_s=np.array([step.elapsed_s for step in steps], dtype=np.float64),
            value=np.array([step.true_objectives["val_loss"] for step in steps], dtype=np.float64),
            # All steps of a course have one level: their rounds are no fidelity that was chosen.
            level=None if of_rounds else np.array([level_of(step.fidelity) for step in steps]),
            test=_tested(run, "loss"),
            observed=observed if any(step.truth for step in steps) else None,
            violation=(
                np.array([step.extra["violation"] for step in steps], dtype=np.float64)
                if "violation" in steps[0].extra
                else None
            ),
            is_course=of_rounds,
            recommended=np.array([step.best_step - 1 for step in steps], dtype=np.int64),
        )
        return cls(
            header=run.header,
            trials=trials,
            accuracy=_tested(run, "accuracy"),
            described=lambda place: (
                steps[place].configuration,
                steps[place].fidelity,
                steps[place].true_objectives,
            ),
            scored=ScoredTrials.of(run),
            spent={
                name: float(np.sum([step.cost[name] for step in steps]))
                for name in COSTS
                if name in steps[0].cost
            },
            course=Course.of(run),
        )


def _tested(run: RunRecord, metric: str) -> Floats | None:
    """Return (N,) a metric of the trials on the test split; None where it is not known."""
    if any(metric not in step.test for step in run.steps):
        return None
    return np.array([step.test[metric] for step in run.steps], dtype=np.float64)


REFERENCE: Final = 1.1
"""Reference value of every objective; the best known front reaches from 0 to 1."""


def at_full_level(runs: Sequence[ScoredTrials]) -> list[ScoredTrials]:
    """Return the trials of the highest level of any run, of each run."""
    if odd := [run.names for run in runs if run.names != runs[0].names]:
        raise InvalidArgumentError(
            f"`runs` must be of the same objectives, got {list(runs[0].names)} and {list(odd[0])}"
        )
    highest = max((float(run.level.max()) for run in runs if len(run.level)), default=0.0)
    return [run.where(run.level >= highest) for run in runs]


def scaled(runs: Sequence[ScoredTrials]) -> list[Floats]:
    """Return (N, k) errors of each run, from 0 at the best of all runs' front to 1 at its worst.

    Where the front has one value of an objective only, the worst of any trial is 1.
    """
    every = np.concatenate([run.errors for run in runs])
    front = every[non_dominated(every)]
    best, worst = front.min(axis=0), front.max(axis=0)
    worst = np.where(worst > best, worst, every.max(axis=0))
    width = np.where(worst > best, worst - best, 1.0)
    return [(run.errors - best) / width for run in runs]


def volume_regret(runs: Sequence[ScoredTrials]) -> list[Floats]:
    """Return the hypervolume regret after each trial of each run, (N,): 1 - V(so far) / V(all)."""
    errors = scaled(runs)
    corner = np.full(errors[0].shape[1], REFERENCE)
    whole = hypervolume(np.concatenate(errors), corner)
    return [
        1.0 - incumbent_volumes(own, corner, own if run.observed is None else run.observed) / whole
        for own, run in zip(errors, runs, strict=True)
    ]
