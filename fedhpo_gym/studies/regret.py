"""Regret of recorded runs: computed afterwards, where stored numbers know what can be reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.analysis.problems import Known
from fedhpo_gym.analysis.records import Header, RunRecord
from fedhpo_gym.analysis.trajectories.runs import problem_arguments
from fedhpo_gym.errors import FedHPOError, InvalidArgumentError
from fedhpo_gym.objectives import Objective
from fedhpo_gym.studies.environments import remake_environment
from fedhpo_gym.studies.replay import former_fingerprints, from_stored_numbers


@dataclass(frozen=True, eq=False)
class Regret:
    """What the incumbents of a run lack, after each of its T trials.

    Attributes:
        elapsed_s: (T,) simulated seconds since reset.
        regret: (T,) of the incumbent, in the unit of the first objective.
        relative: (T,) of the incumbent, in [0, 1]: 1 is what a random trial has.
    """

    elapsed_s: NDArray[np.float64]
    regret: NDArray[np.float64]
    relative: NDArray[np.float64]


def regret_of(
    record: RunRecord,
    own: Mapping[str, Objective] | None = None,
    named: Mapping[str, Any] | None = None,
) -> Regret:
    """Return the regret of a run's incumbents; see `Truth` of `fedhpo_gym.envs.trial.truth`.

    Best is what the run's own actions could ask for: where its fidelity is fixed, at that fidelity.
    Where evaluations were noisy, what the incumbents truly are counts.

    Args:
        record: the run.
        own: see `fedhpo_gym.studies.replay.replay`.
        named: likewise.

    Raises:
        UnknownNameError: the record's environment is not registered.
        InvalidArgumentError: the record's spec cannot be trusted, or nobody knows what can be
            reached: a course is trained, step by step or by the backend "raw".
        MissingDataError: the stored numbers are not on this machine.
    """
    truth = truth_of_run(record, own, named)
    name = truth.objectives[0].name
    values = [record.steps[step.best_step - 1].true_objectives[name] for step in record.steps]
    return Regret(_elapsed_s(record), truth.regret(values), truth.relative_regret(values))


def hypervolume_regret_of(
    record: RunRecord,
    names: Sequence[str] | None = None,
    own: Mapping[str, Objective] | None = None,
    named: Mapping[str, Any] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of the known hypervolume that is missing after each trial of a run.

    Args:
        record: the run.
        names: objectives that count; all of the run's by default.
        own: see `fedhpo_gym.studies.replay.replay`.
        named: likewise.

    Returns:
        (T,) simulated seconds since reset, and (T,) shares; see `Truth.hypervolume_regret`.

    Raises:
        UnknownNameError: the run has no such objective; else see `regret_of`.
        InvalidArgumentError: see `regret_of`.
        MissingDataError: see `regret_of`.
        MissingDependencyError: the extra `fronts` is not installed.
    """
    truth = truth_of_run(record, own, named)
    chosen = [one.name for one in truth.objectives] if names is None else list(names)
    truth.front(chosen)  # an unknown name is said before a record is blamed
    values = [[step.true_objectives[name] for name in chosen] for step in record.steps]
    told = [[step.objectives[name] for name in chosen] for step in record.steps]
    return _elapsed_s(record), truth.hypervolume_regret(values, chosen, told)


def truth_of_run(
    record: RunRecord,
    own: Mapping[str, Objective] | None = None,
    named: Mapping[str, Any] | None = None,
) -> Any:
    """Return the `Truth` of the episode that a record holds; see `regret_of` for errors."""
    return _truth_of(record.header, record.header.spec, own, named)


def known_of(header: Header) -> Known | None:
    """Return what stored numbers know of the problem of a run, for a report.

    Best is what any agent could ask for on the problem, whatever fidelities its own actions had.

    Args:
        header: of a run's record.

    Returns:
        None where a course is trained, where instances are drawn, or where the numbers that
        answered are not on this machine.
    """
    kept = problem_arguments(header.kwargs)
    if not from_stored_numbers(header) or kept.get("instances") is not None:
        return None
    dropped = [name for name in kept if name.startswith("reward") or name == "constraints"]
    kwargs = {name: value for name, value in kept.items() if name not in dropped}
    spec = {
        **header.spec,
        "kwargs": {**kwargs, "objectives": ["val_loss"]},
        "additional_wrappers": [],
    }
    try:
        truth = _truth_of(header, spec)
    except FedHPOError:
        return None
    losses = truth.values[:, 0]
    return Known(float(losses.min()), float(np.median(losses)), truth.exact)


def _truth_of(
    header: Header,
    spec: Mapping[str, Any],
    own: Mapping[str, Objective] | None = None,
    named: Mapping[str, Any] | None = None,
) -> Any:
    # What trains would load its data, or start another program, and knows no truth then.
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
        return env.get_wrapper_attr("truth")


def _elapsed_s(record: RunRecord) -> NDArray[np.float64]:
    return np.array([step.elapsed_s for step in record.steps])
