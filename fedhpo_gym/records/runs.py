"""From run records to trials and fronts, and which arguments tell problems apart.

`fedhpo_gym.analysis` and `fedhpo_gym.studies.regret` read runs as a `JudgedRun` of this module.
Rewards of `MO-` ids are scores, where higher is better; here they are errors, their negatives. Only
trials of the highest level of any run on a problem count, because fronts and volumes of unlike
fidelities cannot be compared. Under noise, an agent presents the trials that its observations do
not dominate, and these count with their noise-free errors, clipped where scores are clipped.
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
    """Feasible trials of a run of vector rewards, in the order of their end.

    Attributes:
        time_s: (N,) simulated seconds when a trial was paid for.
        errors: (N, k) negated rewards; under noise, noise-free, clipped where scores are.
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
        names = tuple(steps[0].objectives)
        if len(names) != rewards.shape[1]:
            names = tuple(f"objective {i + 1}" for i in range(rewards.shape[1]))
        is_noisy = any(step.truth for step in steps)
        trials = cls(
            np.array([step.elapsed_s for step in steps], dtype=np.float64),
            _true_errors(run, rewards) if is_noisy else -rewards,
            np.array([level_of(step.fidelity) for step in steps], dtype=np.float64),
            names,
            -rewards if is_noisy else None,
        )
        return trials.where(np.array([step.extra.get("violation", 0.0) == 0 for step in steps]))

    def where(self, mask: NDArray[np.bool_]) -> "ScoredTrials":
        """Return some of the trials."""
        observed = None if self.observed is None else self.observed[mask]
        return ScoredTrials(
            self.time_s[mask], self.errors[mask], self.level[mask], self.names, observed
        )

    def presented(self) -> Floats:
        """Return (M, k) the errors of the trials that the agent presents as its front."""
        return self.errors[non_dominated(self.errors if self.observed is None else self.observed)]


def _true_errors(run: RunRecord, rewards: Floats) -> Floats:
    """Return (N, k) noise-free objectives, as errors that are clipped where scores are."""
    names = [*run.steps[0].objectives]
    observed = np.array([[step.objectives[n] for n in names] for step in run.steps])
    truth = np.array([[step.true_objectives[n] for n in names] for step in run.steps])
    if observed.shape != rewards.shape:
        raise InvalidArgumentError(
            "`reward` of a noisy run must have an entry per objective to be judged, got "
            f"{rewards.shape[1]} for {names}; see agent {run.header.agent!r}, seed "
            f"{run.header.seed}, on {run.header.id}"
        )
    signs = _objective_signs(rewards, observed)
    return _clip_to_scores(signs * truth, signs * observed, -rewards)


def _objective_signs(rewards: Floats, observed: Floats) -> Floats:
    """Return (k,) -1 for objectives whose scores rise with them, to be maximised, else 1."""
    slopes = ((rewards - rewards[0]) * (observed - observed[0])).sum(axis=0)
    # A score of what is to be low is its negative, and that of 0 is -0.0.
    equal_signs = np.copysign(1.0, rewards[0]) * np.copysign(1.0, observed[0])
    return np.where(np.where(slopes == 0, equal_signs, slopes) > 0, -1.0, 1.0)


def _clip_to_scores(errors: Floats, observed: Floats, scored: Floats) -> Floats:
    """Return noise-free errors, clipped where the scores of the observed ones were clipped."""
    lowest, highest = scored.min(axis=0), scored.max(axis=0)
    # Scores are float32 numbers.
    low = np.where(observed.min(axis=0) < lowest - 1e-6 * np.abs(lowest), lowest, -np.inf)
    high = np.where(observed.max(axis=0) > highest + 1e-6 * np.abs(highest), highest, np.inf)
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
    """Return the settings of a run that belong to the problem, not to the agent."""
    workers = {"workers": header.workers} if header.workers > 1 else {}
    start = {"shared_start": header.shared_start} if header.shared_start else {}
    return {**problem_arguments(header.kwargs), **workers, **start}


def run_arguments(header: Header) -> dict[str, Any]:
    """Return all arguments that tell runs of one id, agent and seed apart."""
    return {**header.kwargs, **problem_of(header)}


def agent_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an environment that belong to the agent."""
    return {name: kwargs[name] for name in OF_THE_AGENT if name in kwargs}


StepDescription: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, float]]

COSTS: Final = ("time_s", "upload_bytes", "download_bytes", "rounds")
"""Costs of a trial that every record may have."""
COST_OBJECTIVES: Final = frozenset(
    {"time_s", "upload_bytes", "download_bytes", "flops", "energy_j"}
)
"""Objectives in which a trial of lower fidelity is better."""


@dataclass(frozen=True, eq=False)
class CourseProgress:
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
    def of(cls, run: RunRecord) -> "CourseProgress | None":
        """Take it from a record; None where its steps are trials."""
        steps = run.steps
        if "step" not in run.final.incumbent:
            return None
        is_scalar = not isinstance(steps[0].reward, Sequence)
        shared = shared_names(steps[0].configuration)
        configurations = [step.configuration for step in steps]
        names = [
            name
            for name in shared
            if all(isinstance(values.get(name), int | float) for values in configurations)
        ]
        return cls(
            np.array([step.elapsed_s for step in steps], dtype=np.float64),
            np.cumsum([step.cost.get("rounds", 1.0) for step in steps]),
            np.cumsum([step.reward for step in steps]) if is_scalar else None,
            {n: np.array([c[n] for c in configurations], np.float64) for n in names},
        )


@dataclass(frozen=True, eq=False)
class JudgedRun:
    """The data of a run record that comparisons and reports need.

    Attributes:
        accuracy: (N,) accuracy of each trial on the test split; None where it is unknown.
        describe_step: returns configuration, fidelity and true objectives of a step, from 0.
        scored: its trials, where rewards are vectors.
        total_costs: total of each of `COSTS` that the record has.
        course: progress of a run of a round environment; else None.
    """

    header: Header
    trials: Trials
    accuracy: Floats | None
    describe_step: Callable[[int], StepDescription]
    scored: ScoredTrials | None = None
    total_costs: Mapping[str, float] = field(default_factory=dict)
    course: CourseProgress | None = None

    @classmethod
    def of(cls, run: RunRecord) -> "JudgedRun":
        """Take the data from a record."""
        steps, is_course = run.steps, "step" in run.final.incumbent
        if lacking := [n for n, step in enumerate(steps, 1) if "val_loss" not in step.objectives]:
            raise InvalidArgumentError(
                f"`objectives` must hold 'val_loss' to be compared; step {lacking[0]} of agent "
                f"{run.header.agent!r} on {run.header.id} does not"
            )
        observed = np.array([step.objectives["val_loss"] for step in steps], dtype=np.float64)
        trials = Trials(
            time_s=np.array([step.elapsed_s for step in steps], dtype=np.float64),
            value=np.array([step.true_objectives["val_loss"] for step in steps], dtype=np.float64),
            # All steps of a course have one level: no agent chose their rounds as a fidelity.
            level=None if is_course else np.array([level_of(step.fidelity) for step in steps]),
            test=_test_metric(run, "loss"),
            observed=observed if any(step.truth for step in steps) else None,
            violation=(
                np.array([step.extra["violation"] for step in steps], dtype=np.float64)
                if "violation" in steps[0].extra
                else None
            ),
            is_course=is_course,
            recommended=np.array([step.best_step - 1 for step in steps], dtype=np.int64),
        )
        return cls(
            header=run.header,
            trials=trials,
            accuracy=_test_metric(run, "accuracy"),
            describe_step=lambda index: (
                steps[index].configuration,
                steps[index].fidelity,
                steps[index].true_objectives,
            ),
            scored=ScoredTrials.of(run),
            total_costs={
                name: float(np.sum([step.cost[name] for step in steps]))
                for name in COSTS
                if name in steps[0].cost
            },
            course=CourseProgress.of(run),
        )


def _test_metric(run: RunRecord, metric: str) -> Floats | None:
    """Return (N,) a metric of the trials on the test split; None where it is unknown."""
    if any(metric not in step.test for step in run.steps):
        return None
    return np.array([step.test[metric] for step in run.steps], dtype=np.float64)


REFERENCE: Final = 1.1
"""Reference value of every objective; the best known front reaches from 0 to 1."""


def at_full_level(runs: Sequence[ScoredTrials]) -> list[ScoredTrials]:
    """Return the trials of the highest level of any run, of each run."""
    if others := [run.names for run in runs if run.names != runs[0].names]:
        raise InvalidArgumentError(
            "`runs` must be of the same objectives, got "
            f"{list(runs[0].names)} and {list(others[0])}"
        )
    highest = max((float(run.level.max()) for run in runs if len(run.level)), default=0.0)
    return [run.where(run.level >= highest) for run in runs]


def scale_errors(runs: Sequence[ScoredTrials]) -> list[Floats]:
    """Return (N, k) errors of each run, from 0 at the best of all runs' front to 1 at its worst.

    Where the front has one value of an objective only, the worst of any trial is 1.
    """
    errors = np.concatenate([run.errors for run in runs])
    front = errors[non_dominated(errors)]
    best, worst = front.min(axis=0), front.max(axis=0)
    worst = np.where(worst > best, worst, errors.max(axis=0))
    width = np.where(worst > best, worst - best, 1.0)
    return [(run.errors - best) / width for run in runs]


def volume_regret(runs: Sequence[ScoredTrials]) -> list[Floats]:
    """Return the hypervolume regret after each trial of each run, (N,): 1 - V(so far) / V(all)."""
    errors = scale_errors(runs)
    corner = np.full(errors[0].shape[1], REFERENCE)
    total = hypervolume(np.concatenate(errors), corner)
    return [
        1.0
        - incumbent_volumes(points, corner, points if run.observed is None else run.observed)
        / total
        for points, run in zip(errors, runs, strict=True)
    ]
