"""Fits the surrogate of a table: compares candidates, fits the best on many rows, writes it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fedhpo_gym.errors import InvalidArgumentError, unknown_name
from fedhpo_gym.seeding import stream
from fedhpo_gym.surrogates import fit_command
from fedhpo_gym.surrogates.model import Model
from fedhpo_gym.surrogates.surrogate import write_surrogate
from fedhpo_gym.tables import Table, open_table, table_folder
from fedhpo_gym.tools.candidates import CANDIDATES, Candidate
from fedhpo_gym.tools.surrogate_data import Rows, draw_rows, inputs_of, intervals
from fedhpo_gym.tools.validate_surrogate import (
    FOLDS,
    Errors,
    absolute_errors,
    cross_validate,
    folds_of,
    seed_spread,
    summary,
)

MAX_BYTES = 600_000
"""Largest model that is stored: surrogates travel inside the package."""
SELECTION_ROWS = 8_000
FINAL_ROWS = 250_000

COPIED = ("data_fingerprint", "data_licence", "data_citation", "problem_citation", "licence")


@dataclass(frozen=True)
class _Fitted:
    """What became of a candidate in the comparison."""

    candidate: Candidate
    variant: str
    by_configuration: Mapping[str, Errors]
    by_row: Mapping[str, Errors]
    variants: Mapping[str, float]
    stored_bytes: int

    @property
    def score(self) -> float:
        """Held-out mean absolute error of the log validation loss."""
        return float(self.by_configuration["test"][:, 1].mean())


def fit_surrogate(
    table_name: str, folder: Path | None = None, candidate: str | None = None
) -> Path:
    """Fit and write the surrogate of a table.

    All candidates are compared by cross-validation. Of those small enough to be stored, the one
    with the lowest mean absolute error of the log validation loss on held-out configurations is
    fitted again, on many more rows, and written.

    Args:
        table_name: name of the table.
        folder: where the surrogate goes; the folder of the user's tables when None.
        candidate: name of the candidate to write whatever its error.

    Returns:
        Path of the surrogate's card.

    Raises:
        UnknownNameError: there is no such candidate.
        InvalidArgumentError: the table has too few configurations to hold some out, or no
            candidate is small enough.
        MissingDataError: there is no such table.
        MissingDependencyError: scikit-learn is not installed.
    """
    if candidate is not None and candidate not in CANDIDATES:
        raise unknown_name("surrogate candidate", candidate, CANDIDATES)
    table = open_table(table_name)
    if table.space.grid_size < FOLDS:
        raise InvalidArgumentError(
            f"`table_name` must name a table of at least {FOLDS} configurations, got "
            f"{table_name!r} with {table.space.grid_size}; build it on a finer grid"
        )
    rows = draw_rows(table, FINAL_ROWS, stream(0, "surrogate_rows"))
    with tqdm(total=2 * FOLDS * len(CANDIDATES) + 2, desc=table_name, unit="fit") as bar:
        compared = _compare(rows, bar)
        chosen = _choose(compared, candidate)
        bar.set_postfix_str(f"fitting {chosen.candidate.name}")
        held_out = _held_out(chosen, rows)
        bar.update()
        model = chosen.candidate.models(rows, final=True)[chosen.variant]
        bar.update()
    card = _card(table, rows, compared, chosen)
    card["errors_of_the_stored_model"] = _stored_errors(table, rows, model, held_out)
    return write_surrogate(folder or table_folder(), card, model)


def _compare(rows: Rows, bar: Any) -> dict[str, _Fitted]:
    rng = stream(0, "surrogate_folds")
    size = min(SELECTION_ROWS, len(rows))
    sample = rows[np.sort(rng.choice(len(rows), size, replace=False))]
    by_configuration = folds_of(sample.configuration, rng)
    by_row = folds_of(np.arange(len(sample)), rng)
    compared = {}
    for name, candidate in CANDIDATES.items():
        bar.set_postfix_str(name)
        honest = cross_validate(candidate, sample, by_configuration, bar.update)
        theirs = cross_validate(candidate, sample, by_row, bar.update)
        # The paper's rule: mean absolute error of the accuracy, folds by row.
        accuracy = {variant: float(e["test"][:, 0].mean()) for variant, e in theirs.items()}
        best = min(accuracy, key=lambda variant: accuracy[variant])
        model = candidate.models(sample)[best]
        size_bytes = sum(array.nbytes for array in model.arrays.values())
        compared[name] = _Fitted(candidate, best, honest[best], theirs[best], accuracy, size_bytes)
    return compared


def _choose(compared: Mapping[str, _Fitted], wanted: str | None) -> _Fitted:
    small = [fitted for fitted in compared.values() if fitted.stored_bytes <= MAX_BYTES]
    if wanted is not None:
        return compared[wanted]
    if not small:
        raise InvalidArgumentError(f"no candidate fits into {MAX_BYTES} bytes; name one to store")
    return min(small, key=lambda fitted: fitted.score)


def _held_out(chosen: _Fitted, rows: Rows) -> Errors:
    """Return errors of the final recipe on a tenth of the configurations it did not see."""
    fold = folds_of(rows.configuration, stream(0, "surrogate_held_out"))
    model = chosen.candidate.models(rows[np.flatnonzero(fold > 0)], final=True)[chosen.variant]
    return absolute_errors(model, rows[np.flatnonzero(fold == 0)])


def _stored_errors(table: Table, rows: Rows, model: Model, held_out: Errors) -> dict[str, Any]:
    spread = seed_spread(table)
    return {
        "rows": len(rows),
        "train": summary(absolute_errors(model, rows), spread),
        "held_out": summary(held_out, spread),
        "held_out_note": "the same recipe fitted without a tenth of the configurations, on these",
    }


def _card(
    table: Table, rows: Rows, compared: Mapping[str, _Fitted], chosen: _Fitted
) -> dict[str, Any]:
    spread = seed_spread(table)
    inputs = inputs_of(table)
    return {
        "name": table.name,
        "table_sha256": table.sha256,
        "model": {
            "kind": chosen.candidate.kind,
            "candidate": chosen.candidate.name,
            "variant": chosen.variant,
            "settings": dict(chosen.candidate.settings),
            "inputs": list(inputs.names),
            "outputs": "see fedhpo_gym.surrogates.outputs",
        },
        "space": inputs.space.to_dict(),
        "fidelity_space": intervals(table.fidelity_space).to_dict(),
        "seeds": list(table.seeds),
        "num_samples": table.num_samples.tolist(),
        "seed_spread": spread,
        "comparison": {
            "rows": min(SELECTION_ROWS, len(rows)),
            "folds": FOLDS,
            "note": "fitted on a random subsample: errors are larger than those of all rows",
            "rule": f"lowest log_val_loss mae by configuration of those up to {MAX_BYTES} bytes",
            "candidates": {name: _result(fitted, spread) for name, fitted in compared.items()},
        },
        **{key: table.card[key] for key in COPIED if key in table.card},
        "fit_command": fit_command(table.name),
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "software": {name: version(name) for name in ("numpy", "scikit-learn")},
    }


def _result(fitted: _Fitted, spread: dict[str, float]) -> dict[str, Any]:
    return {
        "settings": dict(fitted.candidate.settings),
        "variant": fitted.variant,
        "val_accuracy_mae_by_row_of_variants": {
            variant: float(f"{mae:.4g}") for variant, mae in fitted.variants.items() if variant
        },
        "bytes_before_compression": fitted.stored_bytes,
        "small_enough": fitted.stored_bytes <= MAX_BYTES,
        "by_configuration": {p: summary(e, spread) for p, e in fitted.by_configuration.items()},
        "by_row": {part: summary(errors, spread) for part, errors in fitted.by_row.items()},
    }
