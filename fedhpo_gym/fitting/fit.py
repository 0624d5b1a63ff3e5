"""Fits the surrogate of a table or sample: compares candidates, fits the best, writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fedhpo_gym.errors import InvalidArgumentError, unknown_name
from fedhpo_gym.fitting.candidates import CANDIDATES, Candidate
from fedhpo_gym.fitting.card import FINAL_ROWS, MAX_BYTES, SELECTION_ROWS, surrogate_card
from fedhpo_gym.fitting.data import FittingRows, prepare
from fedhpo_gym.fitting.sources import FittingSource, open_source
from fedhpo_gym.fitting.validate import (
    FOLDS,
    Errors,
    absolute_errors,
    cross_validate,
    folds_of,
    summary,
)
from fedhpo_gym.identity import Identity
from fedhpo_gym.landscape import write_health
from fedhpo_gym.seeding import stream
from fedhpo_gym.surrogates.model import OutcomeModel
from fedhpo_gym.surrogates.surrogate import write_surrogate
from fedhpo_gym.tables import writable_table_folder


@dataclass(frozen=True)
class _Fitted:
    """What became of a candidate in the comparison.

    Attributes:
        candidate: the candidate.
        variant: its variant with the lowest error of the accuracy.
        errors: absolute errors of that variant, per way of cutting folds, and per part.
        variants: mean absolute error of the accuracy of every variant.
        stored_bytes: size of a model fitted on the rows of the comparison.
    """

    candidate: Candidate
    variant: str
    errors: Mapping[str, Mapping[str, Errors]]
    variants: Mapping[str, float]
    stored_bytes: int

    @property
    def score(self) -> float:
        """Held-out mean absolute error of the log validation loss."""
        return float(self.errors["by_configuration"]["test"][:, 1].mean())


def fit_surrogate(
    wanted: str | Identity, folder: Path | None = None, candidate: str | None = None
) -> Path:
    """Fit and write the surrogate of a table, or of a sample where there is no table.

    All candidates are compared by cross-validation. Of those small enough to be stored, the one
    with the lowest mean absolute error of the log validation loss on held-out configurations is
    fitted again, on all rows or many more, and written.

    Args:
        wanted: what the table or the sample belongs to, or the stem of their files.
        folder: where the surrogate goes; the folder of the user's tables when None.
        candidate: name of the candidate to write whatever its error.

    Returns:
        Path of the surrogate's card.

    Raises:
        UnknownNameError: there is no such candidate.
        InvalidArgumentError: there are too few configurations to hold some out, no candidate is
            small enough, or nothing can be written into the folder.
        MissingDataError: there is neither a table nor a sample of this name.
        MissingDependencyError: scikit-learn is not installed.
    """
    if candidate is not None and candidate not in CANDIDATES:
        raise unknown_name("surrogate candidate", candidate, CANDIDATES)
    source = open_source(wanted)
    name = source.stored.name
    if source.num_held_out < FOLDS:
        raise InvalidArgumentError(
            f"`wanted` must name a table or sample of at least {FOLDS} configurations with "
            f"minibatches of their own, got {name!r} with {source.num_held_out}; build a larger one"
        )
    target = writable_table_folder(folder)
    rows = source.rows(FINAL_ROWS, stream(0, "surrogate_rows"))
    fits = len(source.foldings) * FOLDS * len(CANDIDATES) + 2
    with tqdm(total=fits, desc=name, unit="fit") as bar:
        compared = _compare(source, rows, bar)
        chosen = _choose(compared, candidate)
        bar.set_postfix_str(f"fitting {chosen.candidate.name}")
        held_out = _held_out(chosen, rows)
        bar.update()
        model = chosen.candidate.models(prepare(rows), final=True)[chosen.variant]
        bar.update()
    card = surrogate_card(source, rows, {name: _result(f, source) for name, f in compared.items()})
    card["model"] |= {
        "kind": chosen.candidate.kind,
        "candidate": chosen.candidate.name,
        "variant": chosen.variant,
        "settings": dict(chosen.candidate.settings),
    }
    card["errors_of_the_stored_model"] = _stored_errors(source, rows, model, held_out)
    return write_health(write_surrogate(target, card, model))


def _compare(source: FittingSource, rows: FittingRows, bar: Any) -> dict[str, _Fitted]:
    rng = stream(0, "surrogate_folds")
    size = min(SELECTION_ROWS, len(rows))
    sample = rows[np.sort(rng.choice(len(rows), size, replace=False))]
    groups = {"by_configuration": sample.configuration, "by_row": np.arange(len(sample))}
    folds = {way: folds_of(groups[way], rng) for way in source.foldings}

    def show(name: str) -> None:
        bar.set_postfix_str(name)
        bar.update()

    errors = {way: cross_validate(CANDIDATES, sample, fold, show) for way, fold in folds.items()}
    prepared = prepare(sample)
    compared = {}
    for name, candidate in CANDIDATES.items():
        # The paper's rule among variants: mean absolute error of the accuracy (folds by row, of a
        # table).
        theirs = errors[source.foldings[-1]][name]
        accuracy = {variant: float(e["test"][:, 0].mean()) for variant, e in theirs.items()}
        best = min(accuracy, key=lambda variant: accuracy[variant])
        arrays = candidate.models(prepared)[best].arrays.values()
        chosen = {way: errors[way][name][best] for way in source.foldings}
        size_bytes = sum(array.nbytes for array in arrays)
        compared[name] = _Fitted(candidate, best, chosen, accuracy, size_bytes)
    return compared


def _choose(compared: Mapping[str, _Fitted], wanted: str | None) -> _Fitted:
    small = [fitted for fitted in compared.values() if fitted.stored_bytes <= MAX_BYTES]
    if wanted is not None:
        return compared[wanted]
    if not small:
        raise InvalidArgumentError(f"no candidate fits into {MAX_BYTES} bytes; name one to store")
    return min(small, key=lambda fitted: fitted.score)


def _held_out(chosen: _Fitted, rows: FittingRows) -> Errors:
    """Return errors of the final recipe on a tenth of the configurations it did not see."""
    fold = folds_of(rows.configuration, stream(0, "surrogate_held_out"))
    seen = prepare(rows[np.flatnonzero(fold > 0)])
    model = chosen.candidate.models(seen, final=True)[chosen.variant]
    return absolute_errors(model, rows[np.flatnonzero(fold == 0)])


def _stored_errors(
    source: FittingSource, rows: FittingRows, model: OutcomeModel, held_out: Errors
) -> dict[str, Any]:
    spread = source.seed_spread
    return {
        "rows": len(rows),
        "train": summary(absolute_errors(model, rows), spread),
        "held_out": summary(held_out, spread),
        "held_out_note": "the same recipe fitted without a tenth of the configurations, on these",
    }


def _result(fitted: _Fitted, source: FittingSource) -> dict[str, Any]:
    spread = source.seed_spread
    return {
        "settings": dict(fitted.candidate.settings),
        "variant": fitted.variant,
        f"val_accuracy_mae_{source.foldings[-1]}_of_variants": {
            variant: float(f"{mae:.4g}") for variant, mae in fitted.variants.items() if variant
        },
        "bytes_before_compression": fitted.stored_bytes,
        "small_enough": fitted.stored_bytes <= MAX_BYTES,
        **{
            way: {part: summary(errors, spread) for part, errors in parts.items()}
            for way, parts in fitted.errors.items()
        },
    }
