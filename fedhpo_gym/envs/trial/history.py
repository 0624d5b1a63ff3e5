"""The trials of an episode and the best among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.evaluation.records import Fidelity
from fedhpo_gym.space import Value


@dataclass(frozen=True, eq=False)
class Trial:
    """One function evaluation of an episode.

    Attributes:
        number: 1 for the first trial.
        configuration: what was tried.
        fidelity: at which fidelity.
        action: (n,) the action.
        values: value of each objective.
        elapsed_s: simulated seconds since reset, this trial included.
        incumbent: number of the best trial so far.
    """

    number: int
    configuration: Mapping[str, Value]
    fidelity: Fidelity
    action: NDArray[np.float32]
    values: Mapping[str, float]
    elapsed_s: float
    incumbent: int
