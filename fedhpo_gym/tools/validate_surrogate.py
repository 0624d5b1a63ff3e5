"""Held-out errors of surrogate models, by cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.surrogates.model import Model
from fedhpo_gym.surrogates.outputs import objectives
from fedhpo_gym.tables import Table
from fedhpo_gym.tools.candidates import Candidate
from fedhpo_gym.tools.surrogate_data import Rows

MEASURES = ("val_accuracy", "log_val_loss")
FOLDS = 10

Errors = NDArray[np.float64]


def folds_of(groups: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the fold of every row; rows of one group share a fold, folds are equally large."""
    known, where = np.unique(groups, return_inverse=True)
    fold = np.arange(len(known)) % FOLDS
    return rng.permutation(fold)[where].astype(np.int64)


def cross_validate(
    candidate: Candidate,
    rows: Rows,
    fold: NDArray[np.int64],
    progress: Callable[[int], object],
) -> dict[str, dict[str, Errors]]:
    """Return, per variant, the absolute errors on `train` and `test` rows of all folds.

    Returns:
        (n, 2) errors in the order of `MEASURES`, test errors in the order of the folds.
    """
    found: dict[str, dict[str, list[Errors]]] = {}
    for k in np.unique(fold):
        parts = {"train": rows[np.flatnonzero(fold != k)], "test": rows[np.flatnonzero(fold == k)]}
        for variant, model in candidate.models(parts["train"]).items():
            lists = found.setdefault(variant, {"train": [], "test": []})
            for part, part_rows in parts.items():
                lists[part].append(absolute_errors(model, part_rows))
        progress(1)
    return {
        variant: {part: np.concatenate(errors) for part, errors in lists.items()}
        for variant, lists in found.items()
    }


def absolute_errors(model: Model, rows: Rows, batch: int = 8192) -> Errors:
    """Return (n, 2) absolute errors in the order of `MEASURES`."""
    parts: Iterable[Rows] = (
        rows[np.arange(start, min(start + batch, len(rows)))]
        for start in range(0, len(rows), batch)
    )
    return np.concatenate(
        [
            np.abs(
                objectives(model.predict(part.inputs), part.weights)
                - objectives(part.outputs, part.weights)
            )
            for part in parts
        ]
    )


def seed_spread(table: Table) -> dict[str, float]:
    """Return how far a seed lies from the mean of the others, on average over the table.

    The error of predicting a seed from the others at the very same point: the yardstick for
    errors of a surrogate, which has not seen the point.
    """
    values = (table.objective("val", "accuracy"), np.log(table.objective("val", "loss") + 1e-12))
    others = len(table.seeds) - 1
    spread: dict[str, float] = {}
    for measure, value in zip(MEASURES, values, strict=True):
        rest = value.sum(axis=-1, keepdims=True) - value
        spread[measure] = _short(np.abs(value - rest / others).mean()) if others else 0.0
    return spread


def summary(errors: Errors, spread: dict[str, float]) -> dict[str, Any]:
    """Return what the card says of absolute errors, per measure."""
    return {
        measure: {
            "mae": _short(column.mean()),
            "median": _short(np.median(column)),
            "p90": _short(np.percentile(column, 90)),
            "p99": _short(np.percentile(column, 99)),
            "max": _short(column.max()),
            **(
                {"mae_per_seed_spread": _short(column.mean() / spread[measure])}
                if spread[measure]
                else {}
            ),
        }
        for measure, column in zip(MEASURES, errors.T, strict=True)
    }


def _short(number: float | np.floating) -> float:
    return float(f"{number:.4g}")
