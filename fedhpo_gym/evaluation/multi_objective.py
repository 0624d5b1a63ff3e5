"""Pareto fronts of errors, lower is better, their volumes, rank correlation, and constraints."""

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhpo_gym.core.arrays import Bools, Floats
from fedhpo_gym.core.checks import Range, as_number, coerce, coerce_reals, short_repr
from fedhpo_gym.core.errors import InvalidArgumentError, require_known, require_optional


def non_dominated(errors: ArrayLike) -> Bools:
    """Return which of (n, objectives) points no other point dominates: (n,); equal ones stay."""
    distinct, inverse = np.unique(_checked("errors", errors), axis=0, return_inverse=True)
    kept = np.ones(len(distinct), dtype=np.bool_)
    # Sorted rows: what dominates a row stands before it.
    for i, point in enumerate(distinct):
        if kept[i]:
            kept[i + 1 :] &= (distinct[i + 1 :] < point).any(axis=1)
    return np.asarray(kept[inverse.reshape(-1)])


def hypervolume(errors: ArrayLike, reference: ArrayLike) -> float:
    """Return the volume of what (n, objectives) points dominate, up to a reference point."""
    points = _checked("errors", errors)
    corner = coerce_reals("reference", reference).astype(np.float64)
    if corner.shape != points.shape[1:] or not np.isfinite(corner).all():
        raise InvalidArgumentError(
            f"`reference` must be {points.shape[1]} finite numbers, one per objective, got "
            f"{corner.tolist()}"
        )
    inside = points[(points < corner).all(axis=1)]
    if not len(inside):
        return 0.0
    if len(corner) == 1:
        return float(corner[0] - inside.min())
    with require_optional("the volume that a front dominates", "moocore", "fronts", "moocore"):
        import moocore
    return float(moocore.hypervolume(inside, ref=corner))


def volumes_known() -> bool:
    """Return whether volumes of several coordinates can be computed here."""
    return find_spec("moocore") is not None


def growing_volumes(errors: ArrayLike, reference: ArrayLike, observed: ArrayLike) -> Floats:
    """Return the volume of the front that one believes in after each of (N, k) trials: (N,).

    Who sees noisy values picks the trials that are not dominated by these, and gets what they truly
    are. So volumes may fall; where nothing is noisy, they never do.
    """
    points, believed = _checked("errors", errors), _checked("observed", observed)
    if believed.shape != points.shape:
        raise InvalidArgumentError(
            f"`observed` must have the shape of `errors`, {points.shape}, got {believed.shape}"
        )
    found, volume = np.zeros(len(points)), 0.0
    front = np.empty(0, dtype=np.int64)
    for trial, seen in enumerate(believed):
        others = believed[front]
        equal = (others == seen).all(axis=1)
        is_known = (points[front[equal]] == points[trial]).all(axis=1).any()
        if not is_known and not ((others <= seen).all(axis=1) & ~equal).any():
            front = np.append(front[equal | (others < seen).any(axis=1)], trial)
            volume = hypervolume(points[front], reference)
        found[trial] = volume
    return found


def attained(runs: Sequence[Floats], shares: Sequence[float]) -> dict[float, Floats]:
    """Return the points that at least these shares of (N, k) runs attain: (M, 2) or (M, 3) each.

    This is the empirical attainment function of Grunert da Fonseca, Fonseca and Hall (2001).
    """
    trials = [coerce_reals("runs", run).astype(np.float64) for run in runs]
    shapes = [run.shape for run in trials]
    if not shapes or any(len(one) != 2 or not one[0] or one[1] not in (2, 3) for one in shapes):
        raise InvalidArgumentError(
            "`runs` must be at least one array of (trials, 2 or 3 objectives), each with a trial, "
            f"got the shapes {shapes}"
        )
    coerce("shares", shares, Sequence[Annotated[float, Range(0, 1, "(]")]])
    with require_optional("what runs attain", "moocore", "fronts", "moocore"):
        import moocore
    fronts = [run[non_dominated(run)] for run in trials]
    which = np.repeat(np.arange(1, len(fronts) + 1), [len(front) for front in fronts])
    asked = [100.0 * share for share in shares]
    found = np.asarray(moocore.eaf(np.concatenate(fronts), which, percentiles=asked))
    return {
        share: found[np.isclose(found[:, -1], percent)][:, :-1]
        for share, percent in zip(shares, asked, strict=True)
    }


def _checked(name: str, values: ArrayLike) -> Floats:
    points = coerce_reals(name, values).astype(np.float64)
    if points.ndim != 2 or not points.shape[1] or np.isnan(points).any():
        raise InvalidArgumentError(
            f"`{name}` must have the axes (points, objectives) and hold numbers, got the shape "
            f"{points.shape}"
        )
    return points


_PAIRS_AT_ONCE = 1 << 22


def kendall(one: ArrayLike, other: ArrayLike) -> float:
    """Return Kendall's rank correlation of two (n,) lists of values, corrected for ties (1945).

    tau-b = (C - D) / sqrt((P - T) (P - U)) of P pairs, of which C are in the same order in both
    lists, D in opposite order, T tied in one list and U in the other.
    """
    lists = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if lists[0].ndim != 1 or lists[0].shape != lists[1].shape or np.isnan(lists).any():
        raise InvalidArgumentError(
            "`one` and `other` must be lists of numbers of one length, got the shapes "
            f"{lists[0].shape} and {lists[1].shape}"
        )
    return tau([pairs(*lists)])


def pairs(one: Floats, other: Floats) -> tuple[float, float, float]:
    """Return what tau-b is made of: ordered pairs of two (n,) lists."""
    first, second = (np.unique(values, return_inverse=True)[1] for values in (one, other))
    return _agreement(first, second), _untied(first), _untied(second)


def tau(groups: Sequence[tuple[float, float, float]]) -> float:
    """Return tau-b within groups of `pairs`; NaN where one of the lists is tied everywhere."""
    agree, *untied = (sum(counts) for counts in zip(*groups, strict=True)) if groups else (0, 0, 0)
    product = untied[0] * untied[1]
    return float(agree / product**0.5) if product else float("nan")


def _agreement(first: NDArray[np.intp], second: NDArray[np.intp]) -> float:
    """Return how many more ordered pairs agree than disagree."""
    rows = max(_PAIRS_AT_ONCE // max(len(first), 1), 1)
    total = 0
    for start in range(0, len(first), rows):
        part = slice(start, start + rows)
        signs = (np.sign(ranks[part, None] - ranks, dtype=np.float32) for ranks in (first, second))
        total += int(np.vdot(*signs))
    return float(total)


def _untied(ranks: NDArray[np.intp]) -> float:
    """Return how many ordered pairs are not tied."""
    return float(len(ranks) ** 2 - (np.bincount(ranks).astype(np.float64) ** 2).sum())


Constraints: TypeAlias = Mapping[str, float | Mapping[str, float]]
Limits: TypeAlias = Mapping[int, tuple[float, float]]
"""Limit and weight of each constraint, by the position of its objective."""


def read_constraints(objectives: Sequence[Any], constraints: Constraints | None) -> Limits:
    """Return limit and weight of each constraint, by the position of its objective."""
    given: object = {} if constraints is None else constraints
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidArgumentError(
            "`constraints` must be a mapping from objectives to limits, such as "
            f"{{'fairness_std': 0.1}}, got {short_repr(given)}"
        )
    names = [objective.name for objective in objectives]
    found = {}
    for name, constraint in given.items():
        require_known("objective of a constraint (it must be among `objectives`)", name, names)
        place = names.index(name)
        limit, _ = found[place] = _limit_and_weight(name, constraint)
        low, high = objectives[place].bounds
        worse = (limit > high) if objectives[place].minimize else (limit < low)
        # Beyond the worse bound a limit would never be broken: 5 where 5 % is meant.
        if not low <= limit <= high and not (objectives[place].open_ended and worse):
            raise InvalidArgumentError(
                f"limit of constraint {name!r} must be one that can be kept and broken: values "
                f"are in [{low:g}, {high:g}], got {limit:g}; `fedhpo-gym show ID` lists limits"
            )
    return found


def excesses(objectives: Sequence[Any], limits: Limits, values: Floats) -> dict[str, Floats]:
    """Return by how much each of (..., m) values exceeds each limit, in the objective's own unit.

    It is 0 where the limit is kept, and infinite for NaN.
    """
    amounts = {}
    for column, (limit, _) in limits.items():
        excess = values[..., column] - limit
        excess = excess if objectives[column].minimize else -excess
        finite = np.maximum(excess, 0.0)
        amounts[objectives[column].name] = np.where(np.isnan(excess), np.inf, finite)
    return amounts


def violations(objectives: Sequence[Any], limits: Limits, values: Floats) -> Floats:
    """Return the total violation v of each of (..., m) values; 0 where a trial is feasible.

    v = sum_j w_j x_j / (high_j - low_j), where x_j is the excess over limit j, w_j the weight of
    that constraint, and low_j, high_j are the bounds of its objective: v has no unit.
    """
    total = np.zeros(values.shape[:-1])
    amounts = excesses(objectives, limits, values)
    for column, (_, weight) in limits.items():
        low, high = objectives[column].bounds
        total = total + weight / (high - low) * amounts[objectives[column].name]
    return total


def is_better(violation: Floats, error: Floats, than: tuple[Floats, Floats]) -> NDArray[Any]:
    """Return where trials take the place of incumbents, all (N,) (the rule of Deb, 2000).

    Trials that break limits are ordered by violation alone, as their rewards are. The first of
    equals stays; any trial is better than NaN, which is none.
    """
    # Not "lower": the first trial is better than NaN, whatever its error.
    not_better = np.where(violation > 0, violation >= than[0], (than[0] <= 0) & (error >= than[1]))
    return np.asarray(~not_better)


def _limit_and_weight(name: str, constraint: float | Mapping[str, float]) -> tuple[float, float]:
    record = constraint if isinstance(constraint, Mapping) else {"limit": constraint}
    if "limit" not in record or set(record) - {"limit", "weight"}:
        raise InvalidArgumentError(
            f"constraint {name!r} must be a limit or {{'limit': .., 'weight': ..}}, got "
            f"{short_repr(record)}"
        )
    limit = as_number(record["limit"])
    if limit is None or not math.isfinite(limit):
        raise InvalidArgumentError(
            f"limit of constraint {name!r} must be finite, got {short_repr(record['limit'])}"
        )
    # Beyond, -v / (1 + v) would be 0 or -1 for many a v, as numbers of 64 bits round it.
    rule = Annotated[float, Range(1e-6, 1e6)]
    weight = coerce(f"weight of constraint {name}", record.get("weight", 1.0), rule)
    return float(limit), float(weight)
