"""Regret of recorded runs, computed from stored numbers after the runs.

Reports, `fedhpo-gym regret` and `load_runs` use it. The environment of a record is made again, and
its truth compares recommended configurations with the best feasible one. Regret is unknown where
courses are really trained, because nobody has evaluated all configurations there.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.analysis.problems import ReferenceValues
from fedhpo_gym.core.errors import FedHPOError, InvalidArgumentError, OffGridError
from fedhpo_gym.objectives import Objective
from fedhpo_gym.records.record import Header, RunRecord
from fedhpo_gym.records.runs import COST_OBJECTIVES, ScoredTrials, level_of
from fedhpo_gym.space import SearchSpace
from fedhpo_gym.studies.environments import MANY_TASK_KINDS, kind_of_entry_point, remake_environment
from fedhpo_gym.studies.replay import former_fingerprints, from_stored_numbers


@dataclass(frozen=True, eq=False)
class Regret:
    """Regret after each of T trials, (T,) each; infinite, or relative 1, if none is feasible."""

    elapsed_s: NDArray[np.float64]
    regret: NDArray[np.float64]
    relative: NDArray[np.float64]


def regret_of(
    record: RunRecord,
    own: Mapping[str, Objective] | None = None,
    named: Mapping[str, Any] | None = None,
) -> Regret:
    """Return the regret of what a run recommends; docs/regret.md defines it.

    After a trial, a run recommends the configuration of its incumbent. Its value at the task's full
    fidelity, which stored numbers have for any fidelity of the run, is compared with the best
    feasible one there. Where evaluations were noisy, the noise-free value counts.
    """
    [truth] = _read_attributes(record.header, record.header.spec, ("full_truth",), own, named)
    steps, step_of_trial = np.unique([step.best_step for step in record.steps], return_inverse=True)
    incumbents = [record.steps[number - 1] for number in steps.tolist()]
    regret, relative = _regret_at(truth, [step.configuration for step in incumbents])
    return Regret(_elapsed_s(record), regret[step_of_trial], relative[step_of_trial])


def hypervolume_regret_of(
    record: RunRecord,
    names: Sequence[str] | None = None,
    own: Mapping[str, Objective] | None = None,
    named: Mapping[str, Any] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return times, and the (T,) shares of the known hypervolume that are missing then."""
    header, steps = record.header, record.steps
    recorded_names = [*steps[0].objectives]
    front_names = recorded_names if names is None else list(names)
    truth = _truth_of_front(header, recorded_names, own, named)
    truth.ideal(front_names)  # an unknown name is an error of the caller, not of the record
    values = [[step.true_objectives[name] for name in front_names] for step in steps]
    observed = [[step.objectives[name] for name in front_names] for step in steps]
    # Infeasible trials are on no front.
    counts = np.array([step.extra.get("violation", 0.0) == 0 for step in steps])
    counts &= _may_be_on_front(truth, np.array([level_of(step.fidelity) for step in steps]))
    rows = (np.where(counts[:, None], rows_of, np.nan) for rows_of in (values, observed))
    return _elapsed_s(record), truth.hypervolume_regret(next(rows), front_names, next(rows))


def _truth_of_front(
    header: Header,
    names: Sequence[str],
    own: Mapping[str, Objective] | None = None,
    named: Mapping[str, Any] | None = None,
) -> Any:
    """Return the `Truth` of a front: of full fidelity, or of all where a cost is an objective."""
    if not any(name in COST_OBJECTIVES for name in names):
        return _read_attributes(header, header.spec, ("full_truth",), own, named)[0]
    kwargs = {name: value for name, value in header.kwargs.items() if name != "fidelity"}
    return _read_attributes(header, {**header.spec, "kwargs": kwargs}, ("truth",), own, named)[0]


def _may_be_on_front(truth: Any, level: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which trials, by (T,) levels, can be on a front: all where no fidelity is fixed."""
    return level >= (level_of(truth.fidelity) if truth.fidelity else 0.0)


def _volume_regret(
    header: Header, named: Mapping[str, Any] | None, run: ScoredTrials
) -> NDArray[np.float64]:
    """Return the hypervolume regret of any run of a problem."""
    truth = _truth_of_front(header, run.names, named=named)
    signs = [1.0 if objective.minimize else -1.0 for objective in truth.objectives]
    if run.errors.shape[1] != len(signs):
        raise InvalidArgumentError(
            f"`reward` of a run on {header.id} must have {len(signs)} numbers, as it has "
            f"objectives, got {run.errors.shape[1]}; leave out the record of {header.agent!r}"
        )
    counts = _may_be_on_front(truth, run.level)[:, None]
    rows = (run.errors, run.errors if run.observed is None else run.observed)
    values, observed = (np.where(counts, objective * signs, np.nan) for objective in rows)
    return np.asarray(truth.hypervolume_regret(values, observed=observed))


def known_of(
    header: Header,
    named: Mapping[str, Any] | None = None,
    warn: Callable[[str], object] = lambda _: None,
) -> ReferenceValues | None:
    """Return the reference values of the problem of a run, for a report.

    Args:
        header: of the run.
        named: what a record may not decide, such as `{"algorithm": "module:Class"}`.
        warn: called with the reason why they are unknown, where numbers may be stored.
    """
    if not may_be_known(header):
        return None
    try:
        truth, budget_s = _read_attributes(
            header, header.spec, ("full_truth", "budget_s"), named=named
        )
    except FedHPOError as error:
        warn(f"what can be reached on {header.id} is unknown: {error}")
        return None
    best = float(truth.best[0])
    return ReferenceValues(
        truth.objectives[0].name,
        best,
        truth.typical,
        truth.exact,
        budget_s,
        partial(_regret_at, truth),
        None if "reward_transform" in header.kwargs else partial(_volume_regret, header, named),
    )


def _regret_at(truth: Any, configurations: Sequence[Mapping[str, Any]]) -> Any:
    """Return regret and relative regret of recorded configurations, which may be invalid."""
    for configuration in configurations:
        validate_values(truth.search_space, configuration)
    return truth.regret_at(configurations)


def validate_values(space: SearchSpace, configuration: Mapping[str, Any]) -> None:
    """Refuse values of a record that a search space does not have; other names may be there."""
    for dimension in space.dimensions:
        if dimension.name in configuration:
            with suppress(OffGridError):  # such a value stands for the nearest point of the grid
                dimension.validate(configuration[dimension.name])


def may_be_known(header: Header) -> bool:
    """Return whether a run was on stored numbers of one problem, which determine the best value."""
    instances = header.kwargs.get("instances")
    kind = kind_of_entry_point(header.spec.get("entry_point"))
    return from_stored_numbers(header) and (instances is None or kind in MANY_TASK_KINDS)


def _read_attributes(
    header: Header,
    spec: Mapping[str, Any],
    names: Sequence[str],
    own: Mapping[str, Objective] | None = None,
    named: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Make the environment of a run again, and return some of its attributes."""
    # Environments that train would load data or start another program, and have no truth.
    if not from_stored_numbers(header):
        raise InvalidArgumentError(
            f"`record` must be of trials that stored numbers answered, got {header.id} with "
            f"backend {header.kwargs.get('backend')!r}: nobody knows what courses that are trained "
            "can reach"
        )
    with closing(remake_environment(header.id, spec, own, named)) as env:
        present = env.reset(seed=header.seed)[1]["fingerprint"]
        if header.fingerprint not in (present, *former_fingerprints(env)):
            raise InvalidArgumentError(
                f"`record` must be of the numbers that are stored now, {present!r}, got one of "
                f"{header.fingerprint!r}; run its agent again"
            )
        return [env.get_wrapper_attr(name) for name in names]


def _elapsed_s(record: RunRecord) -> NDArray[np.float64]:
    return np.array([step.elapsed_s for step in record.steps])
