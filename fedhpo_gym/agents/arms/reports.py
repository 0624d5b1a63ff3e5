"""The one place that knows how per-client round environments name what they report.

Observations carry `sampled`: (clients,) 0/1, who trains in the next step. After a step, `info`
carries (clients,) arrays: `val_loss_before`, `val_loss_after` (nats) and `num_val_samples`, zero
for clients that did not train.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.agents.arms.feedback import ArmFeedback
from fedhpo_gym.agents.base import Observation
from fedhpo_gym.errors import InvalidArgumentError

DIVERGED = 2.0
"""What the highest loss of a step is multiplied by, as the loss of a client that diverged."""


def check_unit_rows(space: gym.spaces.Box) -> int:
    """Return the number of coordinates per client of a box in [-1, 1].

    Raises:
        InvalidArgumentError: the box has other bounds.
    """
    if np.any(space.low != -1) or np.any(space.high != 1):
        raise InvalidArgumentError(f"`action_space` must be a box in [-1, 1], got {space}.")
    return int(space.shape[1])


def sampled_clients(observation: Observation) -> NDArray[np.int64]:
    """Return the indices of the clients that train in the next step.

    Raises:
        InvalidArgumentError: the observation does not say.
    """
    return np.flatnonzero(np.asarray(_entry(observation, "sampled", "observation")) > 0.5)


def collect_feedback(
    clients: NDArray[np.int64], arms: NDArray[np.int64], info: Mapping[str, Any]
) -> list[ArmFeedback]:
    """Return what the clients of one step reported.

    Clients without validation data are left out, and so are those that received a model whose loss
    is not finite: that is no fault of what they played. A client that diverged has the highest
    finite loss of the step times `DIVERGED`, so that what it played is punished: left out, an arm
    that diverges would look like one that nobody played.

    Args:
        clients: (k,) indices of the clients that trained.
        arms: (k, factors) what they played.
        info: what the step returned.

    Raises:
        InvalidArgumentError: `info` lacks the clients' losses.
    """
    before, after, weight = (
        np.asarray(_entry(info, name, "info"), dtype=np.float64)[clients]
        for name in ("val_loss_before", "val_loss_after", "num_val_samples")
    )
    usable = np.isfinite(before) & (weight > 0)
    if usable.any():
        finite = np.concatenate([before[usable], after[usable & np.isfinite(after)]])
        after = np.where(np.isfinite(after), after, _worse_than(float(finite.max())))
    return [
        ArmFeedback(
            arms=tuple(int(arm) for arm in arms[i]),
            before=float(before[i]),
            after=float(after[i]),
            weight=float(weight[i]),
            client=int(clients[i]),
        )
        for i in np.flatnonzero(usable)
    ]


def _worse_than(loss: float) -> float:
    return min(DIVERGED * max(loss, 0.0), float(np.finfo(np.float64).max))


def _entry(mapping: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in mapping:
        raise InvalidArgumentError(
            f"`{what}` must have {name!r}, got {sorted(mapping)}; make the environment with "
            "per_client=True."
        )
    return mapping[name]
