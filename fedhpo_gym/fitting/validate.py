"""Held-out errors of surrogate models, by cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.fitting.candidates import Candidate
from fedhpo_gym.fitting.data import FittingRows, prepare
from fedhpo_gym.fitting.sources import MEASURES
from fedhpo_gym.surrogates.model import OutcomeModel
from fedhpo_gym.surrogates.outputs import client_outputs, objectives

FOLDS = 10

Errors = NDArray[np.float64]


def folds_of(groups: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the fold of every row; rows of one group share a fold, folds are equally large."""
    known, where = np.unique(groups, return_inverse=True)
    fold = np.arange(len(known)) % FOLDS
    return rng.permutation(fold)[where].astype(np.int64)


def cross_validate(
    candidates: Mapping[str, Candidate],
    rows: FittingRows,
    fold: NDArray[np.int64],
    progress: Callable[[str], object],
) -> dict[str, dict[str, dict[str, Errors]]]:
    """Return, per candidate and variant, absolute errors on `train` and `test` rows of all folds.

    Everything learned from rows, their scales and principal components included, is learned from
    the training rows of a fold alone.

    Args:
        candidates: what to compare.
        rows: what to fit and test them on.
        fold: (n,) fold in which a row is tested.
        progress: told the candidate of every fit just done.

    Returns:
        (n, 2) errors in the order of `MEASURES`, test errors in the order of the folds.
    """
    found: dict[tuple[str, str, str], list[Errors]] = {}
    for k in np.unique(fold):
        parts = {"train": rows[np.flatnonzero(fold != k)], "test": rows[np.flatnonzero(fold == k)]}
        prepared = prepare(parts["train"])
        for name, candidate in candidates.items():
            for variant, model in candidate.models(prepared).items():
                for part, part_rows in parts.items():
                    errors = absolute_errors(model, part_rows)
                    found.setdefault((name, variant, part), []).append(errors)
            progress(name)
    joined: dict[str, dict[str, dict[str, Errors]]] = {name: {} for name in candidates}
    for (name, variant, part), of_folds in found.items():
        joined[name].setdefault(variant, {})[part] = np.concatenate(of_folds)
    return joined


def absolute_errors(model: OutcomeModel, rows: FittingRows, batch: int = 2048) -> Errors:
    """Return (n, 2) absolute errors in the order of `MEASURES`."""
    parts: Iterable[FittingRows] = (
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


def outcome_spread(rows: FittingRows) -> dict[str, float]:
    """Return the mean distance from the median: the error of a model that sees no inputs."""
    found = _objectives(rows)
    distance = np.abs(found - np.median(found, axis=0)).mean(axis=0)
    return {measure: _short(d) for measure, d in zip(MEASURES, distance, strict=True)}


def compression_summary(rows: FittingRows) -> dict[str, Any] | None:
    """Return what the compression of client outputs alone loses, None where there is none."""
    prepared = prepare(rows)
    if prepared.compression is None:
        return None
    scales, compression = prepared.scales, prepared.compression
    exact = (rows.outputs - scales["mean"]) / scales["scale"]
    lost = compression.expand(prepared.targets) - exact
    restored = (rows.outputs + lost * scales["scale"]).astype(np.float32)
    accuracy = np.abs(_objectives(replace(rows, outputs=restored)) - _objectives(rows))[:, 0]
    clients = client_outputs()
    share = (lost[:, clients] ** 2).sum() / (exact[:, clients] ** 2).sum()
    return {
        "components": len(compression.components),
        "client_outputs": compression.components.shape[1],
        "share_of_variance_lost": _short(share),
        "val_accuracy_mae": _short(accuracy.mean()),
    }


def _objectives(rows: FittingRows, batch: int = 2048) -> NDArray[np.float64]:
    starts = range(0, len(rows), batch)
    parts = (rows[np.arange(start, min(start + batch, len(rows)))] for start in starts)
    return np.concatenate([objectives(part.outputs, part.weights) for part in parts])


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
                if spread.get(measure)
                else {}
            ),
        }
        for measure, column in zip(MEASURES, errors.T, strict=True)
    }


def _short(number: float | np.floating) -> float:
    return float(f"{number:.4g}")
