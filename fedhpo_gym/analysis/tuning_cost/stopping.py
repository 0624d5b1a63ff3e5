"""Early stopping: which epochs of a run count (Prabhu Teja S et al., 2020, section 4.1)."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fedhpo_gym.analysis.stats.ranks import Numbers
from fedhpo_gym.errors import InvalidArgumentError
from fedhpo_gym.typed import Axes, checked_types

PATIENCE = 2
Losses = Annotated[Numbers, Axes(1, 1, nan=True)]


@checked_types
def epochs_run(losses: Losses, patience: int = PATIENCE, min_delta: float = 0.0) -> int:
    """Return how many evaluations a run makes before it is stopped.

    It stops after the evaluation that is the `patience`-th in a row without one that is lower than
    the lowest before by more than `min_delta`. NaN is never lower.

    Args:
        losses: (E,) validation loss, evaluation by evaluation.
        patience: evaluations without improvement that stop a run.
        min_delta: what counts as improvement.

    Returns:
        A number in 1..E; E where the run is not stopped.

    Raises:
        InvalidArgumentError: there is no evaluation, or no patience.
    """
    if not len(losses) or patience < 1:
        raise InvalidArgumentError("`losses` must not be empty and `patience` at least 1")
    lowest, waited = np.inf, 0
    for number, loss in enumerate(losses, start=1):
        if loss < lowest - min_delta:
            lowest, waited = float(loss), 0
        else:
            waited += 1
        if waited >= patience:
            return number
    return len(losses)
