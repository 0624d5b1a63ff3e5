"""Pareto fronts, hypervolumes, rank correlation and constraints of arrays of values.

Environments use the constraints for rewards and incumbents, analyses the fronts and volumes.
Errors are signed so that lower is better; only the functions of constraints take values of
objectives in their own units. Points are arrays of the shape (points, objectives).
"""

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
    """Return which of (n, objectives) points are non-dominated: (n,); equal points all are."""
    distinct, inverse = np.unique(_check_points("errors", errors), axis=0, return_inverse=True)
    is_optimal = np.ones(len(distinct), dtype=np.bool_)
    # `np.unique` sorts rows, so only an earlier row can dominate a later one.
    for i, point in enumerate(distinct):
        if is_optimal[i]:
            is_optimal[i + 1 :] &= (distinct[i + 1 :] < point).any(axis=1)
    return np.asarray(is_optimal[inverse.reshape(-1)])


def hypervolume(errors: ArrayLike, reference: ArrayLike) -> float:
    """Return the volume that (n, objectives) points dominate, up to a reference point."""
    points = _check_points("errors", errors)
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


def can_compute_volumes() -> bool:
    """Return whether volumes of several objectives can be computed here."""
    return find_spec("moocore") is not None


def incumbent_volumes(errors: ArrayLike, reference: ArrayLike, observed: ArrayLike) -> Floats:
    """Return the volume of the front found by noisy values after each of (N, k) trials: (N,).

    The front holds the trials whose `observed` values are non-dominated; its volume is that of
    their true `errors`. So volumes may fall if values are noisy, and never fall otherwise.
    """
    points, reported_points = _check_points("errors", errors), _check_points("observed", observed)
    if reported_points.shape != points.shape:
        raise InvalidArgumentError(
            f"`observed` must have the shape of `errors`, {points.shape}, got "
            f"{reported_points.shape}"
        )
    volumes, volume = np.zeros(len(points)), 0.0
    front = np.empty(0, dtype=np.int64)
    for trial, reported in enumerate(reported_points):
        front_points = reported_points[front]
        equal = (front_points == reported).all(axis=1)
        is_known = (points[front[equal]] == points[trial]).all(axis=1).any()
        if not is_known and not ((front_points <= reported).all(axis=1) & ~equal).any():
            front = np.append(front[equal | (front_points < reported).any(axis=1)], trial)
            volume = hypervolume(points[front], reference)
        volumes[trial] = volume
    return volumes


def attainment_surfaces(runs: Sequence[Floats], shares: Sequence[float]) -> dict[float, Floats]:
    """Return, for each share, the (M, k) points that at least this share of (N, k) runs attain.

    This is the empirical attainment function of Grunert da Fonseca, Fonseca and Hall (2001).
    """
    trials = [coerce_reals("runs", run).astype(np.float64) for run in runs]
    shapes = [run.shape for run in trials]
    if not shapes or any(
        len(shape) != 2 or not shape[0] or shape[1] not in (2, 3) for shape in shapes
    ):
        raise InvalidArgumentError(
            "`runs` must be at least one array of (trials, 2 or 3 objectives), each with a trial, "
            f"got the shapes {shapes}"
        )
    coerce("shares", shares, Sequence[Annotated[float, Range(0, 1, "(]")]])
    with require_optional("what runs attain", "moocore", "fronts", "moocore"):
        import moocore
    fronts = [run[non_dominated(run)] for run in trials]
    run_of_point = np.repeat(np.arange(1, len(fronts) + 1), [len(front) for front in fronts])
    percentiles = [100.0 * share for share in shares]
    surfaces = np.asarray(
        moocore.eaf(np.concatenate(fronts), run_of_point, percentiles=percentiles)
    )
    return {
        share: surfaces[np.isclose(surfaces[:, -1], percent)][:, :-1]
        for share, percent in zip(shares, percentiles, strict=True)
    }


def _check_points(name: str, values: ArrayLike) -> Floats:
    points = coerce_reals(name, values).astype(np.float64)
    if points.ndim != 2 or not points.shape[1] or np.isnan(points).any():
        raise InvalidArgumentError(
            f"`{name}` must have the axes (points, objectives) and hold numbers, got the shape "
            f"{points.shape}"
        )
    return points


_MAX_PAIRS = 1 << 22


def kendall(first: ArrayLike, second: ArrayLike) -> float:
    """Return Kendall's rank correlation of two (n,) lists of values, corrected for ties (1945).

    tau-b = (C - D) / sqrt((P - T) (P - U)) of P pairs, of which C are in the same order in both
    lists, D in opposite order, T tied in one list and U in the other.
    """
    columns = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if columns[0].ndim != 1 or columns[0].shape != columns[1].shape or np.isnan(columns).any():
        raise InvalidArgumentError(
            "`first` and `second` must be lists of numbers of one length, got the shapes "
            f"{columns[0].shape} and {columns[1].shape}"
        )
    return tau_b([count_pairs(*columns)])


def count_pairs(first: Floats, second: Floats) -> tuple[float, float, float]:
    """Return C - D, P - T and P - U of two (n,) lists (`kendall`), counting ordered pairs."""
    ranks, others = (np.unique(values, return_inverse=True)[1] for values in (first, second))
    return _count_agreement(ranks, others), _count_untied(ranks), _count_untied(others)


def tau_b(groups: Sequence[tuple[float, float, float]]) -> float:
    """Return tau-b within groups of `count_pairs`; NaN if one of the lists is tied everywhere."""
    agree, *untied = (sum(counts) for counts in zip(*groups, strict=True)) if groups else (0, 0, 0)
    product = untied[0] * untied[1]
    return float(agree / product**0.5) if product else float("nan")


def _count_agreement(first: NDArray[np.intp], second: NDArray[np.intp]) -> float:
    """Return how many more ordered pairs agree than disagree, in blocks that fit into memory."""
    block_size = max(_MAX_PAIRS // max(len(first), 1), 1)
    agreement = 0
    for start in range(0, len(first), block_size):
        block = slice(start, start + block_size)
        signs = (np.sign(ranks[block, None] - ranks, dtype=np.float32) for ranks in (first, second))
        agreement += int(np.vdot(*signs))
    return float(agreement)


def _count_untied(ranks: NDArray[np.intp]) -> float:
    """Return how many ordered pairs are not tied."""
    return float(len(ranks) ** 2 - (np.bincount(ranks).astype(np.float64) ** 2).sum())


Constraints: TypeAlias = Mapping[str, float | Mapping[str, float]]
Limits: TypeAlias = Mapping[int, tuple[float, float]]
"""Limit and weight of each constraint, by the position of its objective."""


def read_constraints(objectives: Sequence[Any], constraints: Constraints | None) -> Limits:
    """Return limit and weight of each constraint, by the position of its objective."""
    entries: object = {} if constraints is None else constraints
    if not isinstance(entries, Mapping) or not all(isinstance(name, str) for name in entries):
        raise InvalidArgumentError(
            "`constraints` must be a mapping from objectives to limits, such as "
            f"{{'fairness_std': 0.1}}, got {short_repr(entries)}"
        )
    names = [objective.name for objective in objectives]
    limits = {}
    for name, constraint in entries.items():
        require_known("objective of a constraint (it must be among `objectives`)", name, names)
        column = names.index(name)
        limit, _ = limits[column] = _read_limit_and_weight(name, constraint)
        low, high = objectives[column].bounds
        worse = (limit > high) if objectives[column].minimize else (limit < low)
        # A limit beyond the worse bound could never be violated, such as 5 for 5 %.
        if not low <= limit <= high and not (objectives[column].open_ended and worse):
            raise InvalidArgumentError(
                f"limit of constraint {name!r} must be one that can be met and violated: values "
                f"are in [{low:g}, {high:g}], got {limit:g}; `fedhpo-gym show ID` lists limits"
            )
    return limits


def excesses(objectives: Sequence[Any], limits: Limits, values: Floats) -> dict[str, Floats]:
    """Return by how much each of (..., m) values exceeds each limit, in the unit of its objective.

    It is 0 if the limit is met, and infinite for NaN.
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
    """Return where trials are better than incumbents, all (N,) (the rule of Deb, 2000).

    Infeasible trials are ordered by violation alone, as their rewards are. Of equal trials the
    first remains the incumbent. NaN means no incumbent yet, and any trial is better.
    """
    # The condition is negated because comparisons with NaN are False.
    not_better = np.where(violation > 0, violation >= than[0], (than[0] <= 0) & (error >= than[1]))
    return np.asarray(~not_better)


def _read_limit_and_weight(
    name: str, constraint: float | Mapping[str, float]
) -> tuple[float, float]:
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
    # With larger or smaller weights, -v / (1 + v) would often be rounded to -1 or 0.
    rule = Annotated[float, Range(1e-6, 1e6)]
    weight = coerce(f"weight of constraint {name}", record.get("weight", 1.0), rule)
    return float(limit), float(weight)
