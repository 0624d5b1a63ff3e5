"""Judging runs of vector rewards: hypervolume regret over time, and empirical attainment.

Rewards of `MO-` ids are scores of several objectives, higher is better. Here they are errors, their
negatives. Only trials of the highest level of any run on a problem count, as with `full_fidelity`
(`fedhpo_gym.analysis.trajectories.rules`): front and volume would else be of unlike things.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fedhpo_gym.analysis.trajectories.rules import Numbers
from fedhpo_gym.analysis.trajectories.scored import Scored
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.fronts import hypervolume, non_dominated

REFERENCE: Final = 1.1
"""Of every objective, where the best known front reaches from 0 to 1."""


def at_full_level(runs: Sequence[Scored]) -> list[Scored]:
    """Return the trials of the highest level of any run, of each run.

    Raises:
        InvalidArgumentError: runs have other objectives than the first.
    """
    if odd := [run.names for run in runs if run.names != runs[0].names]:
        raise InvalidArgumentError(
            f"`runs` must be of the same objectives, got {list(runs[0].names)} and {list(odd[0])}"
        )
    highest = max((float(run.level.max()) for run in runs if len(run.level)), default=0.0)
    return [run.at_level(highest) for run in runs]


def scaled(runs: Sequence[Scored]) -> list[Numbers]:
    """Return (N, k) errors of each run, on the scale of the best front that all runs know.

    0 is the best of an objective on that front and 1 its worst. Where the front has one value of an
    objective only, the worst of any trial is 1; where all trials have it, it is 0.
    """
    every = np.concatenate([run.errors for run in runs])
    front = every[non_dominated(every)]
    best, worst = front.min(axis=0), front.max(axis=0)
    worst = np.where(worst > best, worst, every.max(axis=0))
    width = np.where(worst > best, worst - best, 1.0)
    return [(run.errors - best) / width for run in runs]


def volume_regret(runs: Sequence[Scored]) -> list[Numbers]:
    """Return the hypervolume regret after each trial of each run: (N,), from 1 down to 0 at best.

    It is 1 - V(trials so far) / V(trials of all runs), with the reference point at `REFERENCE` in
    every objective of `scaled`.

    Raises:
        MissingDependencyError: the extra `fronts` is not installed.
    """
    errors = scaled(runs)
    corner = np.full(errors[0].shape[1], REFERENCE)
    whole = hypervolume(np.concatenate(errors), corner)
    return [1.0 - _volumes(own, corner) / whole for own in errors]


def _volumes(errors: Numbers, corner: Numbers) -> Numbers:
    """Return the volume that the first 1, 2, ... points dominate: (N,)."""
    found, volume = np.zeros(len(errors)), 0.0
    front = np.empty((0, len(corner)))
    for place, point in enumerate(errors):
        if (point < corner).all() and not (front <= point).all(axis=1).any():
            front = np.vstack([front[~(front >= point).all(axis=1)], point])
            volume = hypervolume(front, corner)
        found[place] = volume
    return found
