"""Held-out errors of surrogate models, by cross-validation, and what they must beat."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.building.candidates import Candidate
from fedhpo_gym.building.surrogate_data import FittingRows, prepare
from fedhpo_gym.building.surrogate_sources import MEASURES
from fedhpo_gym.evaluation.fronts import pairs, tau
from fedhpo_gym.stored.surrogate_curves import DIVERGED, CurveModel, running_best
from fedhpo_gym.stored.surrogate_outputs import VALIDATION, objectives

FOLDS = 10
LARGEST_SHARE, LOWEST_TAU = 0.5, 0.6
"""Of the yardstick's error of the loss, and of Kendall's tau: what a surrogate is accepted with."""

BEST_SHARE = 0.1
"""Of the held-out courses, those that are claimed best."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Claims:
    """What is said of n courses at K rounds."""

    values: Floats  # (n, K, 2) best so far, in the order of `MEASURES`
    diverged: NDArray[np.bool_]  # (n, K) whether courses have diverged

    @classmethod
    def blank(cls, rows: FittingRows) -> Claims:
        """Return claims to be filled in."""
        shape = rows.outputs.shape[:2]
        return cls(np.full((*shape, len(MEASURES)), np.nan), np.zeros(shape, np.bool_))

    def put(self, where: NDArray[np.int64], some: Claims) -> None:
        """Fill in what is said of some courses."""
        self.values[where], self.diverged[where] = some.values, some.diverged


def folds_of(groups: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the fold of every row; rows of one group share a fold, folds are equally large."""
    known, where = np.unique(groups, return_inverse=True)
    fold = np.arange(len(known)) % FOLDS
    return rng.permutation(fold)[where].astype(np.int64)


def truths(rows: FittingRows) -> Claims:
    """Return what courses really did; values are NaN at rounds that they were not trained for."""
    flat = rows.outputs.reshape(-1, rows.outputs.shape[2])
    weights = np.repeat(rows.weights, rows.outputs.shape[1], axis=0)
    found = objectives(flat[:, :-1], weights).reshape(*rows.outputs.shape[:2], -1)
    return Claims(found, rows.outputs[..., DIVERGED] >= 0.5)


def claims(model: CurveModel, rows: FittingRows) -> Claims:
    """Return what a model answers at the knots."""
    coefficients = model.coefficients(rows.inputs)
    losses = model.at_all_knots(coefficients, VALIDATION)
    chosen = running_best(losses.T).T
    found = np.empty((*losses.shape, len(MEASURES)))
    weights = rows.weights
    for knot in range(losses.shape[1]):
        outputs = model.at_knots(coefficients, np.full(len(losses), knot))
        found[:, knot] = objectives(outputs[:, :-1], weights)
    chance = np.maximum.accumulate(model.at_all_knots(coefficients, DIVERGED), axis=1)
    best = np.take_along_axis(found, chosen[..., None], axis=1)
    return Claims(best, chance >= 0.5)


def yardstick(rows: FittingRows, fold: NDArray[np.int64]) -> Floats:
    """Return (n, K, 2) errors of the mean of other folds at each round; NaN where there is none."""
    truth = truths(rows).values
    errors = np.empty_like(truth)
    for k in np.unique(fold):
        others = truth[fold != k]
        count = rows.trained[fold != k].sum(axis=0)[:, None]
        mean = np.nansum(others, axis=0) / np.where(count, count, np.nan)
        errors[fold == k] = np.abs(truth[fold == k] - mean)
    return errors


def cross_validate(
    candidates: Mapping[str, Candidate],
    rows: FittingRows,
    fold: NDArray[np.int64],
    progress: Callable[[str], object],
) -> dict[str, dict[str, dict[str, Claims]]]:
    """Return what is claimed of `train` and `test` rows, by candidate and variant.

    Of a training row, the claim of one of the models that saw it is kept.
    """
    found: dict[str, dict[str, dict[str, Claims]]] = {name: {} for name in candidates}
    for k in np.unique(fold).tolist():
        inside, outside = np.flatnonzero(fold == k), np.flatnonzero(fold != k)
        prepared = prepare(rows[outside])
        for name, candidate in candidates.items():
            for variant, model in candidate.models(prepared).items():
                parts = found[name].setdefault(
                    variant, {part: Claims.blank(rows) for part in ("train", "test")}
                )
                parts["test"].put(inside, claims(model, rows[inside]))
                parts["train"].put(outside, claims(model, rows[outside]))
            progress(name)
    return found


def kendall_tau(truth: Floats, claim: Floats, ranking: NDArray[np.int64]) -> float:
    """Return Kendall's tau-b of (n,) truth and claim, among courses of one (n,) ranking."""
    groups = np.unique(ranking[ranking >= 0]).tolist()
    return tau([pairs(truth[ranking == one], claim[ranking == one]) for one in groups])


def tau_at(rows: FittingRows, found: Claims, knot: int = -1) -> float:
    """Return Kendall's tau of the validation loss at a round, of the courses that have it."""
    loss = MEASURES.index("log_val_loss")
    truth, claim = (each.values[:, knot, loss] for each in (truths(rows), found))
    return kendall_tau(truth, claim, np.where(rows.trained[:, knot], rows.ranking, -1))


def optimism(rows: FittingRows, found: Claims) -> dict[str, float]:
    """Return how far those claimed best fall short: the lowest predictions are the luckiest."""
    loss = MEASURES.index("log_val_loss")
    ranked = rows.trained[:, -1] & (rows.ranking >= 0)
    truth, claim = (each.values[ranked, -1, loss] for each in (truths(rows), found))
    chosen = np.argsort(claim, kind="stable")[: math.ceil(BEST_SHARE * len(claim))]
    claimed = claim[chosen].mean()
    return {
        "courses": len(chosen),
        "claimed": _short(claimed),
        "above": _short(truth[chosen].mean() - claimed),
    }


def divergence_summary(rows: FittingRows, found: Claims) -> dict[str, float]:
    """Return shares of courses that diverge by their end: in truth, claimed, and both."""
    last = rows.trained.sum(axis=1)[:, None] - 1
    truth, claim = (
        np.take_along_axis(each.diverged, last, axis=1)[:, 0] for each in (truths(rows), found)
    )
    return {
        "share": _short(truth.mean()),
        "claimed": _short(claim.mean()),
        "both": _short((truth & claim).mean()),
    }


def outcome_spread(rows: FittingRows) -> dict[str, float]:
    """Return the mean distance from the median over all courses and rounds."""
    found = truths(rows).values[rows.trained]
    distance = np.abs(found - np.median(found, axis=0)).mean(axis=0)
    return {measure: _short(d) for measure, d in zip(MEASURES, distance, strict=True)}


def compression_summary(rows: FittingRows) -> dict[str, Any]:
    """Return how few numbers stand for curves, and the share of variance that this loses."""
    prepared = prepare(rows)
    basis = prepared.basis.reshape(len(prepared.basis), -1)
    lost = np.where(prepared.known, prepared.coefficients @ basis - prepared.curves, 0.0)
    kept = np.where(prepared.known, prepared.curves, 0.0)
    variance = max(float((kept**2).sum()), 1e-12)
    said = {
        "coefficients": len(basis),
        "of": basis.shape[1],
        "share_of_variance_lost": _short(float((lost**2).sum()) / variance),
    }
    if prepared.clients is not None:
        said |= {
            "components_of_clients": len(prepared.clients),
            "client_outputs": prepared.clients.shape[1],
        }
    return said


def summary(errors: Floats, spread: Mapping[str, float]) -> dict[str, Any]:
    """Return what the card says of (..., 2) absolute errors, per measure; NaN does not count."""
    each = errors.reshape(-1, len(MEASURES))
    columns = each[~np.isnan(each).any(axis=1)].T
    return {
        measure: {
            "mae": _short(column.mean()),
            "median": _short(np.median(column)),
            "p90": _short(np.percentile(column, 90)),
            "p99": _short(np.percentile(column, 99)),
            "max": _short(column.max()),
            **(
                {"mae_per_seed_spread": _short(column.mean() / spread[measure])}
                if spread.get(measure)
                else {}
            ),
        }
        for measure, column in zip(MEASURES, columns, strict=True)
    }


def verdict(errors: Mapping[str, Any], constant: Mapping[str, float], tau: float) -> dict[str, Any]:
    """Return whether a surrogate is accepted, and by which figures."""
    share = errors["log_val_loss"]["mae"] / max(constant["log_val_loss"], 1e-12)
    return {
        "rule": f"error of log_val_loss at most {LARGEST_SHARE} of the yardstick's, and Kendall's "
        f"tau at least {LOWEST_TAU}",
        "share_of_yardstick": _short(share),
        "kendall_tau": _short(tau),
        "passed": bool(share <= LARGEST_SHARE and tau >= LOWEST_TAU),
    }


def _short(number: float | np.floating) -> float:
    return float(f"{number:.4g}")
