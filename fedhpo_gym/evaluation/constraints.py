"""Limits on objectives: how they are said, and by how much values exceed them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.core.checks import as_number, shown
from fedhpo_gym.core.errors import InvalidArgumentError, require_known

Constraints: TypeAlias = Mapping[str, float | Mapping[str, float]]
Numbers = NDArray[np.float64]


def read_constraints(
    objectives: Sequence[Any], constraints: Constraints | None
) -> dict[int, tuple[float, float]]:
    """Return limit and weight of each constraint, by the position of its objective."""
    names = [objective.name for objective in objectives]
    found = {}
    for name, constraint in _checked(constraints).items():
        require_known("constraint on the chosen `objectives`", name, names)
        place = names.index(name)
        limit, _ = found[place] = _limit_and_weight(name, constraint)
        low, high = objectives[place].bounds
        if (limit < low) if objectives[place].minimize else (limit > high):
            raise InvalidArgumentError(
                f"limit of constraint {name!r} must be one that can be kept: values are in "
                f"[{low:g}, {high:g}], got {limit:g}; `fedhpo-gym show ID` lists limits"
            )
    return found


def violations(
    objectives: Sequence[Any], constraints: Constraints | None, values: Numbers
) -> Numbers:
    """Return the total violation of each of (..., m) values; 0 where a trial is feasible.

    It is the sum of what exceeds the limits, each in units of its objective's bounds, so that no
    unit decides which of two infeasible trials is nearer. NaN exceeds every limit without end.
    """
    total = np.zeros(values.shape[:-1])
    for column, (limit, _) in read_constraints(objectives, constraints).items():
        low, high = objectives[column].bounds
        excess = values[..., column] - limit
        excess = (excess if objectives[column].minimize else -excess) / (high - low)
        total = total + np.where(np.isnan(excess), np.inf, np.maximum(excess, 0.0))
    return total


def is_better(violation: Numbers, error: Numbers, than: tuple[Numbers, Numbers]) -> NDArray[Any]:
    """Return where trials take the place of incumbents, all (N,) (the rule of Deb, 2000).

    The first of equals stays; any trial is better than NaN, which is none.
    """
    nearer, further = violation < than[0], violation > than[0]
    # Not "lower": the first trial is better than NaN, whatever its error.
    return np.asarray(nearer | ~(further | (error >= than[1])))


def _checked(constraints: object) -> Constraints:
    if constraints is None:
        return {}
    if isinstance(constraints, Mapping) and all(isinstance(name, str) for name in constraints):
        return constraints
    raise InvalidArgumentError(
        "`constraints` must be a mapping from objectives to limits, such as "
        f"{{'fairness_std': 0.1}}, got {shown(constraints)}"
    )


def _limit_and_weight(name: str, constraint: float | Mapping[str, float]) -> tuple[float, float]:
    record = constraint if isinstance(constraint, Mapping) else {"limit": constraint}
    if "limit" not in record or set(record) - {"limit", "weight"}:
        raise InvalidArgumentError(
            f"constraint {name!r} must be a limit or {{'limit': .., 'weight': ..}}, got "
            f"{shown(record)}"
        )
    limit, weight = as_number(record["limit"]), as_number(record.get("weight", 1.0))
    if limit is None or not math.isfinite(limit):
        raise InvalidArgumentError(
            f"limit of constraint {name!r} must be finite, got {shown(record['limit'])}"
        )
    if weight is None or not 0 <= weight < math.inf:
        raise InvalidArgumentError(
            f"weight of constraint {name!r} must be finite and not negative, "
            f"got {shown(record['weight'])}"
        )
    return float(limit), float(weight)
