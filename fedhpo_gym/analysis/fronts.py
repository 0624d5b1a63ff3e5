"""Judging runs of vector rewards: hypervolume regret over time, and empirical attainment.

Rewards of `MO-` ids are scores of several objectives, higher is better. Here they are errors, their
negatives. Only trials of the highest level of any run on a problem count, as with `full_fidelity`
(`fedhpo_gym.analysis.trajectories.rules`): front and volume would else be of unlike things.

Under noise, an agent presents the trials that are not dominated by what it was told, and they count
with what they truly are, cut off where scores are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fedhpo_gym.analysis.trajectories.rules import Numbers
from fedhpo_gym.analysis.trajectories.scored import Scored
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.evaluation.fronts import growing_volumes, hypervolume, non_dominated

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
    every objective of `scaled`. Under noise it may rise again, see `growing_volumes`.

    Raises:
        MissingDependencyError: the extra `fronts` is not installed.
    """
    errors = scaled(runs)
    corner = np.full(errors[0].shape[1], REFERENCE)
    whole = hypervolume(np.concatenate(errors), corner)
    return [
        1.0 - growing_volumes(own, corner, own if run.told is None else run.told) / whole
        for own, run in zip(errors, runs, strict=True)
    ]
