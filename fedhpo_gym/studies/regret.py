"""Regret of recorded runs: computed afterwards, where stored numbers know what can be reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.analysis.records import RunRecord
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.objectives import Objective
from fedhpo_gym.studies.environments import remake_environment


@dataclass(frozen=True, eq=False)
class Regret:
    """What the incumbents of a run lack, after each of its T trials.

    Attributes:
        elapsed_s: (T,) simulated seconds since reset.
        regret: (T,) of the incumbent, in the unit of the first objective.
        normalised: (T,) of the incumbent, in [0, 1]: 1 is what a random trial has.
    """

    elapsed_s: NDArray[np.float64]
    regret: NDArray[np.float64]
    normalised: NDArray[np.float64]


def regret_of(record: RunRecord, own: Mapping[str, Objective] | None = None) -> Regret:
    """Return the regret of a run's incumbents; see `Truth` of `fedhpo_gym.envs.trial.truth`.

    Best is what the run's own actions could ask for: where its fidelity is fixed, at that fidelity.
    Where evaluations were noisy, what the incumbents truly are counts.

    Args:
        record: the run.
        own: see `fedhpo_gym.studies.replay.replay`.

    Raises:
        UnknownNameError: the record's environment is not registered.
        InvalidArgumentError: the record's spec cannot be trusted, or nobody knows what can be
            reached: a course is trained, step by step or by the backend "raw".
        MissingDataError: the stored numbers are not on this machine.
    """
    truth = truth_of_run(record, own)
    name = truth.objectives[0].name
    values = [record.steps[step.best_step - 1].true_objectives[name] for step in record.steps]
    return Regret(_elapsed_s(record), truth.regret(values), truth.normalised_regret(values))


def hypervolume_regret_of(
    record: RunRecord,
    names: Sequence[str] | None = None,
    own: Mapping[str, Objective] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of the known hypervolume that is missing after each trial of a run.

    Args:
        record: the run.
        names: objectives that count; all of the run's by default.
        own: see `fedhpo_gym.studies.replay.replay`.

    Returns:
        (T,) simulated seconds since reset, and (T,) shares; see `Truth.hypervolume_regret`.

    Raises:
        UnknownNameError: the run has no such objective; else see `regret_of`.
        InvalidArgumentError: see `regret_of`.
        MissingDataError: see `regret_of`.
        MissingDependencyError: the extra `fronts` is not installed.
    """
    truth = truth_of_run(record, own)
    chosen = [one.name for one in truth.objectives] if names is None else list(names)
    truth.front(chosen)  # an unknown name is said before a record is blamed
    values = [[step.true_objectives[name] for name in chosen] for step in record.steps]
    return _elapsed_s(record), truth.hypervolume_regret(values, chosen)


def truth_of_run(record: RunRecord, own: Mapping[str, Objective] | None = None) -> Any:
    """Return the `Truth` of the episode that a record holds; see `regret_of` for errors."""
    header = record.header
    with closing(remake_environment(header.id, header.spec, own)) as env:
        env.reset(seed=header.seed)
        if not env.has_wrapper_attr("truth"):
            raise InvalidArgumentError(
                f"`record` must be of a FedHPO-* id of trials, got {header.id}: nobody knows what "
                "courses that are trained step by step can reach"
            )
        return env.get_wrapper_attr("truth")


def _elapsed_s(record: RunRecord) -> NDArray[np.float64]:
    return np.array([step.elapsed_s for step in record.steps])
